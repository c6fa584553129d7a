"""The story in lines: each thing once, in words that need no colour."""

from __future__ import annotations

from nvrx_chain.demo.narrate import describe_now, narrate
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.states import JobState
from nvrx_chain.workloads.events import EventKind
from tests.unit.demo.story import Story


def test_a_new_reading_tells_only_what_is_new() -> None:
    story = Story()
    story.queued(5, 6)
    before = story.evidence()
    assert narrate(None, before) == ()
    story.runs(5, "n1", "n2")
    story.trains(5, 0, 20, at=10.0, save_interval=20)
    after = story.evidence()
    assert narrate(before, after) == (
        "generation 1 (array job 5) starts",
        "generation 1: 2 ranks, rank 0 on n1: trains from the beginning",
        "generation 1: checkpoint 20 is on disk",
    )
    assert narrate(after, story.evidence()) == ()


def test_a_resume_and_a_warning_are_told_once_and_not_by_every_rank() -> None:
    story = Story()
    story.queued(5)
    story.trains(5, 40, 42, at=10.0)
    for rank in (0, 1):
        story.line(EventKind.SIGNAL, 5, 42, at=13.0 + rank / 10, rank=rank, signal="SIGUSR1")
    assert narrate(None, story.evidence()) == (
        "generation 1: 2 ranks, rank 0 on n1: resumes at iteration 40",
        "generation 1: told to save and leave (SIGUSR1) at iteration 42",
    )


def test_the_end_of_a_generation_and_of_the_chain_come_with_their_reasons() -> None:
    story = Story()
    story.queued(5, 6)
    before = story.evidence()
    story.says_no_restart(5, "n2")
    story.closed(5, Outcome.NO_RESTART)
    story.decided(Verdict.NO_RESTART, 5)
    story.ends(6, JobState.CANCELLED)
    assert narrate(before, story.evidence()) == (
        "generation 1: the launcher on n2 exited with 93",
        "generation 1 closed as no_restart by 5_0 on n1: because",
        "the chain ended as no_restart: because",
        "generation 2 was cancelled before it started",
    )


def test_a_cancelled_generation_that_ran_was_not_cancelled_before_it_started() -> None:
    story = Story()
    story.queued(5)
    before = story.evidence()
    story.runs(5, "n1", "n2")
    story.ends(5, JobState.CANCELLED)
    assert narrate(before, story.evidence()) == ("generation 1 (array job 5) starts",)


def test_a_line_of_a_job_that_is_not_the_chains_is_told_by_its_number() -> None:
    story = Story()
    story.trains(9, 0, 1, at=10.0)
    assert narrate(None, story.evidence())[0].startswith("array job 9: ")


def test_how_things_stand_counts_tasks_by_state() -> None:
    story = Story()
    assert describe_now(story.evidence(), 80) == "nothing in the queue"
    story.queued(5, 6, tasks=3)
    story.runs(5, "n1", "n2")
    story.trains(5, 0, 12, at=10.0)
    assert (
        describe_now(story.evidence(), 80)
        == "generation 1: 1 pending, 2 running | generation 2: 3 pending | iteration 12/80"
    )
    assert describe_now(story.evidence(), None).endswith("| iteration 12")
