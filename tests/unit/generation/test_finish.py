"""From how the launcher ended to the outcome of the generation: the table of docs/protocol.md, and its precedence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.finish import LauncherFacts, decide_ending
from nvrx_chain.generation.session import StopCause
from nvrx_chain.records.control import GenerationRecord
from nvrx_chain.records.manifest import Completion, CompletionKind
from nvrx_chain.records.outcome import Outcome

FACTS = LauncherFacts(
    cause=StopCause.LAUNCHER_ENDED,
    exit_code=1,
    no_restart_said=False,
    no_restart_exit_code=93,
    walltime_warned=False,
    near_wall=False,
    preempted=False,
    parent_died=False,
    iteration_at_start=100,
    iteration_at_end=200,
    done_file_exists=False,
)
ZERO = replace(FACTS, exit_code=0)

EXIT_ZERO = Completion(kind=CompletionKind.EXIT_ZERO)
TARGET = Completion(kind=CompletionKind.TARGET_ITERATION, target_iteration=200)
DONE_FILE = Completion(kind=CompletionKind.DONE_FILE, done_file="/run/done")
QUIET = Completion(kind=CompletionKind.TWO_QUIET_EXITS)


def outcome(
    facts: LauncherFacts, completion: Completion = EXIT_ZERO, previous: GenerationRecord | None = None
) -> Outcome:
    ending = decide_ending(facts, completion, previous)
    assert ending.why
    return ending.outcome


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (FACTS, Outcome.FAILED),
        (ZERO, Outcome.COMPLETED),
        (replace(FACTS, exit_code=None), Outcome.FAILED),
        (replace(FACTS, exit_code=143), Outcome.FAILED),
        (replace(FACTS, exit_code=75), Outcome.FAILED),
        (replace(FACTS, exit_code=93), Outcome.NO_RESTART),
        (replace(FACTS, no_restart_said=True, exit_code=143), Outcome.NO_RESTART),
        (replace(FACTS, no_restart_said=True, exit_code=0), Outcome.NO_RESTART),
        (replace(FACTS, cause=StopCause.NO_RESTART, exit_code=143), Outcome.NO_RESTART),
        (replace(FACTS, cause=StopCause.TERMINATED, exit_code=143), Outcome.TERMINATED),
        (replace(ZERO, cause=StopCause.TERMINATED), Outcome.TERMINATED),
        (replace(FACTS, cause=StopCause.TERMINATED, preempted=True), Outcome.PREEMPTED),
        (replace(FACTS, cause=StopCause.TERMINATED, parent_died=True), Outcome.FAILED),
        (replace(FACTS, cause=StopCause.TERMINATED, near_wall=True), Outcome.WALLTIME),
        (replace(FACTS, cause=StopCause.LOST_SIGNAL), Outcome.TERMINATED),
        (replace(FACTS, cause=StopCause.LOST_SIGNAL, near_wall=True), Outcome.WALLTIME),
        (replace(FACTS, cause=StopCause.STOPPED), Outcome.TERMINATED),
        (replace(ZERO, cause=StopCause.STOPPED), Outcome.TERMINATED),
        (replace(FACTS, cause=StopCause.WALLTIME, walltime_warned=True), Outcome.WALLTIME),
        (replace(ZERO, walltime_warned=True), Outcome.WALLTIME),
        (replace(ZERO, near_wall=True), Outcome.UNFINISHED),
        (replace(FACTS, cause=StopCause.SELF_FENCED), Outcome.FAILED),
        (replace(FACTS, cause=StopCause.NODE_FAILED), Outcome.FAILED),
        (replace(ZERO, cause=StopCause.NODE_FAILED), Outcome.UNFINISHED),
        (replace(FACTS, cause=StopCause.CLOSED), Outcome.FAILED),
    ],
)
def test_each_end_of_a_launcher_has_its_outcome(facts: LauncherFacts, expected: Outcome) -> None:
    assert outcome(facts) is expected


def test_the_no_restart_code_is_the_setting_and_not_a_number() -> None:
    assert outcome(replace(FACTS, exit_code=93, no_restart_exit_code=42)) is Outcome.FAILED
    assert outcome(replace(FACTS, exit_code=42, no_restart_exit_code=42)) is Outcome.NO_RESTART


@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        ZERO,
        replace(FACTS, cause=StopCause.TERMINATED),
        replace(FACTS, walltime_warned=True),
        replace(FACTS, cause=StopCause.SELF_FENCED, exit_code=None),
    ],
)
def test_a_target_or_a_done_file_counts_however_the_launcher_ended(facts: LauncherFacts) -> None:
    assert outcome(facts, TARGET) is Outcome.COMPLETED
    assert outcome(replace(facts, done_file_exists=True), DONE_FILE) is Outcome.COMPLETED


def test_the_no_restart_verdict_beats_the_criterion() -> None:
    assert outcome(replace(FACTS, no_restart_said=True), TARGET) is Outcome.NO_RESTART


@pytest.mark.parametrize("iteration", [199, 0, None, Unobserved("not a number")])
def test_a_target_that_is_not_reached_or_not_known_is_not_finished(iteration: int | Unobserved | None) -> None:
    assert outcome(replace(ZERO, iteration_at_end=iteration), TARGET) is Outcome.UNFINISHED
    assert outcome(replace(FACTS, iteration_at_end=iteration), TARGET) is Outcome.FAILED


def test_exit_zero_without_the_done_file_is_unfinished() -> None:
    assert outcome(ZERO, DONE_FILE) is Outcome.UNFINISHED


def previous(**changes: object) -> GenerationRecord:
    values: dict[str, object] = {
        "chain_id": "c",
        "started_at": "",
        "launched_at": "",
        "ended_at": "",
        "outcome": Outcome.UNFINISHED,
        "exit_code": 0,
        "signalled": False,
        "near_wall": False,
        "iteration_at_start": 100,
        "iteration_at_end": 200,
        "cycles": None,
        "run_seconds": 1.0,
        "array_job_id": 1,
        "array_task_id": 0,
        "restart_count": 0,
        "host": "n1",
        "boot_id": "b",
        "pid": 1,
        "pid_started_at": 1,
        **changes,
    }
    return GenerationRecord(**values)  # type: ignore[arg-type]


STILL = replace(ZERO, iteration_at_start=200, iteration_at_end=200)


def test_two_quiet_exits_in_a_row_finish_a_chain_without_a_criterion() -> None:
    assert outcome(STILL, QUIET, previous()) is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("facts", "before"),
    [
        (STILL, None),
        (STILL, previous(exit_code=1)),
        (STILL, previous(exit_code=None)),
        (STILL, previous(signalled=True)),
        (STILL, previous(near_wall=True)),
        (STILL, previous(iteration_at_end=199)),
        (STILL, previous(iteration_at_end=None)),
        (STILL, previous(iteration_at_end=-1)),
        (replace(STILL, iteration_at_start=199), previous()),
        (replace(STILL, iteration_at_start=0, iteration_at_end=0), previous(iteration_at_end=0)),
        (replace(STILL, iteration_at_start=None, iteration_at_end=None), previous(iteration_at_end=None)),
        (replace(STILL, iteration_at_end=Unobserved("x")), previous()),
        (replace(STILL, near_wall=True), previous()),
    ],
)
def test_anything_less_than_two_quiet_exits_is_unfinished(
    facts: LauncherFacts, before: GenerationRecord | None
) -> None:
    assert outcome(facts, QUIET, before) is Outcome.UNFINISHED


facts = st.builds(
    LauncherFacts,
    cause=st.sampled_from(StopCause),
    exit_code=st.sampled_from([None, 0, 1, 75, 93, 137, 143]),
    no_restart_said=st.booleans(),
    no_restart_exit_code=st.just(93),
    walltime_warned=st.booleans(),
    near_wall=st.booleans(),
    preempted=st.booleans(),
    parent_died=st.booleans(),
    iteration_at_start=st.sampled_from([None, 0, 100, 200, Unobserved("x")]),
    iteration_at_end=st.sampled_from([None, 0, 100, 200, Unobserved("x")]),
    done_file_exists=st.booleans(),
)


@given(facts=facts, completion=st.sampled_from([EXIT_ZERO, TARGET, DONE_FILE, QUIET]))
def test_a_chain_ends_only_by_a_verdict_or_by_its_criterion(facts: LauncherFacts, completion: Completion) -> None:
    found = outcome(facts, completion, previous())
    verdict = facts.no_restart_said or facts.exit_code == 93 or facts.cause is StopCause.NO_RESTART
    assert (found is Outcome.NO_RESTART) is verdict
    if found is not Outcome.COMPLETED:
        return
    if completion is DONE_FILE:
        assert facts.done_file_exists
    elif completion is TARGET:
        assert facts.iteration_at_end == 200
    else:
        assert facts.exit_code == 0
        assert facts.cause is StopCause.LAUNCHER_ENDED
        assert not facts.walltime_warned
        assert not facts.near_wall
