"""Questions that several detectors ask of a snapshot: did task 0 end, how and when, how long did it run. Pure.

Witnesses in the order of trust: the queue's own row, accounting, `record.json`, `closed.json`. What none of them
states is unknown, and unknown is never an end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import msgspec

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome, Closed, GenerationRecord, Hold
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.slurm.model import AccountedTask, QueuedTask
from nvrx_chain.slurm.states import JobState, parse_job_state
from nvrx_watch.memory import Memory, task_zero_name
from nvrx_watch.model import Generation, Queue, Snapshot

# squeue and sacct show whole seconds.
_SUBMIT_SLACK_SECONDS = 2.0

_WITHOUT_NODE = frozenset({JobState.COMPLETING, JobState.REVOKED})

_AS_OUTCOME = {
    JobState.COMPLETED: Outcome.COMPLETED,
    JobState.TIMEOUT: Outcome.WALLTIME,
    JobState.DEADLINE: Outcome.WALLTIME,
    JobState.CANCELLED: Outcome.TERMINATED,
    JobState.PREEMPTED: Outcome.PREEMPTED,
    JobState.NODE_FAIL: Outcome.LEASE_LOST,
}
"""What an end that only Slurm saw is nearest to; every other state is `failed`."""


class TaskZeroEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Slurm ended task 0. `ended_at` None: it is not known when."""

    state: JobState
    raw_state: str
    witness: str
    ended_at: datetime | None
    exit_code: int | None = None
    cancelled_by: int | None = None


def seconds_since(at: datetime | None, now: datetime) -> float | None:
    """How long ago that was, None for unknown. A time in the future is just now: clocks differ."""
    if at is None or at.tzinfo is None:
        # A time without a zone can mean any of 24 hours.
        return None
    return max(0.0, (now - at).total_seconds())


def hours(seconds: float) -> float:
    """Seconds as hours."""
    return seconds / 3600


def ordered_jobs(snapshot: Snapshot) -> tuple[int, ...]:
    """The array jobs of the chain in the order of their submission, those that only the queue shows last."""
    known = [one.array_job_id for one in snapshot.generations]
    listed = snapshot.queue.arrays if isinstance(snapshot.queue, Queue) else ()
    return tuple(dict.fromkeys((*known, *sorted(listed))))


def later_jobs(snapshot: Snapshot, array_job_id: int) -> tuple[int, ...]:
    """The array jobs of the chain after this one; () when it is none of the chain's."""
    jobs = ordered_jobs(snapshot)
    return jobs[jobs.index(array_job_id) + 1 :] if array_job_id in jobs else ()


def active_hold(snapshot: Snapshot) -> Hold | None:
    """The hold that nobody has released, None when there is none or it cannot be read."""
    hold = snapshot.hold
    return hold if isinstance(hold, Hold) and hold.released_at is None else None


def released_at(snapshot: Snapshot) -> datetime | None:
    """When the chain was last released: what failed before was looked at by a person."""
    return parse_time(snapshot.hold.released_at) if isinstance(snapshot.hold, Hold) else None


def final_verdict(snapshot: Snapshot) -> ChainOutcome | None:
    """How the chain ended, None while it has not or that cannot be read."""
    return snapshot.verdict if isinstance(snapshot.verdict, ChainOutcome) else None


def holds_node(row: QueuedTask) -> bool:
    """Whether a task holds a node and is not on its way out. REVOKED: it runs on another cluster of the federation."""
    return not (row.state.is_terminal or row.state.is_pending or row.state in _WITHOUT_NODE)


def has_seen_jobs(snapshot: Snapshot) -> bool:
    """Whether anything of the chain was ever visible: an empty queue then means an empty queue."""
    queue = snapshot.queue
    if isinstance(queue, Queue) and (queue.sees_user or queue.arrays):
        return True
    if not isinstance(snapshot.accounting, Unobserved) and any(snapshot.accounting.values()):
        return True
    names = (task_zero_name(one.array_job_id) for one in snapshot.generations)
    return any(snapshot.memory.value(name) not in (None, "absent") or snapshot.memory.changes(name) for name in names)


def task_zero_end(snapshot: Snapshot, array_job_id: int) -> TaskZeroEnd | None:
    """How Slurm ended task 0; None while it lives and while Slurm says nothing about it.

    Accounting is asked only when the queue does not list the task: it lags, and a row that is there is newer.
    """
    queue = snapshot.queue if isinstance(snapshot.queue, Queue) else None
    row = queue.task(array_job_id, 0) if queue is not None else None
    accounted = _accounted_end(snapshot, array_job_id)
    if row is not None:
        if not row.state.is_terminal:
            return None
        # The same end in accounting has its time; another one belongs to an earlier attempt.
        same = accounted if accounted is not None and accounted.state is row.state else None
        return TaskZeroEnd(
            state=row.state,
            raw_state=row.raw_state,
            witness="squeue",
            ended_at=_end_time(same),
            exit_code=same.exit_code if same is not None else None,
            cancelled_by=same.cancelled_by if same is not None else None,
        )
    if queue is not None and any(one.array_task_id is None for one in queue.alive(array_job_id)):
        # A row that stands for tasks which could not be told apart: task 0 may be one of them.
        return None
    if accounted is None:
        return None
    return TaskZeroEnd(
        state=accounted.state,
        raw_state=accounted.raw_state,
        witness="sacct",
        ended_at=_end_time(accounted),
        exit_code=accounted.exit_code,
        cancelled_by=accounted.cancelled_by,
    )


