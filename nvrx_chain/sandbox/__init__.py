"""A real private Slurm cluster on this machine, and the faults that can be done to it."""

from nvrx_chain.sandbox.cluster import Sandbox
from nvrx_chain.sandbox.config import SandboxConfig

__all__ = ["Sandbox", "SandboxConfig"]
