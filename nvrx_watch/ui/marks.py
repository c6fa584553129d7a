"""A snapshot in words: how the chain is, how each generation is, its tasks folded by state. Pure.

What could not be looked at is UNKNOWN, and never "ended".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome, Closed, GenerationRecord, Hold, Rendezvous
from nvrx_chain.slurm.array import render_array_spec
from nvrx_chain.slurm.model import AccountedTask, QueuedTask
from nvrx_chain.slurm.states import JobState
from nvrx_watch.model import Generation, Queue, Severity, Snapshot
from nvrx_watch.ui.words import escape

SEVERITY_ORDER = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
"""Worst first."""


class ChainWord(str, enum.Enum):
    """How a chain is."""

    ENDED = "ended"
    """It has a verdict and nothing of it runs."""
    RUNNING = "running"
    HELD = "held"
    """Nothing runs, and a hold keeps the rest from starting."""
    QUEUED = "queued"
    RAN_DRY = "ran dry"
    """Slurm shows jobs of its user and none of the chain, and there is no verdict."""
    NOTHING_LISTED = "nothing listed"
    """Slurm shows no job of its user at all: over, or not for this watcher to see."""
    NOT_SUBMITTED = "not submitted"
    UNKNOWN = "unknown"


class MarkKind(str, enum.Enum):
    """How a generation is."""

    ENDED = "ended"
    RUNNING = "running"
    LEFT_OVER = "left over"
    """It is over, and tasks of it are still in the queue."""
    QUEUED = "queued"
    UNKNOWN = "unknown"


class GenerationMark(msgspec.Struct, frozen=True, kw_only=True):
    """One generation in a word: its outcome, the state of its task 0, or how it is in the queue."""

    array_job_id: int
    sequence: int
    kind: MarkKind
    word: str


class TaskFold(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one generation in one state. `indices` as sbatch takes them; `at_least`: more may be in it."""

    state: str
    count: int
    indices: str
    at_least: bool
    reasons: tuple[str, ...] = ()


def chain_word(snapshot: Snapshot) -> ChainWord:
    """The state of the chain; a queue that was not seen leaves only what the files settle."""
    queue = snapshot.queue
    ended, held = isinstance(snapshot.verdict, ChainOutcome), hold_in_force(snapshot) is not None
    alive = [] if isinstance(queue, Unobserved) else [row for job in queue.arrays for row in queue.alive(job)]
    if any(not row.state.is_pending for row in alive):
        return ChainWord.RUNNING
    if ended:
        return ChainWord.ENDED
    if held:
        return ChainWord.HELD
    if alive:
        return ChainWord.QUEUED
    # A job that cannot be shown to be the chain's may well be it: only a sure answer is "dry".
    if isinstance(queue, Unobserved) or queue.doubtful:
        return ChainWord.UNKNOWN
    if not queue.sees_user:
        return ChainWord.NOTHING_LISTED
    return ChainWord.RAN_DRY if snapshot.generations else ChainWord.NOT_SUBMITTED


def hold_in_force(snapshot: Snapshot) -> Hold | None:
    """The hold, when it is known and was not released."""
    hold = snapshot.hold
    return hold if isinstance(hold, Hold) and hold.released_at is None else None


def mark_generations(snapshot: Snapshot) -> tuple[GenerationMark, ...]:
    """One mark per generation, in their order."""
    return tuple(mark_generation(snapshot, one) for one in snapshot.generations)


def mark_generation(snapshot: Snapshot, one: Generation) -> GenerationMark:
    """How one generation is, from its own files first and the queue second."""
    kind, word = _kind_and_word(snapshot, one)
    return GenerationMark(array_job_id=one.array_job_id, sequence=one.sequence, kind=kind, word=word)


def fold_tasks(rows: Sequence[QueuedTask]) -> tuple[TaskFold, ...]:
    """Tasks by state, what runs first and what has ended last."""
    groups: dict[str, list[QueuedTask]] = {}
    for row in sorted(rows, key=_liveliness):
        groups.setdefault(_state_word(row), []).append(row)
    return tuple(_fold(state, group) for state, group in groups.items())


