"""Generations that end again and again without getting anywhere: they burn the chain, and nodes with it. Pure.

The launcher's own budget starts anew in each generation, and so does whoever looks at one generation only; here the
whole chain counts, since the last release by a person.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from nvrx_chain.clock import parse_time, render_age
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import GenerationRecord
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.records.progress import UNREADABLE
from nvrx_watch.detectors.chain_end import is_held
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import (
    active_hold,
    ended_at,
    final_verdict,
    has_ended,
    hours,
    outcome_of,
    released_at,
    run_seconds,
    seconds_since,
    started_at,
)
from nvrx_watch.detectors.wording import chain_command, listed
from nvrx_watch.memory import ITERATION_NAME
from nvrx_watch.model import ActionKind, ActionRequest, Finding, Generation, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

_NO_CHURN = frozenset(
    {
        Outcome.COMPLETED,
        Outcome.WALLTIME,
        Outcome.TERMINATED,
        Outcome.PREEMPTED,
        Outcome.SUPERSEDED,
        # It left because the chain is held, which is the brake doing its work.
        Outcome.HELD,
    }
)
_NOT_SCORED = frozenset({Outcome.COMPLETED, Outcome.TERMINATED, Outcome.SUPERSEDED, Outcome.HELD})
"""Ends that say nothing about progress: finished, or taken away by somebody."""


def find_generation_churn(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The newest ended generations all failed fast."""
    if final_verdict(snapshot) is not None or active_hold(snapshot) is not None:
        return
    if _runs_for(snapshot) >= thresholds.churn_seconds:
        return
    short: list[tuple[Generation, float]] = []
    for generation in reversed(_ended(snapshot)):
        seconds = run_seconds(snapshot, generation)
        if seconds is None or seconds >= thresholds.churn_seconds or outcome_of(snapshot, generation) in _NO_CHURN:
            break
        short.append((generation, seconds))
    if len(short) < max(1, thresholds.churn_generations):
        return
    short.reverse()
    words = [_put(snapshot, generation, seconds) for generation, seconds in short]
    title = f"the last {len(short)} generations ended within {render_age(thresholds.churn_seconds)} each"
    yield _burning("generation_churn", snapshot, title, (listed(words),), [one for one, _ in short])


def _put(snapshot: Snapshot, generation: Generation, seconds: float) -> str:
    outcome = outcome_of(snapshot, generation)
    return f"{generation.array_job_id} {outcome.value if outcome is not None else 'ended'} after {render_age(seconds)}"


