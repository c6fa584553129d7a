"""A bell does things for signal handlers in a thread of its own, in order."""

from __future__ import annotations

import threading

from nvrx_chain.bell import Bell

PATIENCE_SECONDS = 30.0


def test_what_is_rung_for_is_done_elsewhere_and_in_order() -> None:
    bell, done, seen = Bell(), threading.Event(), []
    for number in range(3):
        bell.ring(lambda number=number: seen.append((number, threading.current_thread())))
    bell.ring(done.set)
    assert done.wait(PATIENCE_SECONDS)
    assert [number for number, _ in seen] == [0, 1, 2]
    assert threading.current_thread() not in {thread for _, thread in seen}


def test_it_can_be_rung_while_its_event_is_locked() -> None:
    bell, event = Bell(), threading.Event()
    with event._cond:
        bell.ring(event.set)
        assert not event.is_set()
    assert event.wait(PATIENCE_SECONDS)
