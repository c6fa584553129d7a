"""The judge and the table of scenario hand-off, on the story as it should be and on each way to spoil it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvrx_chain.demo import hand_off
from nvrx_chain.demo.expectations import RowState
from nvrx_chain.demo.hand_off import HAND_OFF, SAVE_INTERVAL, TARGET_ITERATION, judge
from nvrx_chain.demo.repairs import Repair
from nvrx_chain.demo.scenario import Await, KillHostNode, KillRank, ReviveNodes, StartReference
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.sandbox import FaultKind
from nvrx_chain.slurm.states import JobState
from tests.unit.demo.story import Story, loss_of, state_of

RANK_AT, NODE_AT = 36.5, 72.5


def told(*, second: int = 2) -> Story:
    """The whole story as it should go: array job 1 loses a rank, then its node; `second` finishes the training."""
    story = Story()
    story.queued(1, 2, 3, tasks=3)
    for node in ("n1", "n2", "n3"):
        story.node(node)
    story.runs(1, "n1", "n2", "n3")
    story.trains(1, 0, 26, at=10.0, save_interval=SAVE_INTERVAL)
    story.fault(FaultKind.KILL_RANK, 1, "n2", RANK_AT)
    story.trains(1, 20, 46, at=46.0, restart=1, save_interval=SAVE_INTERVAL)
    story.fault(FaultKind.KILL_NODE, 1, "n1", NODE_AT)
    story.closed(1, Outcome.LEASE_LOST, by_task=1)
    story.ends(1, JobState.CANCELLED)
    story.runs(second, "n2", "n3", "n4")
    story.trains(second, 40, TARGET_ITERATION, at=140.0, hosts=("n2", "n3"), save_interval=SAVE_INTERVAL)
    story.reference = {iteration: loss_of(iteration) for iteration in range(1, TARGET_ITERATION + 1)}
    story.closed(second, Outcome.COMPLETED)
    story.decided(Verdict.COMPLETED, second)
    story.ends(second, JobState.COMPLETED)
    story.ends(3, JobState.CANCELLED)
    return story


def test_the_story_as_it_should_be_keeps_every_promise() -> None:
    rows = judge(told().evidence())
    assert [(row.name, row.state, row.detail) for row in rows if row.state is not RowState.OK] == []
    assert len({row.name for row in rows}) == len(rows)


def test_before_anything_has_happened_nothing_is_decided() -> None:
    story = Story()
    story.queued(1, 2, 3)
    assert {row.state for row in judge(story.evidence())} == {RowState.OPEN}


def test_the_table_tells_each_fault_its_repair_and_its_price() -> None:
    assert HAND_OFF.find_repairs(told().evidence()) == (
        Repair(fault="a rank killed (the victim)", repaired_by="in-job restart cycle", seconds=10.5, steps_lost=6),
        Repair(
            fault="the node of task 0 lost (the victim)",
            repaired_by="hand-off to generation 2",
            seconds=68.5,
            steps_lost=6,
        ),
    )


def _rank_started_in_the_next_generation(story: Story) -> None:
    story.events = [event for event in story.events if event.restart_count != 1]


def _never_resumed(story: Story) -> None:
    story.events = [event for event in story.events if event.array_job_id != 2]
    story.trains(2, 0, TARGET_ITERATION, at=140.0)


def _closed_by_the_successor(story: Story) -> None:
    story.closed(1, Outcome.SUPERSEDED)


def _two_at_a_time(story: Story) -> None:
    story.trains(1, 40, 120, at=71.0, restart=1)


def _other_bits(story: Story) -> None:
    story.trains(2, 40, 45, at=140.0, restart=9, losses={41: "0x1.0p+0"})


def _third_ran(story: Story) -> None:
    story.runs(3, "n2")


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (_rank_started_in_the_next_generation, hand_off.RESTARTED),
        (_never_resumed, hand_off.NODE_RESUMED),
        (_closed_by_the_successor, hand_off.FENCED),
        (_two_at_a_time, hand_off.ONE_AT_A_TIME),
        (_other_bits, hand_off.SAME_LOSSES),
        (_other_bits, hand_off.UNDISTURBED),
        (_third_ran, hand_off.NEVER_RAN),
    ],
)
def test_each_way_to_spoil_it_breaks_the_promise_with_its_name(spoil: Callable[[Story], None], name: str) -> None:
    story = told()
    spoil(story)
    assert state_of(judge(story.evidence()), name) is RowState.FAILED


def test_a_generation_that_is_skipped_is_no_hand_off() -> None:
    story = told(second=3)
    assert state_of(judge(story.evidence()), hand_off.TAKEN_OVER) is RowState.FAILED


def test_a_fault_without_an_end_is_not_repaired() -> None:
    story = told()
    story.events = [event for event in story.events if event.array_job_id != 2]
    rows = HAND_OFF.find_repairs(story.evidence())
    assert (rows[1].repaired_by, rows[1].seconds, rows[1].steps_lost) == ("not repaired", None, None)


def test_the_first_blow_falls_some_steps_after_a_checkpoint() -> None:
    wait = HAND_OFF.acts[0]
    assert isinstance(wait, Await)
    story = Story()
    story.trains(1, 0, 24, at=10.0, save_interval=SAVE_INTERVAL)
    assert not wait.is_over(story.evidence(), ())
    story.trains(1, 24, 25, at=34.0, save_interval=SAVE_INTERVAL)
    assert wait.is_over(story.evidence(), ())


def test_the_second_blow_waits_for_a_checkpoint_that_is_newer_than_the_first_blow() -> None:
    (wait,) = (act for act in HAND_OFF.acts if isinstance(act, Await) and "another" in act.title)
    story = Story()
    story.trains(1, 0, 26, at=10.0, save_interval=SAVE_INTERVAL)
    story.fault(FaultKind.KILL_RANK, 1, "n2", RANK_AT)
    story.trains(1, 20, 40, at=46.0, restart=1)
    assert not wait.is_over(story.evidence(), ())
    story.trains(1, 40, 45, at=66.0, restart=1)
    story.saves(1, 40, at=66.0)
    assert wait.is_over(story.evidence(), ())


def test_a_wait_for_rows_ends_when_all_of_them_are_decided() -> None:
    wait = Await(title="the end", seconds=1, rows=(hand_off.NEVER_RAN, hand_off.QUEUE_EMPTY))
    story = told()
    assert wait.is_over(story.evidence(), judge(story.evidence()))
    story.row(3, 0, JobState.PENDING)
    assert not wait.is_over(story.evidence(), judge(story.evidence()))


def test_the_acts_hurt_in_the_order_of_the_story_and_every_row_that_is_waited_for_exists() -> None:
    hurting = [type(act) for act in HAND_OFF.acts if not isinstance(act, Await)]
    assert hurting == [KillRank, KillHostNode, StartReference, ReviveNodes]
    names = {row.name for row in judge(Story().evidence())}
    assert {row for act in HAND_OFF.acts if isinstance(act, Await) for row in act.rows} <= names
