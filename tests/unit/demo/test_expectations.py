"""Each promise: kept, broken, and not decided yet."""

from __future__ import annotations

import pytest

from nvrx_chain.demo.evidence import Resumption, find_resumption
from nvrx_chain.demo.expectations import (
    SLACK_STEPS,
    Expectation,
    RowState,
    check_closed,
    check_never_ran,
    check_nodes_free,
    check_one_at_a_time,
    check_queue_empty,
    check_reference,
    check_resumed,
    check_same_losses,
    check_verdict,
    fail_open,
    failed,
    failures,
    ok,
    undecided,
)
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.states import JobState, NodeState
from tests.unit.demo.story import Story, loss_of

NAME = "the promise"


def resumption(iteration: int, *, tracked: int | None, reached: int) -> Resumption:
    return Resumption(array_job_id=7, iteration=iteration, tracked=tracked, reached=reached, seconds=1.0)


def ended(story: Story) -> Story:
    """A chain of three, the second of which completed; nothing of it is left."""
    story.queued(1, 2, 3)
    for job in (1, 2):
        story.runs(job, "n1", "n2")
        story.ends(job, JobState.COMPLETED)
    story.ends(3, JobState.CANCELLED)
    story.decided(Verdict.COMPLETED, 2)
    story.node("n1")
    story.node("n2")
    return story


def never_ran(story: Story) -> Expectation:
    return check_never_ran(NAME, story.evidence(), story.generations[2])


# Resumed


def test_a_resume_from_the_last_checkpoint_holds() -> None:
    assert check_resumed(NAME, resumption(20, tracked=20, reached=26), 20).state is RowState.OK


@pytest.mark.parametrize(
    "seen",
    [
        resumption(0, tracked=20, reached=26),
        resumption(20, tracked=40, reached=46),
        resumption(0, tracked=0, reached=6),
        resumption(20, tracked=None, reached=26),
        resumption(20, tracked=20, reached=20 + 20 + SLACK_STEPS + 1),
        resumption(40, tracked=40, reached=26),
    ],
    ids=["from scratch", "older one", "nothing saved", "unknown", "too much lost", "ahead of its time"],
)
def test_a_resume_from_anything_else_fails(seen: Resumption) -> None:
    assert check_resumed(NAME, seen, 20).state is RowState.FAILED


def test_losing_as_much_as_an_interval_and_the_slack_holds() -> None:
    assert check_resumed(NAME, resumption(20, tracked=20, reached=40 + SLACK_STEPS), 20).state is RowState.OK


def test_before_a_rank_has_started_nothing_is_decided() -> None:
    assert check_resumed(NAME, None, 20).state is RowState.OPEN


# Closed


def test_the_outcome_word_and_the_closer_are_both_judged() -> None:
    story = Story()
    story.queued(1)
    assert check_closed(NAME, story.generations[1], Outcome.LEASE_LOST).state is RowState.OPEN
    assert check_closed(NAME, None, Outcome.LEASE_LOST).state is RowState.OPEN
    story.closed(1, Outcome.LEASE_LOST, by_task=1)
    assert check_closed(NAME, story.generations[1], Outcome.LEASE_LOST, by_peer=True).state is RowState.OK
    assert check_closed(NAME, story.generations[1], Outcome.FAILED).state is RowState.FAILED
    story.closed(1, Outcome.LEASE_LOST, by_task=0)
    assert check_closed(NAME, story.generations[1], Outcome.LEASE_LOST, by_peer=True).state is RowState.FAILED
    assert check_closed(NAME, story.generations[1], Outcome.LEASE_LOST).state is RowState.OK


def test_a_verdict_is_the_wanted_one_or_a_failure() -> None:
    story = Story()
    assert check_verdict(NAME, story.evidence(), Verdict.COMPLETED).state is RowState.OPEN
    story.decided(Verdict.EXHAUSTED, 1)
    assert check_verdict(NAME, story.evidence(), Verdict.COMPLETED).state is RowState.FAILED
    assert check_verdict(NAME, story.evidence(), Verdict.EXHAUSTED).state is RowState.OK


def test_a_verdict_that_nobody_is_left_to_write_has_failed() -> None:
    story = Story()
    story.queued(1, 2)
    story.closed(1, Outcome.FAILED)
    assert check_verdict(NAME, story.evidence(), Verdict.COMPLETED).state is RowState.OPEN
    story.closed(2, Outcome.FAILED)
    assert check_verdict(NAME, story.evidence(), Verdict.COMPLETED).state is RowState.FAILED
    # A task 0 closes its generation first, then writes the verdict.
    story.closed(2, Outcome.COMPLETED)
    assert check_verdict(NAME, story.evidence(), Verdict.COMPLETED).state is RowState.OPEN
    story.closed(2, Outcome.WALLTIME)
    assert check_verdict(NAME, story.evidence(), Verdict.EXHAUSTED).state is RowState.OPEN


# Queue and nodes


def test_a_rest_that_was_cancelled_unrun_holds() -> None:
    assert never_ran(ended(Story())).state is RowState.OK


def test_a_generation_that_made_its_directory_has_run() -> None:
    story = ended(Story())
    story.runs(3)
    assert never_ran(story).state is RowState.FAILED


def test_a_cancelled_task_that_had_a_node_has_run() -> None:
    story = ended(Story())
    story.row(3, 0, JobState.CANCELLED, "n1")
    assert never_ran(story).state is RowState.FAILED


def test_a_rest_that_is_still_queued_is_not_decided() -> None:
    story = ended(Story())
    story.row(3, 1, JobState.PENDING)
    assert never_ran(story).state is RowState.OPEN


