"""What the ranks themselves wrote, read across generations: first steps, steps lost, lives that must not overlap. Pure
but for reading the event files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.workloads.events import Event, EventKind, read_events


def read_timeline(directory: Path) -> tuple[Event, ...]:
    """Every event of every rank below `directory`, in the order of time; empty while there is none."""
    if not directory.is_dir():
        return ()
    events = [event for path in sorted(directory.glob("rank*.jsonl")) for event in read_events(path)]
    return tuple(sorted(events, key=lambda event: event.unix))


def of_generation(events: Iterable[Event], job: int) -> tuple[Event, ...]:
    """The events of one array job."""
    return tuple(event for event in events if event.array_job_id == job)


def steps(events: Iterable[Event]) -> tuple[Event, ...]:
    """The step events."""
    return tuple(event for event in events if event.event is EventKind.STEP)


def last_iteration(events: Iterable[Event]) -> int:
    """The highest iteration that a step event reports, 0 without one."""
    return max((event.iteration for event in steps(events)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """From the start of the first rank's process to the last sign of any rank of a generation, in Unix seconds."""

    job: int
    first: float
    last: float


def lives(events: Iterable[Event]) -> tuple[Life, ...]:
    """The life of each generation that had ranks, in the order in which they began."""
    spans: dict[int, tuple[float, float]] = {}
    for event in events:
        if event.array_job_id is None:
            continue
        began = event.unix - (event.since_process_start_seconds or 0.0)
        first, last = spans.get(event.array_job_id, (began, event.unix))
        spans[event.array_job_id] = (min(first, began), max(last, event.unix))
    found = [Life(job=job, first=first, last=last) for job, (first, last) in spans.items()]
    return tuple(sorted(found, key=lambda life: life.first))


def assert_no_overlap(events: Iterable[Event]) -> None:
    """No two generations ever had a live rank at the same time."""
    found = lives(events)
    for before, after in itertools.pairwise(found):
        overlap = before.last - after.first
        assert overlap < 0, (
            f"ranks of generation {before.job} lived {overlap:.1f} s into generation {after.job}: {before} {after}"
        )
