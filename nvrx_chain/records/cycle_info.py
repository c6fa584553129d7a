"""Cycle records in NVRx's format, as ft_launcher 0.7.0 writes them into `cycle_infos/`: one file a restart cycle.

Beside them nvrx-chain's own launcher keeps what that format has no field for, under names that NVRx's readers do not
look at. The write counter in these files, their field `generation`, is no generation of a chain (docs/glossary.md).
Touches: the cycle_infos directory, reads only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nvrx_chain.errors import UsageError
from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import GenerationDirectory

_JOB = re.compile(r"[\w-]{0,64}", re.ASCII)
_CYCLE = re.compile(r"cycle_info\.(?P<job>[^./]*)\.(?P<attempt>\d{1,9})\.(?P<cycle>\d{1,9})", re.ASCII)


class CycleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One record: all ten fields are always there. Times are ISO-8601 in UTC with a Z, "" for not yet.

    `active_nodes` and `standby_nodes` are node lists as Slurm writes them, each node once. `active_ranks` has the group
    rank of every launcher that trains, node after node as `active_nodes` expands, in runs (`0-3,6`).
    """

    job_id: str
    attempt_index: int
    cycle_number: int
    cycle_start_time: str
    cycle_end_time: str = ""
    cycle_log_file: str = ""
    active_nodes: str
    standby_nodes: str
    write_generation: str = msgspec.field(default="0", name="generation")
    active_ranks: str


class ExcludedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """An array task that was kept out when the cycle began."""

    group: str
    nodes: tuple[str, ...]
    why: str


class CycleEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why a cycle ended: the failure that was announced first, or the end of the job.

    `reason` is a cause (worker, hang, agent_lost, unhealthy, workload, manual) or a reason of the job. `exit_code` is
    that of the rank, None where a signal ended it or no rank did.
    """

    reason: str
    agent_id: str = ""
    node: str = ""
    rank: int | None = None
    exit_code: int | None = None
    signal: str = ""
    section: str = ""
    error_file: str = ""
    detail: str = ""


class CycleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`cycle_facts.<job>.<attempt>.<cycle>.json`. Seconds are on the clock of the rendezvous host.

    `fill_seconds`: from the opening of the round until it was known who trains. `run_seconds`: from then to its end.
    """

    schema: int = 1
    job_id: str
    attempt_index: int
    cycle_number: int
    started_at: str
    ended_at: str = ""
    active: tuple[str, ...]
    """Agent ids by group rank; the number before the dash is the place in the topology."""
    excluded: tuple[ExcludedGroup, ...] = ()
    fill_seconds: float | None = None
    run_seconds: float | None = None
    end: CycleEnd | None = None


@dataclass(frozen=True, slots=True)
class CycleDirectory:
    """The names of the records of one job and attempt. Make it with `open_cycle_directory`."""

    path: Path
    job_id: str
    attempt: int

    def record(self, cycle: int) -> Path:
        return self.path / f"cycle_info.{self.job_id}.{self.attempt}.{cycle}"

    @property
    def current(self) -> Path:
        """The link to the newest record."""
        return self.path / f"cycle_info.{self.job_id}.current"

    def facts(self, cycle: int) -> Path:
        return self.path / f"cycle_facts.{self.job_id}.{self.attempt}.{cycle}.json"

    @property
    def outcome(self) -> Path:
        """How the job of launchers ended."""
        return self.path / f"outcome.{self.job_id}.{self.attempt}.json"

    def owns(self, name: str) -> bool:
        """Whether a name in the directory is a record or the outcome of this job and attempt."""
        return name == self.outcome.name or (
            parse_cycle_name(name) is not None and name.startswith(f"cycle_info.{self.job_id}.{self.attempt}.")
        )


def open_cycle_directory(path: Path, job_id: str, attempt: int) -> CycleDirectory:
    """The names for a job, which may be "" outside Slurm. Raises UsageError for an id that cannot be part of a name."""
    if _JOB.fullmatch(job_id) is None or attempt < 0:
        raise UsageError(
            f"naming the cycle records of job {job_id[:80]!r}, attempt {attempt}",
            hint="letters, digits, _ and - make a job id; attempts count from 0",
        )
    return CycleDirectory(path.absolute(), job_id, attempt)


def parse_cycle_name(name: str) -> tuple[int, int] | None:
    """`cycle_info.<job>.<attempt>.<cycle>` -> (attempt, cycle); None for the link `.current`, `*.tmp` and the rest."""
    match = _CYCLE.fullmatch(name)
    return (int(match["attempt"]), int(match["cycle"])) if match else None


def count_cycles(directory: GenerationDirectory) -> int | None:
    """Restart cycles that the launcher has recorded so far, the first included; None when it records none."""
    names = list_names(directory.cycle_infos)
    if not isinstance(names, tuple):
        return None
    return sum(parse_cycle_name(name) is not None for name in names) or None