def test_no_rows_of_a_generation_prove_nothing() -> None:
    story = ended(Story())
    story.rows = {spec: row for spec, row in story.rows.items() if row.array_job_id != 3}
    assert never_ran(story).state is RowState.OPEN


def test_a_chain_that_needed_its_last_generation_had_nothing_to_cancel() -> None:
    story = ended(Story())
    assert check_never_ran(NAME, story.evidence(), story.generations[3]).state is RowState.FAILED


def test_before_the_verdict_an_empty_queue_proves_nothing() -> None:
    story = ended(Story())
    story.outcome = None
    assert check_queue_empty(NAME, story.evidence()).state is RowState.OPEN
    assert check_nodes_free(NAME, story.evidence()).state is RowState.OPEN
    assert never_ran(story).state is RowState.OPEN


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PENDING, JobState.COMPLETING, JobState.UNKNOWN])
def test_any_task_that_slurm_has_not_ended_is_left(state: JobState) -> None:
    story = ended(Story())
    assert check_queue_empty(NAME, story.evidence()).state is RowState.OK
    story.row(2, 1, state, "" if state is JobState.PENDING else "n2")
    assert check_queue_empty(NAME, story.evidence(), dead_nodes=("n1",)).state is RowState.OPEN
    assert check_nodes_free(NAME, story.evidence()).state is RowState.OPEN


def test_what_slurm_books_on_a_dead_node_is_not_the_chains_fault() -> None:
    story = ended(Story())
    story.row(1, 0, JobState.COMPLETING, "n1")
    assert check_queue_empty(NAME, story.evidence(), dead_nodes=("n1",)).state is RowState.OK
    assert check_queue_empty(NAME, story.evidence()).state is RowState.OPEN


@pytest.mark.parametrize(
    ("state", "responding"), [(NodeState.ALLOCATED, True), (NodeState.DOWN, True), (NodeState.IDLE, False)]
)
def test_a_node_is_free_when_it_is_idle_and_answers(state: NodeState, responding: bool) -> None:
    story = ended(Story())
    assert check_nodes_free(NAME, story.evidence()).state is RowState.OK
    story.node("n2", state, responding=responding)
    assert check_nodes_free(NAME, story.evidence()).state is RowState.OPEN


# Ranks


def test_generations_that_follow_each_other_hold() -> None:
    story = Story()
    story.trains(1, 0, 10, at=10.0)
    story.trains(2, 5, 10, at=40.0)
    assert check_one_at_a_time(NAME, story.evidence()).state is RowState.OK


def test_a_rank_that_starts_while_one_of_the_last_generation_speaks_fails() -> None:
    story = Story()
    story.trains(1, 0, 10, at=10.0)
    # It says its first word at 22, after the last word of the first generation, but its process began at 19.
    story.trains(2, 5, 10, at=22.0)
    assert check_one_at_a_time(NAME, story.evidence()).state is RowState.FAILED


def test_one_generation_alone_proves_nothing_about_two() -> None:
    story = Story()
    story.trains(1, 0, 10, at=10.0)
    story.trains(1, 5, 10, at=40.0, restart=1)
    assert check_one_at_a_time(NAME, story.evidence()).state is RowState.OPEN


def test_the_same_bits_twice_hold_and_one_other_bit_fails() -> None:
    story = Story()
    story.trains(1, 0, 10, at=10.0)
    assert check_same_losses(NAME, story.evidence()).state is RowState.OPEN
    story.trains(1, 5, 10, at=40.0, restart=1)
    assert check_same_losses(NAME, story.evidence()).state is RowState.OK
    story.trains(2, 8, 10, at=70.0, losses={9: (float.fromhex(loss_of(9)) * (1 + 2**-52)).hex()})
    assert check_same_losses(NAME, story.evidence()).state is RowState.FAILED


def test_every_iteration_is_compared_with_the_undisturbed_run() -> None:
    story = Story()
    story.trains(1, 0, 10, at=10.0)
    story.trains(2, 8, 12, at=40.0)
    undisturbed = {iteration: loss_of(iteration) for iteration in range(1, 13)}
    assert check_reference(NAME, story.evidence(), 12).state is RowState.OPEN
    story.reference = undisturbed
    assert check_reference(NAME, story.evidence(), 12).state is RowState.OK
    assert check_reference(NAME, story.evidence(), 13).state is RowState.OPEN
    story.reference = {**undisturbed, 11: "0x1.0p+0"}
    assert check_reference(NAME, story.evidence(), 12).state is RowState.FAILED
    story.reference = {iteration: loss for iteration, loss in undisturbed.items() if iteration != 3}
    assert check_reference(NAME, story.evidence(), 12).state is RowState.FAILED


def test_an_undisturbed_run_that_failed_says_why() -> None:
    story = Story(reference=Unobserved("it exited with 1"))
    assert check_reference(NAME, story.evidence(), 12) == failed(NAME, "it exited with 1")


# Rows


def test_only_the_open_rows_that_were_waited_for_fail() -> None:
    rows = (ok("a", "seen"), undecided("b", "nothing"), undecided("c", "nothing"))
    judged = fail_open(rows, ("a", "b"), "not within 5 s")
    assert [row.state for row in judged] == [RowState.OK, RowState.FAILED, RowState.OPEN]
    assert judged[1].detail == "not within 5 s; nothing"
    assert failures(judged) == ("b",)


def test_a_story_that_was_never_told_decides_nothing() -> None:
    assert find_resumption(Story().evidence(), 0.0) is None
