"""Restarts against the checkpoint: nothing was gained, nothing was ever saved, something was lost, nothing moves. Pure.

Progress is judged over the whole chain: a launcher's own count begins anew with every generation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime

from nvrx_chain.clock import parse_time, render_age
from nvrx_chain.records.control import GenerationRecord, Rendezvous
from nvrx_watch.detectors.cycle_facts import (
    MOST_CYCLES,
    age_of,
    cycles_of,
    length_of,
    newest_closed,
    node_hours,
    open_cycle,
    training_generation,
)
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import final_verdict
from nvrx_watch.detectors.wording import chain_command, count, safe
from nvrx_watch.memory import BEST_ITERATION_NAME, ITERATION_NAME, lease_name, log_name
from nvrx_watch.model import Cycle, Finding, Generation, LogActivity, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

SEEN_GONE_SECONDS = 120.0
"""A checkpoint file counts as gone after so long: NFS may answer for a minute that a renamed file is not there."""


def find_stalled_progress(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Cycle after cycle ends and the checkpoint stays where it is."""
    iteration = snapshot.iteration
    if not isinstance(iteration, int) or final_verdict(snapshot) is not None:
        return
    cycles = _ended_since_it_moved(snapshot, iteration)
    if len(cycles) < max(1, thresholds.stalled_cycles):
        return
    number = f"at least {len(cycles)}" if len(cycles) >= MOST_CYCLES else str(len(cycles))
    hold = chain_command(snapshot.subject, "hold")
    yield Finding(
        detector="stalled_progress",
        severity=Severity.CRITICAL,
        scope="chain",
        title=f"{number} restart cycles ended since the checkpoint got to iteration {iteration}",
        details=(f"node-hours spent on them: {node_hours(cycles):.1f}", *_log_line(cycles[0].log_file)),
        advice="find out why training dies before it saves, or save more often"
        + (f"; meanwhile keep the queued generations from starting: {hold}" if hold else ""),
        array_job_ids=_job_of(snapshot.current()),
    )


def _ended_since_it_moved(snapshot: Snapshot, iteration: int) -> list[Cycle]:
    """The cycles, the newest first, that ended while the checkpoint iteration was the present one.

    By this watcher's own memory; further back, where a generation's record says that it began at this iteration.
    """
    memory = snapshot.memory
    steady = memory.steady_seconds(ITERATION_NAME, snapshot.taken_at) or 0.0
    if memory.value(ITERATION_NAME) != iteration:
        steady = 0.0
    found: list[Cycle] = []
    for generation, cycle in newest_closed(snapshot):
        ended = age_of(cycle.ended_at, snapshot.taken_at)
        if (ended is None or ended >= steady) and not _began_at(generation, iteration):
            break
        found.append(cycle)
    return found


def _began_at(generation: Generation, iteration: int) -> bool:
    record = generation.record
    return isinstance(record, GenerationRecord) and record.iteration_at_start == iteration


