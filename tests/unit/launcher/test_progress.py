"""When a job is given up, and when not: what the checkpoint marker says, cycle after cycle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_chain.launcher.progress import (
    CheckpointIntervals,
    Cycle,
    Marker,
    Progress,
    ProgressSettings,
    minimum_seconds,
    progress_settings,
)

LONG = 1000.0
UNREADABLE = Unobserved("no answer")


def after(start: Marker, *markers: Marker, ran: float = LONG, settings: ProgressSettings | None = None) -> Progress:
    progress = Progress.begin(start)
    for number, marker in enumerate(markers):
        cycle = Cycle(number=number, ran_seconds=ran, failed_agent=f"a{number}")
        progress = progress.after(cycle, marker, settings or ProgressSettings(), None)
    return progress


@pytest.mark.parametrize(
    ("start", "markers", "count"),
    [
        (100, (100,), 1),
        (100, (100, 100, 100), 3),
        (100, (100, 100, 101), 0),
        (100, (100, None, 100), 2),
        (100, (100, UNREADABLE, UNREADABLE), 1),
        (None, (None, None, None), 0),
        (None, (0, 0, 0), 0),
        (0, (0, 0, 0), 0),
        (None, (7, 7), 1),
        (UNREADABLE, (100,), 0),
        (UNREADABLE, (100, 100), 1),
        (100, (50, 60), 0),
        (100, (50, 50, 50), 3),
        (100, (0,), 1),
        (100, (0, 0, 0), 1),
    ],
)
def test_counted_cycles_without_progress(start: Marker, markers: tuple[Marker, ...], count: int) -> None:
    assert after(start, *markers).count == count


def test_less_than_the_minimum_is_no_progress_and_measured_from_where_it_got() -> None:
    settings = ProgressSettings(min_iterations=10)
    assert after(100, 106, 112, 118, settings=settings).count == 3
    assert after(100, 106, 116, settings=settings).count == 0


def test_a_cycle_too_short_for_a_checkpoint_never_counts_however_many_there_are() -> None:
    assert after(100, *[100] * 50, ran=599.9).count == 0
    assert after(100, *[100] * 3, ran=600.0).count == 3


def test_half_the_observed_interval_is_a_fair_chance_unless_told_otherwise() -> None:
    assert minimum_seconds(ProgressSettings(), None) == 600
    assert minimum_seconds(ProgressSettings(), 90.0) == 45
    assert minimum_seconds(ProgressSettings(min_cycle_seconds=5.0), 90.0) == 5


def test_the_verdict_comes_at_the_threshold_and_never_when_off() -> None:
    assert not after(100, 100, 100).is_spent(ProgressSettings())
    assert after(100, 100, 100, 100).is_spent(ProgressSettings())
    off = ProgressSettings(max_cycles=0)
    assert not after(100, *[100] * 99, settings=off).is_spent(off)


def test_those_who_failed_in_the_counted_cycles_are_known_and_forgotten_with_progress() -> None:
    assert after(100, 100, None, 100).failed_agents == ("a0", "a2")
    assert after(100, 100, 101).failed_agents == ()


@given(
    st.none() | st.integers(0, 50) | st.just(UNREADABLE),
    st.lists(st.tuples(st.none() | st.integers(0, 50) | st.just(UNREADABLE), st.booleans()), max_size=40),
    st.integers(1, 5),
)
def test_a_verdict_needs_that_many_long_readable_cycles_since_the_last_progress(
    start: Marker, lives: list[tuple[Marker, bool]], most: int
) -> None:
    settings = ProgressSettings(max_cycles=most)
    progress = Progress.begin(start)
    last: list[tuple[int, bool]] = []
    for number, (marker, long) in enumerate(lives):
        cycle = Cycle(number=number, ran_seconds=LONG if long else 1.0, failed_agent="a")
        before, progress = progress, progress.after(cycle, marker, settings, None)
        if not isinstance(marker, int):
            assert (progress.count, progress.baseline) == (before.count, before.baseline)
            continue
        if before.baseline is not None and marker > before.baseline:
            assert progress.count == 0
            last = []
        last.append((marker, long))
        assert progress.count <= sum(long for _, long in last)
        assert len(progress.failed_agents) == progress.count
        assert progress.baseline is not None
        assert progress.baseline <= marker
    if progress.is_spent(settings):
        assert sum(long for _, long in last) >= most


@pytest.mark.parametrize(
    "typed",
    [
        {"min_progress_iterations": 0},
        {"max_no_progress_cycles": -1},
        {"min_cycle_seconds": -0.1},
        {"min_cycle_seconds": float("nan")},
        {"min_cycle_seconds": float("inf")},
    ],
)
def test_settings_that_mean_nothing_are_refused(typed: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        progress_settings(**typed)  # type: ignore[arg-type]


def watch(*seen: tuple[int, Marker, float]) -> float | None:
    intervals = CheckpointIntervals()
    for cycle, marker, at in seen:
        intervals = intervals.seen(cycle, marker, at)
    return intervals.interval


def test_the_interval_is_the_time_between_two_changes_within_one_cycle() -> None:
    assert watch((0, 0, 0.0), (0, 10, 30.0)) is None
    assert watch((0, 0, 0.0), (0, 10, 30.0), (0, 10, 60.0), (0, 20, 90.0)) == 60
    # What lies between two cycles holds a restart, and what is lost by it.
    assert watch((0, 10, 0.0), (0, 20, 10.0), (1, 20, 500.0), (1, 30, 900.0)) is None


def test_one_outlier_among_the_intervals_changes_little_and_an_unreadable_marker_nothing() -> None:
    seen: list[tuple[int, Marker, float]] = [(0, number, 60.0 * number) for number in range(6)]
    assert watch(*seen, (0, UNREADABLE, 301.0), (0, None, 302.0), (0, 7, 4000.0)) == 60


def test_a_marker_that_goes_back_is_no_interval() -> None:
    assert watch((0, 10, 0.0), (0, 20, 10.0), (0, 5, 11.0)) is None
