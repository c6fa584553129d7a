"""What one pass saw of one chain (`Snapshot`), and what it makes of that (`Finding`). Pure vocabulary.

Every source is one of: a value, None ("looked, there is none") or `Unobserved` ("could not look"). A detector gets a
snapshot and thresholds, nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import (
    ChainOutcome,
    Closed,
    Ending,
    GenerationRecord,
    Hold,
    Lease,
    NoRestart,
    Rendezvous,
)
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.slurm.model import AccountedTask, Node, QueuedTask
from nvrx_watch.memory import Memory


class Severity(str, enum.Enum):
    """How much a finding matters. Only a critical one turns the exit code to 2."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Source(str, enum.Enum):
    """Where a pass looks. A detector is skipped while a source that it needs could not be observed."""

    QUEUE = "queue"
    """squeue."""
    ACCOUNTING = "accounting"
    """sacct."""
    NODES = "nodes"
    """sinfo, for the nodes of the running generation."""
    RECORDS = "records"
    """chain.json, submissions, control files, verdict and hold."""
    CYCLES = "cycles"
    """The launcher's cycle records."""
    ITERATION = "iteration"
    """The checkpoint iteration."""


class ActionKind(str, enum.Enum):
    """What the watcher can do; everything but CANCEL_PENDING needs `--allow`."""

    CANCEL_PENDING = "cancel_pending"
    """Cancel the pending tasks of one generation by id."""
    FENCE = "fence"
    """Prove task 0 of a generation dead, close that generation and cancel its tasks."""
    CANCEL_CHAIN = "cancel-chain"
    """Cancel what is queued of a chain that has a no-restart verdict."""
    EXTEND = "extend"
    """Submit further generations."""
    HOLD = "hold"
    """Keep the queued generations from starting."""


@dataclass(frozen=True, slots=True)
class Unavailable(Unobserved):
    """The site has no such source and will have none tomorrow: a reduced mode that is said once, no degraded pass."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a pass is about. `key` is stable over the life of the chain: it stands in state files and alert keys.

    `manifest` is None for a chain that nvrx-chain did not submit; then `chain_id` is None too, and its jobs are known
    by name and user only. `uid` None: the user is not known on this machine. `is_user_shown`: the user database gives
    the name of the user to the owner of the files.
    """

    key: str
    name: str
    user: str
    uid: int | None
    cluster: str | None = None
    chain_id: str | None = None
    run_directory: Path | None = None
    manifest: ChainManifest | None = None
    max_restarts: int | None = None
    is_user_shown: bool = True

    @property
    def is_ours(self) -> bool:
        """Whether nvrx-chain submitted it, so that its files and comments can be relied on."""
        return self.manifest is not None


