"""Restart cycles as a pattern: a storm, a budget that runs out, a crash at the same point again and again. Pure.

One restart is the launcher's everyday work and nobody's business here. What the checkpoint says about the same cycles
is in progress.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from nvrx_chain.clock import render_age
from nvrx_watch.detectors.cycle_facts import (
    MOST_CYCLES,
    Placed,
    age_of,
    common_nodes,
    cycles_of,
    hold_request,
    length_of,
    median,
    name_nodes,
    newest_closed,
    open_cycle,
    training_generation,
)
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import final_verdict
from nvrx_watch.detectors.progress import DETECTORS as PROGRESS_DETECTORS
from nvrx_watch.detectors.wording import count, safe
from nvrx_watch.model import Cycle, Finding, Generation, LogActivity, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

MOMENT_SECONDS = 5.0
"""A cycle that lasted less never trained: where its log ends says nothing about where it crashed."""


def find_restart_storm(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Too many cycles ended within the window, in whichever generations."""
    if final_verdict(snapshot) is not None:
        return
    recent = _ended_within(snapshot, thresholds.storm_window)
    if len(recent) < max(1, thresholds.storm_cycles):
        return
    cycles = [cycle for _, cycle in recent]
    number = f"at least {len(cycles)}" if len(cycles) >= MOST_CYCLES else str(len(cycles))
    lasted = median([seconds for cycle in cycles if (seconds := length_of(cycle)) is not None])
    each = f", median duration {render_age(lasted)}" if lasted is not None else ""
    title = f"{number} restart cycles ended within {render_age(thresholds.storm_window)}{each}"
    yield _pattern(
        "restart_storm",
        snapshot,
        title,
        (_where(cycles), *_log_of(cycles)),
        "read the end of that log: the cause comes back with every restart",
        recent,
    )


def _ended_within(snapshot: Snapshot, window: float) -> list[Placed]:
    found: list[Placed] = []
    for placed in newest_closed(snapshot):
        ended = age_of(placed[1].ended_at, snapshot.taken_at)
        if ended is None or ended > window:
            break
        found.append(placed)
    return found


