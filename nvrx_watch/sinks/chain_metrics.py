"""What Prometheus is told about one chain, taken from a snapshot. Pure.

None is "not known" and becomes no sample at all: a gauge that shows 0 for a source that could not be read would lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.states import JobState
from nvrx_watch.memory import ITERATION_NAME
from nvrx_watch.model import Cycle, Finding, Generation, LogActivity, Queue, Severity, Snapshot
from nvrx_watch.plain_text import plain

_LARGEST = 2**53
"""A float64 holds whole numbers exactly up to here; files can hold any number."""

_LONGEST_LABEL = 200


class ChainMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The gauges of one chain. Durations in seconds; `last_good_pass_at` in seconds since 1970.

    `generation` is the sequence number of the newest that has begun, `cycle` the number of its newest cycle.
    `iteration` is that of the checkpoint, `log_iteration` that of the training log.
    """

    chain: str
    name: str
    generation: int | None
    cycle: int | None
    iteration: int | None
    log_iteration: int | None
    seconds_since_progress: float | None
    hot_spares: int | None
    cold_spares: int | None
    queued_generations: int | None
    findings: Mapping[tuple[str, Severity], int]
    pass_seconds: float
    last_good_pass_at: float | None
    last_good_pass_age_seconds: float | None


def measure(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    pass_seconds: float,
    last_good_pass_at: str | None,
    now: datetime,
) -> ChainMetrics:
    """The gauges of the chain as this pass saw it."""
    current = snapshot.current()
    queue = snapshot.queue if isinstance(snapshot.queue, Queue) else None
    good = parse_time(last_good_pass_at)
    progress = snapshot.memory.steady_seconds(ITERATION_NAME, now)
    return ChainMetrics(
        chain=plain(snapshot.subject.key, _LONGEST_LABEL),
        name=plain(snapshot.subject.name, _LONGEST_LABEL),
        generation=_sane(current.sequence) if current is not None else None,
        cycle=_sane(cycle.number) if (cycle := _newest_cycle(current)) is not None else None,
        iteration=_sane(snapshot.iteration) if isinstance(snapshot.iteration, int) else None,
        log_iteration=_log_iteration(current),
        seconds_since_progress=progress,
        hot_spares=_hot_spares(snapshot, queue, current),
        cold_spares=_cold_spares(queue, current),
        queued_generations=len(snapshot.queued()) if queue is not None else None,
        findings=Counter((plain(one.detector, _LONGEST_LABEL), one.severity) for one in findings),
        pass_seconds=max(0.0, pass_seconds),
        last_good_pass_at=_epoch(good),
        last_good_pass_age_seconds=max(0.0, (now - good).total_seconds()) if good is not None else None,
    )


def _newest_cycle(current: Generation | None) -> Cycle | None:
    if current is None or not current.cycles or isinstance(current.cycles, Unobserved):
        return None
    return current.cycles[-1]


def _log_iteration(current: Generation | None) -> int | None:
    log = current.log if current is not None else None
    return _sane(log.iteration) if isinstance(log, LogActivity) and log.iteration is not None else None


def _hot_spares(snapshot: Snapshot, queue: Queue | None, current: Generation | None) -> int | None:
    if current is None:
        return None
    manifest = snapshot.subject.manifest
    if manifest is not None:
        if queue is None:
            return None
        # A task that completes still holds its node, but it takes over nothing any more.
        held = [row for row in queue.running(current.array_job_id) if row.state is not JobState.COMPLETING]
        return max(0, len(held) - manifest.shape.train_tasks)
    cycle = _newest_cycle(current)
    return len(cycle.standby_nodes) if cycle is not None and cycle.ended_at is None else None


def _cold_spares(queue: Queue | None, current: Generation | None) -> int | None:
    if queue is None or current is None:
        return None
    return len(queue.pending(current.array_job_id))


def _sane(number: int) -> int | None:
    return number if abs(number) <= _LARGEST else None


def _epoch(at: datetime | None) -> float | None:
    try:
        return at.timestamp() if at is not None else None
    except (OverflowError, ValueError, OSError):
        return None