class Cycle(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One restart cycle of a launcher, as its cycle record states it. A struct: 20,000 of them are made in a pass.

    `ended_at` None: the record is still open. `last_iteration`: the last training iteration in the cycle's log, None
    where the log was not read or shows none. Nodes are expanded names.
    """

    attempt: int
    number: int
    started_at: datetime | None
    ended_at: datetime | None
    active_nodes: tuple[str, ...]
    standby_nodes: tuple[str, ...]
    log_file: str
    last_iteration: int | None = None

    def seconds(self) -> float | None:
        """How long it lasted; None while it is open or its times cannot be read. Never negative."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


class LogActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The files into which a generation logs: their sizes together, the newest training iteration and its rate.

    `iteration` and `iterations_per_second` come from the tail of the newest cycle log, None when it shows none.
    """

    bytes: int
    newest: str
    iteration: int | None = None
    iterations_per_second: float | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One array job of the chain, from its files. Empty where it has no directory (it has not started, or is foreign).

    `cycles` are in order, None when no record of a cycle is there; `unreadable_cycles` counts records that could not
    be read. `rendezvous` is None until task 0 has published. `leases` has the last lease of each task.
    """

    array_job_id: int
    sequence: int
    submitted_at: datetime | None = None
    has_directory: bool = False
    rendezvous: Rendezvous | Unobserved | None = None
    closed: Closed | Unobserved | None = None
    record: GenerationRecord | Unobserved | None = None
    no_restart: NoRestart | Unobserved | None = None
    leases: Mapping[int, Lease] = msgspec.field(default_factory=dict)
    joined: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()
    cycles: Sequence[Cycle] | Unobserved | None = None
    unreadable_cycles: int = 0
    log: LogActivity | Unobserved | None = None

    @property
    def has_begun_on_disk(self) -> bool:
        """Whether its files show that task 0 ran. A file that cannot be read shows nothing."""
        return (
            isinstance(self.rendezvous, Rendezvous)
            or isinstance(self.record, GenerationRecord)
            or bool(isinstance(self.cycles, Sequence) and self.cycles)
        )


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """What one squeue shows of the chain.

    `arrays` has the rows of each array job that is the chain's beyond doubt; `doubtful` array jobs with live rows that
    are on record but cannot be shown to be the chain's, and why; `foreign` live jobs that carry the chain's name (and
    so take part in its singleton) or its comment without being on record. `sees_user`: whether the reading had any
    row of the chain's user at all.
    """

    arrays: Mapping[int, tuple[QueuedTask, ...]]
    doubtful: Mapping[int, str] = msgspec.field(default_factory=dict)
    foreign: tuple[QueuedTask, ...] = ()
    sees_user: bool = True
    read_at: datetime | None = None

    def rows(self, array_job_id: int) -> tuple[QueuedTask, ...]:
        """Every listed task of one array job, ended ones too."""
        return self.arrays.get(array_job_id, ())

    def alive(self, array_job_id: int) -> tuple[QueuedTask, ...]:
        """The tasks that Slurm has not ended."""
        return tuple(row for row in self.rows(array_job_id) if not row.state.is_terminal)

    def running(self, array_job_id: int) -> tuple[QueuedTask, ...]:
        """The tasks that hold a node, COMPLETING ones included."""
        return tuple(row for row in self.alive(array_job_id) if not row.state.is_pending)

    def pending(self, array_job_id: int) -> tuple[QueuedTask, ...]:
        """The tasks that wait."""
        return tuple(row for row in self.rows(array_job_id) if row.state.is_pending)

    def task(self, array_job_id: int, array_task_id: int) -> QueuedTask | None:
        """The row of one task; a live row wins over an ended one of the same index."""
        found = [row for row in self.rows(array_job_id) if row.array_task_id == array_task_id]
        found.sort(key=lambda row: row.state.is_terminal)
        return found[0] if found else None


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The sources that did not answer and why, those that this site lacks, and what was skipped in the others."""

    unobserved: Mapping[Source, str] = msgspec.field(default_factory=dict)
    unavailable: Mapping[Source, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What was skipped inside sources that did answer, e.g. `3 cycle records of job 12 are unreadable`."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that one pass saw of one chain. Generations are in the order of their submission."""

    subject: Subject
    taken_at: datetime
    generations: tuple[Generation, ...]
    queue: Queue | Unobserved
    accounting: Mapping[int, tuple[AccountedTask, ...]] | Unobserved
    nodes: Mapping[str, Node] | Unobserved
    iteration: int | Unobserved | None
    verdict: ChainOutcome | Unobserved | None
    hold: Hold | Unobserved | None
    memory: Memory
    sources: SourceReport
    can_write_run_directory: bool | None = None
    free_bytes: int | None = None
    file_clock_ahead_seconds: float | None = None
    """By how much the newest record of the run directory lies in this machine's future; None where none does."""
    ending: Ending | None = None
    """The order that the generation which runs is the last; None when there is none or it cannot be read."""
    successor: str | None = None
    """The chain that the run directory holds instead of this one; None while it holds this one or is not known."""

    def generation(self, array_job_id: int) -> Generation | None:
        """One generation by its array job id."""
        return next((one for one in self.generations if one.array_job_id == array_job_id), None)

    def current(self) -> Generation | None:
        """The newest generation that has begun: a task of it holds or held a node, or it has published.

        None before the first has begun. With the queue unobserved only the files are asked.
        """
        for one in reversed(self.generations):
            if one.has_begun_on_disk:
                return one
            rows = self.queue.rows(one.array_job_id) if isinstance(self.queue, Queue) else ()
            if any(_has_begun(row) for row in rows):
                return one
        return None

    def queued(self) -> tuple[Generation, ...]:
        """The generations of which every live task waits. Empty while the queue is unobserved: ask `queue` first."""
        if isinstance(self.queue, Unobserved):
            return ()
        found = []
        for one in self.generations:
            alive = self.queue.alive(one.array_job_id)
            if alive and all(row.state.is_pending for row in alive) and one.closed is None and one.rendezvous is None:
                found.append(one)
        return tuple(found)


def _has_begun(row: QueuedTask) -> bool:
    """A task that was cancelled while it waited is ended without a node; Slurm gives it its end as its start."""
    return not row.state.is_pending and (bool(row.nodelist) or not row.state.is_terminal)


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a detector would have done. Nothing happens without `--act` and, but for CANCEL_PENDING, `--allow`.

    `command` is what the owner of the chain types to do the same by hand.
    """

    kind: ActionKind
    array_job_id: int | None
    why: str
    command: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong (or, INFO, worth knowing).

    `scope` names what it is about (an array job, a node, `chain`) and never grows or counts: with `detector` and the
    subject's key it is the identity of an incident. `title` is one line; `details` are further lines; `advice` what a
    tired person does now.
    """

    detector: str
    severity: Severity
    scope: str
    title: str
    details: tuple[str, ...] = ()
    advice: str = ""
    array_job_ids: tuple[int, ...] = ()
    action: ActionRequest | None = None

    @property
    def key(self) -> str:
        """The identity of the incident within its chain."""
        return f"{self.detector}:{self.scope}"
