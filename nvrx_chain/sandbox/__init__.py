"""A real private Slurm cluster on this machine, and the faults that can be done to it."""

from nvrx_chain.sandbox.cluster import Sandbox
from nvrx_chain.sandbox.config import SandboxConfig
from nvrx_chain.sandbox.faults import FaultKind, FaultReport
from nvrx_chain.sandbox.job_faults import BatchScope

__all__ = ["BatchScope", "FaultKind", "FaultReport", "Sandbox", "SandboxConfig"]