def accounted_rows(snapshot: Snapshot, array_job_id: int) -> tuple[AccountedTask, ...]:
    """The accounting of one generation; empty where it could not be read."""
    return () if isinstance(snapshot.accounting, Unobserved) else snapshot.accounting.get(array_job_id, ())


def _kind_and_word(snapshot: Snapshot, one: Generation) -> tuple[MarkKind, str]:
    queue, outcome = snapshot.queue, outcome_word(one)
    if isinstance(queue, Unobserved) or one.array_job_id in queue.doubtful:
        word = outcome or _ending(accounted_rows(snapshot, one.array_job_id))
        return (MarkKind.ENDED, word) if word else (MarkKind.UNKNOWN, "?")
    alive = queue.alive(one.array_job_id)
    if outcome is not None:
        return (MarkKind.LEFT_OVER, f"{outcome}, {len(alive)} left") if alive else (MarkKind.ENDED, outcome)
    if not alive:
        return _unlisted(snapshot, queue, one)
    if any(not row.state.is_pending for row in alive):
        return MarkKind.RUNNING, _running_word(alive)
    if _has_begun(one) or _ending(queue.rows(one.array_job_id)) is not None:
        return MarkKind.LEFT_OVER, f"over, {len(alive)} left"
    return MarkKind.QUEUED, "queued"


def _unlisted(snapshot: Snapshot, queue: Queue, one: Generation) -> tuple[MarkKind, str]:
    ending = _ending(queue.rows(one.array_job_id)) or _ending(accounted_rows(snapshot, one.array_job_id))
    if ending is not None:
        return MarkKind.ENDED, ending
    if not queue.sees_user or isinstance(one.closed, Unobserved) or isinstance(one.record, Unobserved):
        return MarkKind.UNKNOWN, "?"
    # Slurm forgets an ended job after a while: it is over, nobody wrote down how.
    return (MarkKind.ENDED, "no word") if _has_begun(one) else (MarkKind.UNKNOWN, "not listed")


def outcome_word(one: Generation) -> str | None:
    """The outcome that the generation's own files state."""
    if isinstance(one.closed, Closed):
        return one.closed.outcome.value
    if isinstance(one.record, GenerationRecord) and one.record.outcome is not None:
        return one.record.outcome.value
    return None


def _ending(rows: Sequence[QueuedTask] | Sequence[AccountedTask]) -> str | None:
    """The terminal state of task 0, or of every task when task 0 is not shown."""
    first = [row for row in rows if row.array_task_id == 0] or list(rows)
    if not first or not all(row.state.is_terminal for row in first):
        return None
    return first[-1].state.value


def _has_begun(one: Generation) -> bool:
    has_cycles = isinstance(one.cycles, Sequence) and bool(one.cycles)
    return has_cycles or isinstance(one.rendezvous, Rendezvous) or isinstance(one.record, GenerationRecord)


def _running_word(alive: Sequence[QueuedTask]) -> str:
    holding = [row for row in alive if not row.state.is_pending]
    if all(row.state is JobState.COMPLETING for row in holding):
        return "completing"
    return "running"


def _liveliness(row: QueuedTask) -> tuple[bool, bool, str]:
    return row.state.is_terminal, row.state.is_pending, _state_word(row)


def _state_word(row: QueuedTask) -> str:
    return escape(row.raw_state, 40) if row.state is JobState.UNKNOWN else row.state.value


def _fold(state: str, rows: Sequence[QueuedTask]) -> TaskFold:
    known = sorted({row.array_task_id for row in rows if row.array_task_id is not None})
    indices = render_array_spec(known) if known and known[0] >= 0 else ",".join(map(str, known))
    reasons = {row.reason: None for row in rows if row.state.is_pending and row.reason not in ("", "None")}
    unsure = any(row.array_task_id is None for row in rows)
    return TaskFold(
        state=state,
        count=len(known) + sum(row.array_task_id is None for row in rows),
        indices=indices,
        at_least=unsure,
        reasons=tuple(escape(reason, 60) for reason in reasons),
    )
