"""The judge and the table of scenario walltime."""

from __future__ import annotations

import pytest

from nvrx_chain.demo import walltime
from nvrx_chain.demo.expectations import RowState
from nvrx_chain.demo.repairs import Repair
from nvrx_chain.demo.scenario import Await
from nvrx_chain.demo.walltime import WALLTIME, judge
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.states import JobState
from nvrx_chain.workloads.events import EventKind
from tests.unit.demo.story import Story, state_of


def told(*, saved: int = 50, resumed: int = 50) -> Story:
    """The whole story: two generations of 50 iterations. The first saves at `saved`, the second starts at `resumed`."""
    story = Story()
    story.queued(1, 2)
    story.node("n1")
    story.node("n2")
    story.runs(1, "n1", "n2")
    # The warning comes while a step is under way, which is still done.
    end = story.trains(1, 0, 50, at=10.0)
    story.line(EventKind.SIGNAL, 1, 49, at=end - 0.5, signal="SIGUSR1")
    story.saves(1, saved, at=end + 0.2)
    story.closed(1, Outcome.WALLTIME)
    story.ends(1, JobState.COMPLETED)
    story.runs(2, "n1", "n2")
    end = story.trains(2, resumed, 100, at=80.0)
    story.line(EventKind.SIGNAL, 2, 100, at=end + 0.1, signal="SIGUSR1")
    story.saves(2, 100, at=end + 0.2)
    story.closed(2, Outcome.WALLTIME)
    story.decided(Verdict.EXHAUSTED, 2)
    story.ends(2, JobState.COMPLETED)
    return story


def test_the_story_as_it_should_be_keeps_every_promise() -> None:
    rows = judge(told().evidence())
    assert [(row.name, row.state, row.detail) for row in rows if row.state is not RowState.OK] == []


def test_before_anything_has_happened_nothing_is_decided() -> None:
    assert {row.state for row in judge(Story().evidence())} == {RowState.OPEN}


def test_no_step_is_lost_at_a_time_limit_although_one_is_under_way_at_the_warning() -> None:
    assert WALLTIME.find_repairs(told().evidence()) == (
        Repair(
            fault="time limit of generation 1",
            repaired_by="hand-off to generation 2",
            seconds=81.0 - 59.5,
            steps_lost=0,
        ),
        Repair(
            fault="time limit of generation 2",
            repaired_by="saved for `submit --resume`: it was the last generation",
        ),
    )


@pytest.mark.parametrize("resumed", [0, 49])
def test_a_second_generation_that_starts_anywhere_else_breaks_the_promise(resumed: int) -> None:
    assert state_of(judge(told(resumed=resumed).evidence()), walltime.RESUMED) is RowState.FAILED


def test_a_save_of_an_earlier_step_breaks_the_promise() -> None:
    assert state_of(judge(told(saved=49).evidence()), walltime.SAVED.format(1)) is RowState.FAILED


def test_ranks_that_were_never_warned_break_the_promise() -> None:
    story = told()
    story.events = [event for event in story.events if event.event is not EventKind.SIGNAL]
    assert state_of(judge(story.evidence()), walltime.SAVED.format(1)) is RowState.FAILED


def test_a_task_that_slurm_had_to_kill_breaks_the_promise() -> None:
    story = told()
    story.row(2, 1, JobState.TIMEOUT, "n2")
    assert state_of(judge(story.evidence()), walltime.NOT_KILLED) is RowState.FAILED
    story.row(2, 1, JobState.COMPLETING, "n2")
    assert state_of(judge(story.evidence()), walltime.NOT_KILLED) is RowState.OPEN


def test_a_first_generation_that_nobody_takes_over_is_not_repaired() -> None:
    story = told()
    story.events = [event for event in story.events if event.array_job_id == 1]
    (row,) = WALLTIME.find_repairs(story.evidence())
    assert row.repaired_by == "not repaired"


def test_every_row_that_is_waited_for_exists() -> None:
    names = {row.name for row in judge(Story().evidence())}
    assert {row for act in WALLTIME.acts if isinstance(act, Await) for row in act.rows} <= names