def ended_for(snapshot: Snapshot, array_job_id: int, end: TaskZeroEnd) -> float | None:
    """Seconds since task 0 ended: by Slurm's time, else since this watcher has seen it ended. None: not known yet."""
    by_slurm = seconds_since(end.ended_at, snapshot.taken_at)
    return by_slurm if by_slurm is not None else _seen_ended_for(snapshot.memory, array_job_id, snapshot.taken_at)


def has_ended(snapshot: Snapshot, generation: Generation) -> bool:
    """Whether a generation is over, by the best witness that speaks."""
    job = generation.array_job_id
    if isinstance(snapshot.queue, Queue):
        row = snapshot.queue.task(job, 0)
        if row is not None:
            return row.state.is_terminal
    if task_zero_end(snapshot, job) is not None:
        return True
    record = generation.record
    if isinstance(record, GenerationRecord) and record.outcome is not None:
        return True
    return isinstance(generation.closed, Closed)


def outcome_of(snapshot: Snapshot, generation: Generation) -> Outcome | None:
    """How a generation went: in its own words where it left any, else as Slurm ended its task 0."""
    if isinstance(generation.record, GenerationRecord) and generation.record.outcome is not None:
        return generation.record.outcome
    if isinstance(generation.closed, Closed):
        return generation.closed.outcome
    end = task_zero_end(snapshot, generation.array_job_id)
    return _AS_OUTCOME.get(end.state, Outcome.FAILED) if end is not None else None


def ended_at(snapshot: Snapshot, generation: Generation) -> datetime | None:
    """When a generation ended; None when no witness has a time."""
    end = task_zero_end(snapshot, generation.array_job_id)
    if end is not None and end.ended_at is not None:
        return end.ended_at
    if isinstance(generation.record, GenerationRecord):
        at = parse_time(generation.record.ended_at)
        if at is not None:
            return at
    return parse_time(generation.closed.closed_at) if isinstance(generation.closed, Closed) else None


def started_at(snapshot: Snapshot, generation: Generation) -> datetime | None:
    """When task 0 of a generation began to run; None when no witness has a time."""
    queue = snapshot.queue
    row = queue.task(generation.array_job_id, 0) if isinstance(queue, Queue) else None
    if row is not None and row.started_at is not None:
        return row.started_at
    for accounted in _task_zero_rows(snapshot, generation.array_job_id):
        if accounted.started_at is not None:
            return accounted.started_at
    if isinstance(generation.record, GenerationRecord):
        return parse_time(generation.record.started_at)
    cycles = generation.cycles if isinstance(generation.cycles, Sequence) else ()
    starts = (one.started_at for one in cycles)
    return min((at for at in starts if at is not None and at.tzinfo is not None), default=None)


def run_seconds(snapshot: Snapshot, generation: Generation) -> float | None:
    """For how long an ended generation ran; None when that is not known. Never negative."""
    if isinstance(generation.record, GenerationRecord):
        stated = generation.record.run_seconds
        if stated is not None and math.isfinite(stated) and stated >= 0:
            return stated
    begin, end = started_at(snapshot, generation), ended_at(snapshot, generation)
    return max(0.0, (end - begin).total_seconds()) if begin is not None and end is not None else None


def _task_zero_rows(snapshot: Snapshot, array_job_id: int) -> tuple[AccountedTask, ...]:
    """Accounting's rows of task 0, without those of an earlier job that had the same id."""
    if isinstance(snapshot.accounting, Unobserved):
        return ()
    rows = [row for row in snapshot.accounting.get(array_job_id, ()) if row.array_task_id == 0]
    submitted = _submitted_at(snapshot, array_job_id) if rows else None
    if submitted is not None:
        # Slurm gives ids out again after an unclean death of its controller.
        rows = [
            row
            for row in rows
            if row.submitted_at is None or (submitted - row.submitted_at).total_seconds() <= _SUBMIT_SLACK_SECONDS
        ]
    return tuple(rows)


def _submitted_at(snapshot: Snapshot, array_job_id: int) -> datetime | None:
    rows = snapshot.queue.rows(array_job_id) if isinstance(snapshot.queue, Queue) else ()
    times = [row.submitted_at for row in rows if row.submitted_at is not None]
    if times:
        return min(times)
    generation = snapshot.generation(array_job_id)
    return generation.submitted_at if generation is not None else None


def _accounted_end(snapshot: Snapshot, array_job_id: int) -> AccountedTask | None:
    rows = _task_zero_rows(snapshot, array_job_id)
    if not rows or any(not row.state.is_terminal for row in rows):
        return None
    # A time without a zone can mean any of 24 hours, and says nothing.
    timed = [(row.ended_at, row) for row in rows if row.ended_at is not None and row.ended_at.tzinfo is not None]
    return max(timed, key=lambda pair: pair[0])[1] if timed else rows[-1]


def _end_time(row: AccountedTask | None) -> datetime | None:
    """The end, None for one that lies before the task was submitted: such a time says nothing."""
    if row is None or row.ended_at is None or row.ended_at.tzinfo is None:
        return None
    submitted = row.submitted_at if row.submitted_at is not None and row.submitted_at.tzinfo is not None else None
    impossible = submitted is not None and row.ended_at < submitted
    return None if impossible else row.ended_at


def _seen_ended_for(memory: Memory, array_job_id: int, now: datetime) -> float | None:
    value = memory.value(task_zero_name(array_job_id))
    if not isinstance(value, str) or not parse_job_state(value).state.is_terminal:
        return None
    return memory.steady_seconds(task_zero_name(array_job_id), now)
