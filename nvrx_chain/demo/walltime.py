"""Scenario `walltime`: two generations, each ended by its time limit; the second goes on where the first saved.

Pure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvrx_chain.demo.evidence import Evidence, GenerationSeen, find_reigns, find_resumption
from nvrx_chain.demo.expectations import (
    Expectation,
    check,
    check_closed,
    check_nodes_free,
    check_one_at_a_time,
    check_queue_empty,
    check_verdict,
    failed,
    ok,
    undecided,
)
from nvrx_chain.demo.repairs import NOT_REPAIRED, Repair, describe_repair
from nvrx_chain.demo.scenario import Act, Await, Scenario, ScenarioName
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.states import JobState
from nvrx_chain.workloads.events import Event, EventKind

TRAIN_TASKS = 2
STEP_SECONDS = 0.25
TARGET_ITERATION = 100_000
"""Nothing that two minutes could reach."""
TIME_LIMIT_MINUTES = 2
"""Slurm looks at limits every 30 s and warns one look early: of a single minute too little would be left to train."""
GENERATION_SECONDS = 180.0
"""For the wait: the limit, and twice Slurm's own pace."""

ENDED = "generation {}: ended by its time limit"
SAVED = "generation {}: its ranks were warned and saved their last step"
RESUMED = "generation 2 went on where generation 1 had saved"
NOT_KILLED = "Slurm had to kill nothing at a time limit"
ONE_AT_A_TIME = "never ranks of two generations at the same time"
EXHAUSTED = "the chain ended as exhausted"
QUEUE_EMPTY = "no task of the chain is left in the queue"
NODES_FREE = "every node is free"


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    """Every promise of the scenario, in the order of the story."""
    first, second = _generation(evidence, 1), _generation(evidence, 2)
    return (
        check_closed(ENDED.format(1), first, Outcome.WALLTIME),
        _check_saved(SAVED.format(1), evidence, first),
        _check_went_on(evidence, first),
        check_closed(ENDED.format(2), second, Outcome.WALLTIME),
        _check_saved(SAVED.format(2), evidence, second),
        _check_not_killed(evidence),
        check_one_at_a_time(ONE_AT_A_TIME, evidence),
        check_verdict(EXHAUSTED, evidence, Verdict.EXHAUSTED),
        check_queue_empty(QUEUE_EMPTY, evidence),
        check_nodes_free(NODES_FREE, evidence),
    )


def find_repairs(evidence: Evidence) -> tuple[Repair, ...]:
    """A row for each time limit that was announced."""
    rows = []
    for seen in evidence.generations:
        warning = _find_warning(evidence, seen)
        if warning is None:
            continue
        fault = f"time limit of {seen.label}"
        row = describe_repair(evidence, fault, warning.monotonic, seen.array_job_id, until=_end(evidence, seen))
        if row.repaired_by == NOT_REPAIRED and seen is evidence.generations[-1]:
            row = Repair(fault=fault, repaired_by="saved for `submit --resume`: it was the last generation")
        rows.append(row)
    return tuple(rows)


def _generation(evidence: Evidence, sequence: int) -> GenerationSeen | None:
    return next((seen for seen in evidence.generations if seen.sequence == sequence), None)


def _find_warning(evidence: Evidence, seen: GenerationSeen) -> Event | None:
    """The first line by which a rank of the generation says that it was told to save."""
    return next((event for event in _of(evidence, seen) if event.event is EventKind.SIGNAL), None)


def _of(evidence: Evidence, seen: GenerationSeen) -> tuple[Event, ...]:
    return tuple(event for event in evidence.events if event.array_job_id == seen.array_job_id)


def _end(evidence: Evidence, seen: GenerationSeen) -> float | None:
    reigns = (reign for reign in find_reigns(evidence.events) if reign.array_job_id == seen.array_job_id)
    return next((reign.last_seen_at for reign in reigns), None)


def _check_saved(name: str, evidence: Evidence, seen: GenerationSeen | None) -> Expectation:
    if seen is None or seen.closed is None:
        return undecided(name, "it is not closed")
    warning = _find_warning(evidence, seen)
    if warning is None:
        return failed(name, "no rank was told to save")
    saved = [event.iteration for event in _of(evidence, seen) if event.event is EventKind.SAVE_FINISHED]
    stepped = [event.iteration for event in _of(evidence, seen) if event.event is EventKind.STEP]
    detail = f"{warning.signal}, saved {saved[-1] if saved else 'nothing'}, last step {max(stepped, default=0)}"
    return check(name, bool(saved) and saved[-1] == max(stepped, default=0) > 0, detail)


def _check_went_on(evidence: Evidence, first: GenerationSeen | None) -> Expectation:
    warning = _find_warning(evidence, first) if first else None
    resumption = (
        find_resumption(evidence, warning.monotonic, until=_end(evidence, first)) if warning and first else None
    )
    if resumption is None:
        return undecided(RESUMED, "no rank has started since")
    second = evidence.generation(resumption.array_job_id)
    holds = second is not None and second.sequence == 2 and resumption.iteration > 0 and resumption.steps_lost == 0
    return check(RESUMED, holds, f"resumed at {resumption.iteration}, {resumption.steps_lost} steps lost")


def _check_not_killed(evidence: Evidence) -> Expectation:
    if evidence.outcome is None or evidence.queue is None:
        return undecided(NOT_KILLED, "the chain has no verdict")
    if evidence.alive():
        return undecided(NOT_KILLED, "tasks are still there")
    killed = [f"{task.spec} {task.raw_state}" for task in evidence.queue if task.state is not JobState.COMPLETED]
    return failed(NOT_KILLED, ", ".join(killed)) if killed else ok(NOT_KILLED, "every task ended by itself")


ACTS: tuple[Act, ...] = (
    Await(title="training starts", until=lambda e: e.iteration() > 0, seconds=90),
    Await(
        title="the time limit ends generation 1",
        seconds=GENERATION_SECONDS,
        rows=(ENDED.format(1), SAVED.format(1)),
    ),
    Await(title="generation 2 goes on", seconds=90, rows=(RESUMED,)),
    Await(
        title="the time limit ends generation 2",
        seconds=GENERATION_SECONDS,
        rows=(ENDED.format(2), SAVED.format(2), EXHAUSTED),
    ),
    Await(title="every node is free", seconds=45, rows=(NOT_KILLED, QUEUE_EMPTY, NODES_FREE)),
)


def _submit_flags(place: Path) -> dict[str, Any]:
    return {
        "train_tasks": str(TRAIN_TASKS),
        "chain_depth": "2",
        "time_limit": str(TIME_LIMIT_MINUTES),
        "target_iteration": str(TARGET_ITERATION),
    }


WALLTIME = Scenario(
    name=ScenarioName.WALLTIME,
    title="two generations of two minutes each; the second goes on where the first saved",
    nodes=TRAIN_TASKS,
    submit_flags=_submit_flags,
    # No saves but the one that the warning asks for.
    workload=("--step-seconds", str(STEP_SECONDS), "--save-interval", "0"),
    acts=ACTS,
    judge=judge,
    find_repairs=find_repairs,
)
