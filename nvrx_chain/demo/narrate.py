"""The story of a demo in lines: what is new in one reading compared with the one before it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_chain.demo.evidence import Evidence, GenerationSeen
from nvrx_chain.slurm.states import JobState
from nvrx_chain.workloads.events import Event, EventKind


def narrate(before: Evidence | None, after: Evidence) -> tuple[str, ...]:
    """One line for each thing that happened between two readings, in the order of time where that is known."""
    return (
        *_started(before, after),
        *_told_by_ranks(before, after),
        *_closed(before, after),
        *_ended(before, after),
    )


def _started(before: Evidence | None, after: Evidence) -> Iterator[str]:
    for seen in after.generations:
        earlier = before.generation(seen.array_job_id) if before else None
        if seen.has_run and not (earlier and earlier.has_run):
            yield f"{seen.label} (array job {seen.array_job_id}) starts"


def _told_by_ranks(before: Evidence | None, after: Evidence) -> Iterator[str]:
    known = set(map(_identity, before.events)) if before else set()
    for event in after.events:
        if event.rank == 0 and _identity(event) not in known:
            line = _line_of(event)
            if line is not None:
                yield f"{_label(after, event)}: {line}"


def _identity(event: Event) -> tuple[float, int, EventKind]:
    return event.monotonic, event.rank, event.event


def _line_of(event: Event) -> str | None:
    """What rank 0 says in its own words, None where it is not worth a line."""
    if event.event is EventKind.START:
        how = f"resumes at iteration {event.iteration}" if event.iteration else "trains from the beginning"
        return f"{event.world_size} ranks, rank 0 on {event.host}: {how}"
    if event.event is EventKind.SAVE_FINISHED:
        return f"checkpoint {event.iteration} is on disk"
    if event.event is EventKind.SIGNAL:
        return f"told to save and leave ({event.signal}) at iteration {event.iteration}"
    return None


def _label(evidence: Evidence, event: Event) -> str:
    seen = evidence.generation(event.array_job_id)
    return seen.label if seen else f"array job {event.array_job_id}"


def _closed(before: Evidence | None, after: Evidence) -> Iterator[str]:
    for seen in after.generations:
        earlier = before.generation(seen.array_job_id) if before else None
        if seen.no_restart and not (earlier and earlier.no_restart):
            yield f"{seen.label}: {seen.no_restart.cause}"
        if seen.closed and not (earlier and earlier.closed):
            yield f"{seen.label} closed as {seen.closed.outcome.value} by {seen.closed.closed_by}: {_why(seen)}"


def _why(seen: GenerationSeen) -> str:
    return "; ".join(seen.closed.evidence) if seen.closed else ""


def _ended(before: Evidence | None, after: Evidence) -> Iterator[str]:
    if after.outcome is not None and not (before and before.outcome):
        yield f"the chain ended as {after.outcome.verdict.value}: {after.outcome.why}"
    gone_before = set(_cancelled_unrun(before)) if before else set()
    for label in _cancelled_unrun(after):
        if label not in gone_before:
            yield f"{label} was cancelled before it started"


def _cancelled_unrun(evidence: Evidence) -> tuple[str, ...]:
    found = []
    for seen in evidence.generations:
        rows = [task for task in evidence.queue or () if task.array_job_id == seen.array_job_id]
        if rows and not seen.has_run and all(task.state is JobState.CANCELLED for task in rows):
            found.append(seen.label)
    return tuple(found)


def describe_now(evidence: Evidence, target_iteration: int | None) -> str:
    """One line on how things stand: tasks by state for each generation that has any, and the iteration."""
    parts = []
    for seen in evidence.generations:
        states: dict[str, int] = {}
        for task in evidence.alive():
            if task.array_job_id == seen.array_job_id:
                states[task.state.value.lower()] = states.get(task.state.value.lower(), 0) + 1
        if states:
            parts.append(f"{seen.label}: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    if evidence.iteration():
        of = f"/{target_iteration}" if target_iteration else ""
        parts.append(f"iteration {evidence.iteration()}{of}")
    return " | ".join(parts) or "nothing in the queue"
