"""Who this process is: array job, array task, host, boot and process, as stamped into every control file.

Touches: the environment of the allocation, /proc, and the manifest of the own chain.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from nvrx_chain.errors import RecordError, UsageError
from nvrx_chain.records.chain import read_manifest
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.slurm.nodelist import expand_nodes


class Stamp(TypedDict):
    """The fields that every control file carries."""

    array_job_id: int
    array_task_id: int
    restart_count: int
    host: str
    boot_id: str
    pid: int
    pid_started_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """One running array task. `nodes` are its nodes, the batch host first."""

    array_job_id: int
    array_task_id: int
    restart_count: int
    host: str
    nodes: tuple[str, ...]
    boot_id: str
    pid: int
    pid_started_at: int

    def stamp(self) -> Stamp:
        """The stamp as keyword arguments of a control record."""
        return Stamp(
            array_job_id=self.array_job_id,
            array_task_id=self.array_task_id,
            restart_count=self.restart_count,
            host=self.host,
            boot_id=self.boot_id,
            pid=self.pid,
            pid_started_at=self.pid_started_at,
        )

    @property
    def spec(self) -> str:
        """The task's name for scancel, and for people."""
        return f"{self.array_job_id}_{self.array_task_id}"


def read_identity(environ: Mapping[str, str]) -> TaskIdentity:
    """The identity of this process from its own allocation, never from a file. Raises UsageError outside of one."""
    job_text = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    if not job_text:
        raise UsageError(
            "starting run-task: SLURM_JOB_ID is not set", hint="run-task is started by generation.sbatch inside a job"
        )
    try:
        array_job_id = int(job_text)
        array_task_id = int(environ.get("SLURM_ARRAY_TASK_ID") or "0")
        restart_count = int(environ.get("SLURM_RESTART_COUNT") or "0")
    except ValueError as error:
        raise UsageError(f"starting run-task: the allocation's identity cannot be read: {error}") from error
    host = environ.get("SLURMD_NODENAME") or socket.gethostname()
    return TaskIdentity(
        array_job_id=array_job_id,
        array_task_id=array_task_id,
        restart_count=restart_count,
        host=host,
        nodes=_nodes(environ, host),
        boot_id=read_boot_id(),
        pid=os.getpid(),
        pid_started_at=read_process_start(os.getpid()),
    )


def _nodes(environ: Mapping[str, str], host: str) -> tuple[str, ...]:
    listed = environ.get("SLURM_JOB_NODELIST") or host
    names = expand_nodes(listed)
    return (host, *(name for name in names if name != host))


def read_boot_id() -> str:
    """The kernel's id of this boot: tells a process from a namesake after a reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_process_start(pid: int) -> int:
    """Start time of a process in clock ticks since boot (proc(5), stat field 22)."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19])


def read_own_manifest(directory: RunDirectory) -> ChainManifest:
    """The manifest, if it is that of this very user. Raises RecordError.

    Whoever may write where the run directory lies can put another one in its place, with commands in its manifest.
    """
    uid = os.geteuid()
    manifest = read_manifest(directory, owner_uid=uid)
    if manifest.uid != uid:
        raise RecordError(f"reading the chain: it is that of uid {manifest.uid}, and this job runs as uid {uid}")
    return manifest
