from __future__ import annotations

import threading

from tests.fakes.fake_clock import FakeClock


def test_what_was_planned_happens_in_order_at_its_time() -> None:
    clock, seen = FakeClock(), []
    clock.after(7, lambda: seen.append(("late", clock.monotonic())))
    clock.after(3, lambda: seen.append(("early", clock.monotonic())))
    clock.advance(6)
    assert seen == [("early", 3.0)]
    clock.advance(1)
    assert seen == [("early", 3.0), ("late", 7.0)]
    assert (clock.now() - FakeClock().now()).total_seconds() == 7


def test_a_wait_ends_when_something_planned_sets_the_event() -> None:
    clock, event = FakeClock(), threading.Event()
    clock.after(2, event.set)
    assert clock.wait(event, 10)
    assert clock.monotonic() == 2.0
    assert not clock.wait(threading.Event(), 5)
    assert clock.monotonic() == 7.0