def find_restart_budget_low(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The launcher of the current generation has hardly a restart left."""
    generation, budget = training_generation(snapshot), _max_restarts(snapshot)
    if generation is None or budget is None or final_verdict(snapshot) is not None:
        return
    used = _restarts_used(generation)
    left = budget - used
    if used < 1 or left > thresholds.budget_left:
        return
    job = generation.array_job_id
    yield Finding(
        detector="restart_budget_low",
        severity=Severity.WARNING,
        scope=str(job),
        title=f"generation {job} has {count(left, 'restart') if left > 0 else 'no restart'} left of {budget}",
        details=_log_of(cycles_of(generation)[-1:]),
        advice="when the budget is spent, this generation ends and the next one in the queue takes over: see that one"
        " is queued, and why it restarts",
        array_job_ids=(job,),
    )


def _max_restarts(snapshot: Snapshot) -> int | None:
    manifest = snapshot.subject.manifest
    budget = manifest.launcher.max_restarts if manifest is not None else snapshot.subject.max_restarts
    return budget if budget is not None and budget >= 0 else None


def _restarts_used(generation: Generation) -> int:
    """Cycles of the newest attempt that have ended: each of them cost a restart. A new attempt has a new budget."""
    cycles = cycles_of(generation)
    if not cycles:
        return 0
    first = bisect_left(cycles, cycles[-1].attempt, key=lambda cycle: cycle.attempt)
    return len(cycles) - first - (1 if open_cycle(generation) is not None else 0)


def find_same_iteration_crash(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The newest cycles all ended at about the same training iteration."""
    if final_verdict(snapshot) is not None:
        return
    wanted = max(2, thresholds.same_iteration_cycles)
    newest = tuple(islice(newest_closed(snapshot), wanted))
    reached = [cycle.last_iteration for _, cycle in newest if cycle.last_iteration is not None and _lasted(cycle)]
    if len(reached) < wanted or max(reached) - min(reached) > thresholds.same_iteration_span:
        return
    if _got_past(snapshot, max(reached) + thresholds.same_iteration_span):
        return
    where = str(min(reached)) if min(reached) == max(reached) else f"{min(reached)} to {max(reached)}"
    cycles = [cycle for _, cycle in newest]
    yield _pattern(
        "same_iteration_crash",
        snapshot,
        f"the last {wanted} restart cycles all ended at iteration {where}",
        (_where(cycles), *_log_of(cycles)),
        "bad data or a deterministic fault, which no restart mends: skip the data at that point or mend the code",
        newest,
    )


def _lasted(cycle: Cycle) -> bool:
    seconds = length_of(cycle)
    return seconds is not None and seconds >= MOMENT_SECONDS


def _got_past(snapshot: Snapshot, iteration: int) -> bool:
    """Whether training is, or has a checkpoint, beyond an iteration."""
    current = snapshot.current()
    log = current.log if current is not None else None
    reached = [log.iteration] if isinstance(log, LogActivity) else []
    reached.append(snapshot.iteration if isinstance(snapshot.iteration, int) else None)
    return any(number is not None and number > iteration for number in reached)


def _pattern(
    detector: str, snapshot: Snapshot, title: str, details: tuple[str, ...], advice: str, placed: Sequence[Placed]
) -> Finding:
    """A finding about the whole chain whose remedy is that the queued generations wait."""
    request = hold_request(snapshot, title)
    held = f"; keep the queued generations from starting meanwhile: {request.command}" if request is not None else ""
    return Finding(
        detector=detector,
        severity=Severity.CRITICAL,
        scope="chain",
        title=title,
        details=details,
        advice=advice + held,
        array_job_ids=tuple(sorted({generation.array_job_id for generation, _ in placed})),
        action=request,
    )


def _where(cycles: Sequence[Cycle]) -> str:
    shared = common_nodes(cycles)
    return f"in each of them trained: {name_nodes(shared)}" if shared else "no node trained in all of them"


def _log_of(cycles: Sequence[Cycle]) -> tuple[str, ...]:
    """The log of the newest of these cycles, the first one given."""
    path = cycles[0].log_file if cycles else ""
    return (f"log of the newest: {safe(path)}",) if path else ()


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="restart_storm",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.CYCLES}),
        fires="so many restart cycles ended within the window, those of earlier generations included; the median of"
        " their durations and the nodes that they share are said",
        quiet="they ended longer ago, or before the last release of the chain; the chain has a final verdict",
        todo="read the end of the newest log; hold the chain with the command that is printed until the cause is known"
        " (`--act --allow hold` does it), and cancel the running generation if its nodes are needed elsewhere",
        check=find_restart_storm,
    ),
    Detector(
        name="same_iteration_crash",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.CYCLES}),
        fires="the newest cycles that ended, in whichever generations, all stopped within a few training iterations of"
        " each other",
        quiet="the log of one of them shows no iteration; one lasted less than a moment (5 s); the log or the"
        " checkpoint is past that point by now; they ended before the last release; the chain has a final verdict",
        todo="bad data or a deterministic fault, which no restart mends: skip that data or mend the code; hold the"
        " chain with the command that is printed meanwhile (`--act --allow hold` does it)",
        check=find_same_iteration_crash,
    ),
    Detector(
        name="restart_budget_low",
        severity=Severity.WARNING,
        needs=frozenset({Source.CYCLES}),
        fires="the launcher of the running generation has no more than so many restarts left, counted by the cycles of"
        " its newest attempt and not by its own word",
        quiet="no restart was needed yet; nobody says how many are allowed (`--max-restarts`); no generation runs",
        todo="nothing when a further generation is queued: it takes over when the budget is spent. Else"
        " `nvrx-chain extend`; and find out why it restarts",
        check=find_restart_budget_low,
    ),
    *PROGRESS_DETECTORS,
)
