"""Why does the next generation not start? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvrx_chain.clock import render_age
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import QueuedTask
from nvrx_watch.detectors.chain_end import is_held
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import (
    active_hold,
    ended_at,
    final_verdict,
    has_ended,
    holds_node,
    ordered_jobs,
    seconds_since,
    task_zero_end,
)
from nvrx_watch.detectors.wording import listed, safe
from nvrx_watch.memory import LIVE_GENERATION_NAME
from nvrx_watch.model import Finding, Queue, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

_HOPELESS = (
    "JobHeld",
    "DependencyNeverSatisfied",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "PartitionInactive",
    "ReservationDeleted",
    "launch failed requeued held",
    "JobLaunchFailure",
)
"""Beginnings of pending reasons that time alone does not resolve (man squeue, "JOB REASON CODES")."""

_PER_JOB = ("PerJobLimit", "PerJob")
"""Ends of the reasons of a job that asks for more than its account or QOS ever gives."""

_BUSY = frozenset({"Priority", "Resources"})


def find_handoff_stuck(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """No generation runs, and the first one in the queue does not start."""
    queue = snapshot.queue
    if isinstance(queue, Unobserved) or final_verdict(snapshot) is not None or active_hold(snapshot) is not None:
        return
    jobs = ordered_jobs(snapshot)
    if any(any(map(holds_node, queue.running(job))) for job in jobs):
        return
    job = next((one for one in jobs if queue.pending(one) and task_zero_end(snapshot, one) is None), None)
    seconds = _idle_for(snapshot)
    if job is None or seconds is None or seconds <= thresholds.handoff:
        return
    # The chain goes on when task 0 starts: a spare that is held meanwhile is another matter.
    rows = tuple(row for row in queue.pending(job) if row.array_task_id in (0, None)) or queue.pending(job)
    blockers = _blockers(queue, jobs, job)
    moved = _moved(queue, job, rows)
    reasons = sorted({row.reason or row.raw_state for row in rows})
    severity = _severity(rows, blockers, moved)
    if severity is Severity.WARNING and snapshot.current() is None and not blockers:
        # A chain that has not begun yet waits for its turn like any job.
        severity = Severity.INFO
    yield Finding(
        detector="handoff_stuck",
        severity=severity,
        scope="chain",
        title=f"no generation runs for {render_age(seconds)}, and {job} does not start: {listed(reasons)}",
        details=tuple(_details(rows, blockers, moved)),
        advice=_advice(job, rows, blockers, severity),
        array_job_ids=(job,),
    )


def _idle_for(snapshot: Snapshot) -> float | None:
    """Since when nothing runs: as this watcher saw it, or since the newest end on record; None when neither says."""
    now, memory = snapshot.taken_at, snapshot.memory
    known: list[float] = []
    if LIVE_GENERATION_NAME in memory.seen and memory.value(LIVE_GENERATION_NAME) is None:
        known.append(memory.steady_seconds(LIVE_GENERATION_NAME, now) or 0.0)
    newest = next((one for one in reversed(snapshot.generations) if has_ended(snapshot, one)), None)
    since_end = seconds_since(ended_at(snapshot, newest), now) if newest is not None else None
    if since_end is not None:
        known.append(since_end)
    return max(known, default=None)


def _blockers(queue: Queue, jobs: Sequence[int], job: int) -> tuple[QueuedTask, ...]:
    """What singleton waits for: live tasks of earlier generations, and other jobs of the same name."""
    earlier = [row for one in jobs[: jobs.index(job)] for row in queue.alive(one)]
    name = queue.rows(job)[0].name
    return (*earlier, *(row for row in queue.foreign if row.name == name and not row.state.is_terminal))


def _moved(queue: Queue, job: int, rows: Sequence[QueuedTask]) -> str | None:
    """The partition of a generation that shares none with its siblings; None when it does."""
    own = {part for row in rows for part in row.partition.split(",") if part}
    others = {
        part for one in queue.arrays if one != job for row in queue.rows(one) for part in row.partition.split(",")
    }
    others.discard("")
    return ",".join(sorted(own)) if own and others and not own & others else None


def _severity(rows: Sequence[QueuedTask], blockers: Sequence[QueuedTask], moved: str | None) -> Severity:
    hopeless = any(_is_hopeless(row) for row in rows) or moved is not None
    unexplained = all(row.reason == "Dependency" for row in rows) and not blockers
    return Severity.CRITICAL if hopeless or unexplained else Severity.WARNING


def _is_hopeless(row: QueuedTask) -> bool:
    # Slurm puts brackets around some reasons, and a comma and more words behind others.
    reason = row.reason.strip("()")
    return is_held(row) or reason.startswith(_HOPELESS) or reason.split(",")[0].endswith(_PER_JOB)


def _details(rows: Sequence[QueuedTask], blockers: Sequence[QueuedTask], moved: str | None) -> Iterator[str]:
    if blockers:
        yield f"it waits for {listed(f'{row.spec} {row.raw_state}' for row in blockers)}"
    if moved is not None:
        yield f"it is in partition {safe(moved)}, and no other generation is: somebody moved it"
    dependencies = sorted({row.dependency for row in rows if row.dependency})
    if dependencies:
        yield f"dependency: {listed(dependencies)}"


def _advice(job: int, rows: Sequence[QueuedTask], blockers: Sequence[QueuedTask], severity: Severity) -> str:
    if any(map(is_held, rows)):
        return f"release it: scontrol release {job} (JobHeldAdmin: an administrator has to)"
    if blockers:
        return "end what it waits for"
    if severity is not Severity.CRITICAL and {row.reason for row in rows} <= _BUSY:
        return f"the cluster is busy: squeue --start -j {job} shows when Slurm expects to start it"
    return f"it does not start by itself: scontrol show job {job}"


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="handoff_stuck",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE, Source.RECORDS}),
        fires="no generation runs for the limit although one is queued: a warning while the cluster is busy or"
        " something is in its way, critical when its pending reason does not pass by itself (held, a dependency that is"
        " never satisfied, bad constraints, limits of the account), when it was moved to a partition of its own, or"
        " when it waits for a dependency and nothing is there to wait for",
        quiet="a generation runs; the chain is held by hold.json or over; it is not known since when nothing runs",
        todo="read the reason; release a hold, move the job back, or cancel what it waits for",
        check=find_handoff_stuck,
    ),
)
