"""From the files of a chain and one reading of the queue to what `nvrx-chain status` says. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.ops.status import ChainState, ChainStatus, DrainedTask, GenerationState, GenerationStatus
from nvrx_chain.records.control import ChainOutcome, Closed, Drained, Ending, GenerationRecord, Hold, Lease
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.records.progress import recorded_iteration
from nvrx_chain.slurm.chain_queue import ChainQueue, count_states
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.states import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFiles:
    """What the files say of one generation. `array_job_id` None: submitted, but no id is on record."""

    sequence: int
    array_job_id: int | None
    submitted_at: str | None
    record: GenerationRecord | None = None
    closed: Closed | None = None
    lease: Lease | None = None
    cycles: int | None = None
    drained: tuple[Drained, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFacts:
    """All that a status is made of."""

    manifest: ChainManifest
    run_directory: str
    verdict: ChainOutcome | None
    hold: Hold | None
    iteration: int | Unobserved | None
    generations: tuple[GenerationFiles, ...]
    queue: ChainQueue | Unobserved
    read_at: datetime
    ending: Ending | None = None
    problems: tuple[str, ...] = ()


def build_status(facts: ChainFacts) -> ChainStatus:
    """Fold the facts: one entry per generation, and one state of the chain."""
    iteration = recorded_iteration(facts.iteration)
    generations = tuple(_generation(files, facts.queue, iteration) for files in facts.generations)
    manifest = facts.manifest
    return ChainStatus(
        chain_id=manifest.chain_id,
        name=manifest.job_name,
        user=manifest.user,
        cluster=manifest.cluster,
        run_directory=facts.run_directory,
        submitted_at=manifest.submitted_at,
        read_at=format_time(facts.read_at),
        state=_chain_state(facts, generations),
        verdict=facts.verdict,
        hold=facts.hold,
        ending=facts.ending,
        shape=manifest.shape,
        chain_depth=manifest.chain_depth,
        iteration=iteration,
        target_iteration=manifest.completion.target_iteration,
        generations=generations,
        strays=() if isinstance(facts.queue, Unobserved) else facts.queue.strays,
        no_answer=facts.queue.reason if isinstance(facts.queue, Unobserved) else None,
        problems=facts.problems,
    )


def _chain_state(facts: ChainFacts, generations: Sequence[GenerationStatus]) -> ChainState:
    states = {generation.state for generation in generations}
    held = facts.hold is not None and facts.hold.released_at is None
    if facts.verdict is not None:
        return ChainState.ENDED
    if states & {GenerationState.RUNNING, GenerationState.COMPLETING}:
        return ChainState.RUNNING if facts.ending is None else ChainState.ENDING
    if isinstance(facts.queue, Unobserved):
        return ChainState.HELD if held else ChainState.UNKNOWN
    if GenerationState.QUEUED in states:
        return ChainState.HELD if held else ChainState.QUEUED
    if not states:
        return ChainState.NOT_SUBMITTED
    # A submission without an id, or a job that is not believed, may be alive: only a sure answer is "dry".
    if states != {GenerationState.ENDED} or facts.queue.strays:
        return ChainState.UNKNOWN
    return ChainState.RAN_DRY if facts.ending is None else ChainState.ENDED


def _generation(files: GenerationFiles, queue: ChainQueue | Unobserved, iteration: int | None) -> GenerationStatus:
    rows, problem = _rows(files, queue)
    state = _generation_state(files, rows, problem)
    record, closed = files.record, files.closed
    open_record = record is not None and record.ended_at is None and closed is None
    running = state in (GenerationState.RUNNING, GenerationState.UNKNOWN)
    pending = [task for task in rows or () if task.state.is_pending]
    return GenerationStatus(
        sequence=files.sequence,
        array_job_id=files.array_job_id,
        state=state,
        tasks=None if rows is None else count_states(rows),
        pending_reasons=None if rows is None else dict(Counter(task.reason for task in pending).most_common()),
        phase=_phase(files, rows) if closed is None and running else None,
        outcome=closed.outcome if closed is not None else (record.outcome if record is not None else None),
        exit_code=closed.exit_code if closed is not None else (record.exit_code if record is not None else None),
        closed_by=closed.closed_by if closed is not None else None,
        evidence=closed.evidence if closed is not None else (record.evidence if record is not None else ()),
        iteration_at_start=record.iteration_at_start if record is not None else None,
        iteration_at_end=record.iteration_at_end if record is not None else None,
        iteration_now=iteration if open_record and running else None,
        cycles=files.cycles,
        submitted_at=files.submitted_at,
        started_at=_started_at(record, rows),
        ended_at=_ended_at(record, closed),
        problem=problem,
        drained=_drained(files, rows) if closed is None and running else (),
    )


def _drained(files: GenerationFiles, rows: Sequence[QueuedTask] | None) -> tuple[DrainedTask, ...]:
    """The drained tasks that still hold their nodes, as far as Slurm was asked: a marker outlives its task."""
    held = None if rows is None else {task.array_task_id for task in rows if _holds_node(task)}
    return tuple(
        DrainedTask(
            array_task_id=marker.task,
            nodes=marker.drained_nodes,
            seen_at=marker.seen_at,
            excluded=marker.excluded,
        )
        for marker in files.drained
        if marker.is_active and (held is None or marker.task in held)
    )


def _rows(files: GenerationFiles, queue: ChainQueue | Unobserved) -> tuple[tuple[QueuedTask, ...] | None, str | None]:
    """The believed rows (None: not known), and why there are none that are believed."""
    if isinstance(queue, Unobserved) or files.array_job_id is None:
        return None, None
    doubt = queue.doubtful.get(files.array_job_id)
    return (None, doubt) if doubt is not None else (queue.arrays.get(files.array_job_id, ()), None)


def _generation_state(
    files: GenerationFiles, rows: tuple[QueuedTask, ...] | None, problem: str | None
) -> GenerationState:
    if files.array_job_id is None:
        return GenerationState.UNRESOLVED
    if rows is None:
        ended = files.closed is not None and problem is None
        return GenerationState.ENDED if ended else GenerationState.UNKNOWN
    alive = [task for task in rows if not task.state.is_terminal]
    if any(_holds_node(task) and task.state is not JobState.COMPLETING for task in alive):
        return GenerationState.RUNNING
    if any(task.state is JobState.COMPLETING for task in alive):
        return GenerationState.COMPLETING
    return GenerationState.QUEUED if alive else GenerationState.ENDED


def _phase(files: GenerationFiles, rows: tuple[QueuedTask, ...] | None) -> str | None:
    """What task 0 last said that it does, unless Slurm says that it does nothing any more."""
    if files.lease is None:
        return None
    if rows is not None and not any(task.array_task_id in (0, None) and _holds_node(task) for task in rows):
        return "task 0 has ended"
    return files.lease.phase


def _holds_node(task: QueuedTask) -> bool:
    return not task.state.is_terminal and not task.state.is_pending


def _ended_at(record: GenerationRecord | None, closed: Closed | None) -> str | None:
    """When task 0 ended by its own record; until that is complete, when the generation was closed."""
    if record is not None and record.ended_at is not None:
        return record.ended_at
    return closed.closed_at if closed is not None else None


def _started_at(record: GenerationRecord | None, rows: Sequence[QueuedTask] | None) -> str | None:
    """When task 0 started, by its own record or by Slurm."""
    if record is not None:
        return record.started_at
    for task in rows or ():
        if task.array_task_id == 0 and task.started_at is not None and task.nodelist:
            return format_time(task.started_at)
    return None
