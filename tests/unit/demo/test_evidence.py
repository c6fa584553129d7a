"""What follows from the ranks' lines: lives, resumptions, reigns, losses."""

from __future__ import annotations

import pytest

from nvrx_chain.demo.evidence import (
    TrackerSample,
    find_lives,
    find_losses,
    find_reigns,
    find_repeated,
    find_resumption,
)
from nvrx_chain.workloads.events import EventKind
from tests.unit.demo.story import START_UP_SECONDS, Story, loss_of


def test_a_life_begins_with_its_process_and_not_with_its_first_line() -> None:
    story = Story()
    story.trains(7, 20, 23, at=50.0, hosts=("n1",))
    (life,) = find_lives(story.evidence().events)
    assert life.began_at == 50.0 - START_UP_SECONDS
    assert (life.announced_at, life.starts_from, life.first_step_at, life.last_seen_at) == (50.0, 20, 51.0, 53.0)


def test_the_same_pid_on_another_node_or_after_a_restart_is_another_life() -> None:
    story = Story()
    story.trains(7, 0, 2, at=10.0)
    story.trains(7, 0, 2, at=30.0, restart=1)
    story.trains(8, 0, 2, at=50.0)
    assert len(find_lives(story.evidence().events)) == 6


def test_a_rank_that_never_announced_itself_lives_from_its_first_line() -> None:
    story = Story()
    story.line(EventKind.CHECKPOINT_IGNORED, 7, 40, at=5.0)
    (life,) = find_lives(story.evidence().events)
    assert (life.began_at, life.announced_at, life.starts_from) == (5.0, None, None)
    assert find_resumption(story.evidence(), 1.0) is None


def test_a_resumption_tells_where_when_and_what_was_lost() -> None:
    story = Story()
    story.trains(7, 0, 27, at=10.0, save_interval=20)
    story.trains(7, 20, 25, at=45.0, restart=1)
    resumption = find_resumption(story.evidence(), at=36.5)
    assert resumption is not None
    assert (resumption.array_job_id, resumption.iteration, resumption.tracked) == (7, 20, 20)
    assert (resumption.reached, resumption.steps_lost, resumption.seconds) == (26, 6, 9.5)


def test_a_step_that_a_survivor_reports_after_the_blow_is_no_resumption() -> None:
    story = Story()
    story.trains(7, 0, 30, at=10.0)
    assert find_resumption(story.evidence(), at=36.5) is None


def test_a_rank_that_has_only_announced_itself_has_done_no_step_yet() -> None:
    story = Story()
    story.trains(7, 0, 27, at=10.0)
    story.trains(7, 20, 20, at=45.0, restart=1)
    resumption = find_resumption(story.evidence(), at=37.0)
    assert resumption is not None
    assert resumption.seconds is None


def test_what_was_reached_is_counted_up_to_the_end_of_a_training_that_was_told_to_end() -> None:
    story = Story()
    last = story.trains(7, 0, 30, at=10.0)
    story.trains(8, 30, 35, at=60.0)
    resumption = find_resumption(story.evidence(), at=35.0, until=last)
    assert resumption is not None
    assert (resumption.reached, resumption.steps_lost) == (30, 0)


def test_a_late_reading_of_the_tracker_does_not_hide_a_save_that_a_rank_reported() -> None:
    story = Story()
    story.saves(7, 20, at=10.0)
    story.tracker = [TrackerSample(at=30.0, iteration=20)]
    assert story.evidence().tracked(at=15.0) == 20


def test_a_save_that_no_rank_lived_to_report_is_known_from_the_tracker() -> None:
    story = Story()
    story.saves(7, 20, at=10.0)
    story.tracker.append(TrackerSample(at=12.0, iteration=40))
    assert story.evidence().tracked(at=15.0) == 40
    assert story.evidence().tracked(at=11.0) == 20
    assert story.evidence().tracked(at=1.0) is None


def test_the_iteration_falls_back_with_a_resume() -> None:
    story = Story()
    story.trains(7, 0, 27, at=10.0)
    story.trains(7, 20, 22, at=50.0, restart=1)
    assert story.evidence().iteration() == 22
    assert story.evidence().iteration(at=37.0) == 27
    assert Story().evidence().iteration() == 0


def test_a_reign_reaches_over_all_lives_of_a_generation() -> None:
    story = Story()
    story.trains(7, 0, 5, at=10.0)
    story.trains(7, 0, 5, at=30.0, restart=1)
    story.trains(8, 0, 5, at=50.0)
    first, second = find_reigns(story.evidence().events)
    assert (first.array_job_id, first.began_at, first.last_seen_at) == (7, 10.0 - START_UP_SECONDS, 35.0)
    assert second.array_job_id == 8


def test_reigns_are_in_the_order_of_time_even_where_job_ids_start_anew() -> None:
    story = Story()
    story.trains(9, 0, 5, at=10.0)
    story.trains(1, 0, 5, at=50.0)
    assert [reign.array_job_id for reign in find_reigns(story.evidence().events)] == [9, 1]


def test_every_different_loss_of_an_iteration_is_kept() -> None:
    story = Story()
    story.trains(7, 0, 3, at=10.0)
    story.trains(7, 1, 3, at=30.0, restart=1, losses={2: "0x1.8p+1"})
    losses = find_losses(story.evidence().events)
    assert losses == {1: (loss_of(1),), 2: (loss_of(2), "0x1.8p+1"), 3: (loss_of(3),)}


@pytest.mark.parametrize(("start", "repeated"), [(1, (2, 3)), (3, ())])
def test_only_another_life_of_a_rank_repeats_an_iteration(start: int, repeated: tuple[int, ...]) -> None:
    # Two ranks report every iteration once each: that alone repeats nothing.
    story = Story()
    story.trains(7, 0, 3, at=10.0)
    story.trains(7, start, 5, at=30.0, restart=1)
    assert find_repeated(story.evidence().events) == repeated
