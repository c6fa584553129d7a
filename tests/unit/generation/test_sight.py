"""Blind is who got nothing out of the directory for longer than one read may take; slow is not blind."""

from __future__ import annotations

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.sight import BLIND_SECONDS, Sight
from tests.fakes.fake_clock import FakeClock

PAUSE = 2.0
NEVER = float("-inf")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def read(clock: FakeClock, sight: Sight, takes: float, found: object = "something") -> object:
    def look() -> object:
        clock.advance(takes)
        return found

    return sight.read(look)


def test_many_quick_reads_are_no_blindness_however_long_they_take_together(clock: FakeClock) -> None:
    sight = Sight(clock, PAUSE)
    for _ in range(500):
        read(clock, sight, 1.0)
    assert sight.since == NEVER


@pytest.mark.parametrize(("pause", "takes", "blind"), [(0, BLIND_SECONDS, False), (0, 8.1, True), (PAUSE, 8.1, True)])
def test_one_read_that_takes_too_long_is(clock: FakeClock, pause: float, takes: float, blind: bool) -> None:
    sight = Sight(clock, PAUSE)
    read(clock, sight, 0.0)
    clock.advance(pause)
    if pause:
        sight.begin_pass()
    read(clock, sight, takes)
    assert sight.since == (clock.monotonic() if blind else NEVER)


def test_the_pause_between_two_passes_is_none_and_a_freeze_in_it_is(clock: FakeClock) -> None:
    sight = Sight(clock, PAUSE)
    for pause, blind in ((PAUSE + BLIND_SECONDS, False), (PAUSE + BLIND_SECONDS + 0.1, True)):
        clock.advance(pause)
        sight.begin_pass()
        read(clock, sight, 0.0)
        assert (sight.since == clock.monotonic()) is blind
        assert (sight.since == NEVER) is not blind


@pytest.mark.parametrize("found", [None, Unobserved("EIO")])
def test_nothing_and_a_failure_show_nothing_and_are_handed_on(clock: FakeClock, found: object) -> None:
    sight = Sight(clock, PAUSE)
    for _ in range(5):
        assert read(clock, sight, 2.0, found) is found
    assert sight.since == NEVER
    read(clock, sight, 0.0)
    assert sight.since == clock.monotonic()


def test_only_a_read_that_is_under_way_is_waited_for(clock: FakeClock) -> None:
    sight, waited = Sight(clock, PAUSE), []

    def look() -> None:
        clock.advance(5)
        waited.append(sight.unread_seconds())
        raise OSError("stale")

    clock.advance(100)
    assert sight.unread_seconds() == 0.0
    with pytest.raises(OSError, match="stale"):
        sight.read(look)
    assert waited == [5.0]
    assert sight.unread_seconds() == 0.0
