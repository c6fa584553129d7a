"""What the preflight looks at, gathered once. Touches: Slurm (reads only), /proc/self/mountinfo, the run directory,
and for a real submit child processes that look for the launcher.

Slurm is asked one thing at a time and not again once it did not answer: with a dead controller each call costs its
whole time-out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import ClusterConfig, Partition, QueueReading, SubmitLimits
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.directory import DirectoryState, read_directory
from nvrx_chain.submit.interpreters import NEEDS, ModuleProbe, start_probes
from nvrx_chain.submit.mounts import FileSystem, read_file_system
from nvrx_chain.submit.places import Place, own_places, read_places

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitFacts:
    """Everything that a preflight may know. `probes` is None when nobody looked, as in a dry run."""

    user: str
    uid: int
    cluster: ClusterConfig | Unobserved
    partitions: tuple[Partition, ...] | Unobserved
    queue: QueueReading | Unobserved
    file_system: FileSystem | Unobserved
    directory: DirectoryState
    program_exists: bool | None
    probes: tuple[ModuleProbe | Unobserved, ...] | None
    slurm_directory: str | None = None
    places: tuple[Place, ...] = ()
    own_places: tuple[str, ...] = ()
    limits: SubmitLimits | Unobserved | None = None


def gather_facts(config: ChainConfig, client: SlurmClient, *, user: str, uid: int, probe: bool) -> SubmitFacts:
    """Look at everything once. Raises RecordError when the run directory holds a record that cannot be read."""
    directory = read_directory(config.run, owner_uid=uid)
    # Started first: an interpreter takes as long to start as Slurm to answer all that follows.
    probes = start_probes(config) if probe else None
    cluster = client.config()
    partitions = _unless(cluster, client.partitions)
    queue = _unless(cluster, lambda: client.queue(user))
    program = config.workload.program
    return SubmitFacts(
        user=user,
        uid=uid,
        cluster=cluster,
        partitions=partitions,
        queue=queue,
        file_system=read_file_system(config.run_directory),
        directory=directory,
        program_exists=os.path.isfile(program) if program else None,
        probes=None if probes is None else tuple(each.result() for each in probes),
        slurm_directory=_slurm_directory(),
        places=read_places(config),
        own_places=own_places(),
        limits=_limits(cluster, client, user),
    )


def _limits(cluster: ClusterConfig | Unobserved, client: SlurmClient, user: str) -> SubmitLimits | Unobserved | None:
    """None where no limits hold, and where Slurm did not answer before."""
    if isinstance(cluster, Unobserved) or not (cluster.accounting and cluster.enforces_limits):
        return None
    return client.submit_limits(user)


def _slurm_directory() -> str | None:
    """Where Slurm's programs are on this machine."""
    found = shutil.which("sbatch")
    return os.path.dirname(found) if found else None


def _unless(earlier: object, ask: Callable[[], T | Unobserved]) -> T | Unobserved:
    return earlier if isinstance(earlier, Unobserved) else ask()


def launcher_version(facts: SubmitFacts, kind: LauncherKind) -> str | None:
    """The launcher's version where a probe saw it."""
    module = NEEDS[kind][-1] if NEEDS[kind] else None
    for probe in facts.probes or ():
        if isinstance(probe, ModuleProbe) and module in probe.found and module in probe.needed:
            return probe.found[module]
    return None