def find_no_progress(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The newest ended generations made no checkpoint that is newer than what was there before them."""
    if final_verdict(snapshot) is not None or active_hold(snapshot) is not None:
        return
    idle = _idle_by_records(snapshot) if snapshot.subject.is_ours else _idle_by_memory(snapshot)
    if len(idle.generations) < max(1, thresholds.idle_generations):
        return
    if isinstance(snapshot.iteration, int) and snapshot.iteration > (idle.iteration or 0):
        # The generation that runs now got further.
        return
    seconds = sum(run_seconds(snapshot, one) or 0.0 for one in idle.generations)
    nodes = _nodes_of(snapshot, idle.generations)
    where = f"the checkpoint stays at iteration {idle.iteration}" if idle.iteration else "there is no checkpoint at all"
    lost = (
        f"{hours(seconds) * nodes:.1f} node-hours were spent on them"
        if nodes
        else f"they ran for {render_age(seconds)}"
    )
    title = f"the last {len(idle.generations)} generations made no progress: {where}"
    yield _burning("generations_without_progress", snapshot, title, (lost,), idle.generations)


class _Idle(msgspec.Struct, frozen=True, kw_only=True):
    """The ended generations since the last progress, and the iteration where it stands."""

    generations: tuple[Generation, ...]
    iteration: int | None


def _idle_by_records(snapshot: Snapshot) -> _Idle:
    """By what each generation recorded. An unreadable iteration is skipped, not scored."""
    best = reached = 0
    idle: list[Generation] = []
    for generation in _ended(snapshot):
        record = generation.record
        if not isinstance(record, GenerationRecord) or outcome_of(snapshot, generation) in _NOT_SCORED:
            continue
        if UNREADABLE in (record.iteration_at_start, record.iteration_at_end):
            continue
        # What is there at the end of one that never launched is not its own work.
        end = (record.iteration_at_end or 0) if record.launched_at is not None else 0
        best = max(best, record.iteration_at_start or 0)
        # After a wanted step back it takes long to overtake the best: getting further each time is progress too.
        if end > best or (idle and end > reached):
            idle, reached = [], 0
        else:
            idle.append(generation)
            reached = max(reached, end)
        best = max(best, end)
    return _Idle(generations=tuple(idle), iteration=best or None)


def _idle_by_memory(snapshot: Snapshot) -> _Idle:
    """Of a chain without records: what began and ended while this watcher saw the iteration stand still."""
    nothing = _Idle(generations=(), iteration=None)
    entry = snapshot.memory.seen.get(ITERATION_NAME)
    since = parse_time(entry.since) if entry is not None else None
    if entry is None or since is None or not isinstance(snapshot.iteration, int) or entry.value != snapshot.iteration:
        return nothing
    found = []
    for generation in _ended(snapshot):
        begin = started_at(snapshot, generation)
        if begin is not None and begin >= since and outcome_of(snapshot, generation) not in _NOT_SCORED:
            found.append(generation)
    return _Idle(generations=tuple(found), iteration=snapshot.iteration)


def _ended(snapshot: Snapshot) -> tuple[Generation, ...]:
    """The generations that are over, in order, without those before the last release: a person looked at them."""
    released = released_at(snapshot)
    return tuple(
        one for one in snapshot.generations if has_ended(snapshot, one) and _is_after(ended_at(snapshot, one), released)
    )


def _is_after(at: datetime | None, released: datetime | None) -> bool:
    return released is None or (at is not None and at > released)


def _runs_for(snapshot: Snapshot) -> float:
    """For how long the current generation has run; 0 when none does."""
    current = snapshot.current()
    if current is None or has_ended(snapshot, current):
        return 0.0
    return seconds_since(started_at(snapshot, current), snapshot.taken_at) or 0.0


def _nodes_of(snapshot: Snapshot, generations: Sequence[Generation]) -> int:
    """Nodes that one generation holds; 0 when nobody says."""
    manifest = snapshot.subject.manifest
    if manifest is not None:
        return max(0, manifest.shape.max_nodes)
    seen = [
        len({*cycle.active_nodes, *cycle.standby_nodes})
        for one in generations
        for cycle in (one.cycles if isinstance(one.cycles, Sequence) else ())
    ]
    return max(seen, default=0)


def _burning(
    detector: str, snapshot: Snapshot, title: str, details: tuple[str, ...], generations: Sequence[Generation]
) -> Finding:
    request = _hold_request(snapshot, title)
    advice = "read the task logs of the last one before the next one starts"
    if request is not None:
        advice = f"keep the queued generations from starting: {request.command}"
    return Finding(
        detector=detector,
        severity=Severity.CRITICAL,
        scope="chain",
        title=title,
        details=details,
        advice=advice,
        array_job_ids=tuple(one.array_job_id for one in generations),
        action=request,
    )


def _hold_request(snapshot: Snapshot, why: str) -> ActionRequest | None:
    """A hold of what is queued; None when nothing is, or all of it is held already."""
    queue = snapshot.queue
    if isinstance(queue, Unobserved):
        return None
    queued = [one.array_job_id for one in snapshot.queued()]
    free = [job for job in queued if not all(map(is_held, queue.pending(job)))]
    if not free:
        return None
    command = chain_command(snapshot.subject, "hold") or shlex.join(["scontrol", "hold", *map(str, free)])
    return ActionRequest(kind=ActionKind.HOLD, array_job_id=None, why=why, command=command)


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="generation_churn",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.RECORDS}),
        fires="so many generations in a row, the newest ones, each ended sooner than the limit",
        quiet="one of them was finished, superseded, preempted, terminated by a person or ended at its time limit; for"
        " how long one ran is not known; the generation that runs now has outlived the limit; the chain is held, over,"
        " or was released after they ended",
        todo="the environment or the node is broken, not the training: hold the chain with the command that is printed"
        " (`--act --allow hold` does it), read the task log of the last one, release",
        check=find_generation_churn,
    ),
    Detector(
        name="generations_without_progress",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.RECORDS, Source.ITERATION}),
        fires="so many ended generations in a row made no newer checkpoint than the chain had before them, none at all"
        " included; the node-hours spent on them are said",
        quiet="the generation that runs now got further; an iteration was unreadable (that generation is skipped); one"
        " was terminated by a person, superseded or left because of a hold (skipped too); the chain is held, over, or"
        " was released after they ended",
        todo="compare the ends of the application logs; hold the chain with the command that is printed until the cause"
        " is known (`--act --allow hold` does it)",
        check=find_no_progress,
    ),
)
