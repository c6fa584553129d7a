"""Spares that task 0 left behind: they hold the chain's singleton, or nodes, for a rendezvous that is gone. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_chain.clock import render_age
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import QueuedTask
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import TaskZeroEnd, ended_for, holds_node, task_zero_end
from nvrx_watch.detectors.wording import cancel_command, count, listed, safe, specs
from nvrx_watch.model import ActionKind, ActionRequest, Finding, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

_NEW_PATIENCE = 2
"""Running spares are critical after so many graces: by then they do not leave by themselves."""


def find_orphaned_generation(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Generations whose task 0 Slurm has ended and whose spares still wait."""
    for job, end, seconds in _ended_generations(snapshot):
        assert not isinstance(snapshot.queue, Unobserved)
        rows = snapshot.queue.pending(job)
        if not rows or seconds <= thresholds.orphan_grace:
            continue
        why = f"task 0 of {job} ended ({safe(end.raw_state)}, {end.witness}) {render_age(seconds)} ago"
        command = cancel_command(rows)
        yield Finding(
            detector="orphaned_generation",
            severity=Severity.CRITICAL,
            scope=str(job),
            title=f"{why}, and {count(len(rows), 'spare')} of it still wait for a node",
            details=(f"pending: {_named(rows)}", "the next generation cannot start before they are gone"),
            advice=f"cancel them by id: {command}"
            if command
            else "Slurm names them in one row only: look at squeue -r",
            array_job_ids=(job,),
            action=_release(job, why, command) if command else None,
        )


def find_orphaned_running_spares(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Generations whose task 0 Slurm has ended and whose other tasks still hold nodes."""
    for job, end, seconds in _ended_generations(snapshot):
        assert not isinstance(snapshot.queue, Unobserved)
        rows = tuple(row for row in snapshot.queue.running(job) if holds_node(row) and row.array_task_id != 0)
        if not rows or seconds <= thresholds.running_orphan_grace:
            continue
        late = seconds > _NEW_PATIENCE * thresholds.running_orphan_grace
        command = cancel_command(rows)
        generation = snapshot.generation(job)
        left = sum(row.array_task_id in generation.left for row in rows) if generation is not None else 0
        details = [f"holding nodes: {listed(f'{row.spec} on {row.nodelist}' for row in rows)}"]
        if left:
            details.append(f"{count(left, 'task')} of them say that their ranks are gone")
        yield Finding(
            detector="orphaned_running_spares",
            severity=Severity.CRITICAL if late else Severity.WARNING,
            scope=str(job),
            title=f"task 0 of {job} ended ({safe(end.raw_state)}) {render_age(seconds)} ago,"
            f" and {count(len(rows), 'task')} of it still hold nodes",
            details=tuple(details),
            advice=f"cancel them by id: {command}"
            if command
            else "look at squeue -r: Slurm names them in one row only",
            array_job_ids=(job,),
        )


def _ended_generations(snapshot: Snapshot) -> Iterator[tuple[int, TaskZeroEnd, float]]:
    """(array job, how its task 0 ended, seconds since). An end without a time is left out: it may be of just now."""
    if isinstance(snapshot.queue, Unobserved):
        return
    for job in snapshot.queue.arrays:
        end = task_zero_end(snapshot, job)
        seconds = ended_for(snapshot, job, end) if end is not None else None
        if end is not None and seconds is not None:
            yield job, end, seconds


def _named(rows: tuple[QueuedTask, ...]) -> str:
    return listed(specs(rows)) or "tasks that Slurm shows in one row"


def _release(job: int, why: str, command: str) -> ActionRequest:
    return ActionRequest(kind=ActionKind.CANCEL_PENDING, array_job_id=job, why=why, command=command)


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="orphaned_generation",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE}),
        fires="task 0 of a generation is in an ended state, by its queue row or, when squeue no longer lists it, by"
        " accounting, for longer than the grace, and tasks of the same generation are still pending",
        quiet="task 0 is COMPLETING, in a state that is not known, or listed by neither squeue nor sacct; it is not"
        " known since when it has ended; the spares are gone within the grace, as the peers' own clean-up does it",
        todo="run the scancel that is printed (`--act` does the same: these tasks, by id, after reading the queue"
        " again). The next generation starts as soon as they are gone",
        check=find_orphaned_generation,
    ),
    Detector(
        name="orphaned_running_spares",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE}),
        fires="task 0 of a generation has ended and other tasks of it still run: a warning after the grace, critical"
        " after twice the grace",
        quiet="the tasks are COMPLETING; they leave within the grace, as they do when their gate sees the closed"
        " generation",
        todo="look at the task logs of the spares, then run the scancel that is printed. Nothing is done by itself:"
        " a task that runs may still be writing",
        check=find_orphaned_running_spares,
    ),
)