def find_never_checkpointed(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Training has run for hours and there is no checkpoint at all."""
    best = snapshot.memory.value(BEST_ITERATION_NAME)
    if snapshot.iteration is not None or best is not None or final_verdict(snapshot) is not None:
        return
    enough = 2 * thresholds.never_checkpointed
    trained = _trained_seconds(snapshot, enough)
    if trained <= thresholds.never_checkpointed:
        return
    manifest = snapshot.subject.manifest
    file = safe(manifest.checkpoint_iteration_file) if manifest is not None else ""
    yield Finding(
        detector="never_checkpointed",
        severity=Severity.CRITICAL if trained > enough else Severity.WARNING,
        scope="chain",
        title=f"training has run for {render_age(trained)} and there is no checkpoint",
        details=(f"looked for: {file}",) if file else (),
        advice="see that the workload saves at all, more often than it dies, and names its newest checkpoint in the"
        " file that is looked for",
        array_job_ids=_job_of(snapshot.current()),
    )


def _trained_seconds(snapshot: Snapshot, enough: float) -> float:
    """For how long the chain has trained, the newest generations first; not counted on beyond `enough`."""
    total, left = 0.0, MOST_CYCLES
    training = training_generation(snapshot)
    for generation in reversed(snapshot.generations):
        if total > enough or left <= 0:
            break
        record = generation.record
        stated = record.run_seconds if isinstance(record, GenerationRecord) else None
        if stated is not None and math.isfinite(stated):
            total += max(0.0, stated)
            continue
        if generation is training:
            total += _open_seconds(generation, snapshot.taken_at)
        for cycle in reversed(cycles_of(generation)):
            total += length_of(cycle) or 0.0
            left -= 1
            if total > enough or left <= 0:
                break
    return total


def _open_seconds(generation: Generation, now: datetime) -> float:
    """For how long a generation has been in its present cycle; 0 between two cycles."""
    if cycles_of(generation) and open_cycle(generation) is None:
        return 0.0
    return age_of(_began_moving(generation), now) or 0.0


def _began_moving(generation: Generation) -> datetime | None:
    """When the present cycle began, or the last one ended; without cycle records, when the launchers were started."""
    cycles = cycles_of(generation)
    if cycles:
        return cycles[-1].ended_at or cycles[-1].started_at
    published = generation.rendezvous
    return parse_time(published.started_at) if isinstance(published, Rendezvous) else None


def find_cycle_stalled(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The running generation neither logs nor saves."""
    generation = training_generation(snapshot)
    if generation is None or not isinstance(generation.log, LogActivity) or final_verdict(snapshot) is not None:
        return
    cycles = cycles_of(generation)
    limit = thresholds.cycle_stalled if len(cycles) > 1 else thresholds.first_cycle_stalled
    still = _still_seconds(snapshot, generation, generation.log)
    if still is None or still < limit:
        return
    job = generation.array_job_id
    present = open_cycle(generation)
    yield Finding(
        detector="cycle_stalled",
        severity=Severity.CRITICAL if still >= 2 * limit else Severity.WARNING,
        scope=str(job),
        title=f"nothing has moved in {_words(generation)} for {render_age(still)}:"
        " no line in its logs, no new checkpoint",
        details=(
            *_log_line((present.log_file if present is not None else "") or generation.log.newest),
            *_lease_line(snapshot, job, thresholds.lease_stale),
        ),
        advice="look at a rank with py-spy or gdb on its node; when it hangs for good, cancel the generation so that"
        f" the next one takes over: scancel {job}",
        array_job_ids=(job,),
    )


def _still_seconds(snapshot: Snapshot, generation: Generation, log: LogActivity) -> float | None:
    """For how long everything that is seen has stood still; None when the log was never seen before.

    An iteration that cannot be read just now resets nothing and proves nothing: what was seen of it last still counts.
    """
    memory, now = snapshot.memory, snapshot.taken_at
    name = log_name(generation.array_job_id)
    began = _began_moving(generation)
    if memory.value(name) != log.bytes or began is None:
        return None
    seen = (memory.steady_seconds(name, now), memory.steady_seconds(ITERATION_NAME, now), age_of(began, now))
    known = [seconds for seconds in seen if seconds is not None]
    return min(known) if seen[0] is not None else None


def _words(generation: Generation) -> str:
    job, cycles = generation.array_job_id, cycles_of(generation)
    if not cycles:
        return f"generation {job}"
    if cycles[-1].ended_at is not None:
        return f"generation {job} since its cycle {cycles[-1].number} ended"
    return f"cycle {cycles[-1].number} of generation {job}"


def _lease_line(snapshot: Snapshot, job: int, stale: float) -> tuple[str, ...]:
    """Whose fault it is not: with a lease that moves, task 0 lives and its launcher or its ranks are frozen."""
    still = snapshot.memory.steady_seconds(lease_name(job, 0), snapshot.taken_at)
    if still is None:
        return ()
    if still < stale:
        return ("the lease of task 0 moves: its run-task lives, the launcher or the ranks are frozen",)
    return (f"the lease of task 0 has stood still for {render_age(still)} too",)


def find_checkpoint_regressed(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The checkpoint is older than the newest one that was ever seen, or is gone."""
    best, iteration = snapshot.memory.value(BEST_ITERATION_NAME), snapshot.iteration
    if not isinstance(best, int) or final_verdict(snapshot) is not None:
        return
    if iteration is None:
        gone = snapshot.memory.steady_seconds(ITERATION_NAME, snapshot.taken_at)
        if snapshot.memory.value(ITERATION_NAME) is not None or gone is None or gone < SEEN_GONE_SECONDS:
            return
        title = f"the checkpoint is gone; iteration {best} was seen before"
    elif isinstance(iteration, int) and iteration < best:
        title = f"the checkpoint went back to iteration {iteration} from {best}"
    else:
        return
    yield Finding(
        detector="checkpoint_regressed",
        severity=Severity.WARNING,
        scope="chain",
        title=title,
        details=(f"lost: {count(best - (iteration or 0), 'iteration')}",) if isinstance(iteration, int) else (),
        advice="if nobody chose an older checkpoint on purpose: a newer one was damaged or deleted, or ranks disagree"
        " about which is the newest; look before it is overwritten",
        array_job_ids=_job_of(snapshot.current()),
    )


def _log_line(path: str) -> tuple[str, ...]:
    return (f"log: {safe(path)}",) if path else ()


def _job_of(generation: Generation | None) -> tuple[int, ...]:
    return (generation.array_job_id,) if generation is not None else ()


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="stalled_progress",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.CYCLES, Source.ITERATION}),
        fires="so many restart cycles ended, in whichever generations, since the checkpoint iteration last moved; the"
        " node-hours spent on them are said",
        quiet="there is no checkpoint at all (`never_checkpointed` is for that); the iteration moved; the same value"
        " was only written again, which is no progress and resets nothing; they ended before the last release; the"
        " chain has a final verdict",
        todo="read the end of the newest cycle's log; save more often than it dies; `nvrx-chain hold` keeps the queued"
        " generations back meanwhile",
        check=find_stalled_progress,
    ),
    Detector(
        name="never_checkpointed",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.CYCLES, Source.ITERATION}),
        fires="training has run for longer than the limit, all generations together, and no checkpoint was ever seen;"
        " a warning, critical after twice the limit",
        quiet="a checkpoint was seen at any time, even if it is gone now; the iteration cannot be read; the chain has a"
        " final verdict",
        todo="see that the workload saves at all, and that the file that is looked for is the one that it writes"
        " (`--checkpoint-iteration-file`)",
        check=find_never_checkpointed,
    ),
    Detector(
        name="cycle_stalled",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.CYCLES}),
        fires="neither the logs of the running generation nor the checkpoint have moved for so long, as this watcher"
        " saw it; a warning, critical after twice the limit; the first cycle of a generation has a longer limit",
        quiet="a log grows, whatever it says; the launchers have not been started; no log can be seen; the generation"
        " is closed",
        todo="look at a rank with py-spy or gdb; when it hangs for good, `scancel` the generation: the next one goes on"
        " from the last checkpoint. The watcher never does it",
        check=find_cycle_stalled,
    ),
    Detector(
        name="checkpoint_regressed",
        severity=Severity.WARNING,
        needs=frozenset({Source.ITERATION}),
        fires="the checkpoint iteration is smaller than the largest that was ever seen, or the file is gone for two"
        " minutes",
        quiet="it is past the largest again; the iteration cannot be read; the chain has a final verdict",
        todo="nothing if an older checkpoint was chosen on purpose; else find out what damaged or removed the newer one"
        " before it is overwritten",
        check=find_checkpoint_regressed,
    ),
)
