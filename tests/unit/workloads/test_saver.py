"""Writes one after the other, and none that fails in silence."""

from __future__ import annotations

import threading

import pytest

from nvrx_chain.workloads.saver import Saver
from tests.unit.workloads.lives import PATIENCE_SECONDS, wait_until


def fail() -> None:
    raise OSError("the disk is gone")


def test_a_background_write_lets_the_caller_go_on_and_finish_waits_for_it() -> None:
    saver, may_end, done = Saver(background=True), threading.Event(), []

    def write() -> None:
        assert may_end.wait(PATIENCE_SECONDS)
        done.append(threading.current_thread())

    saver.save(write)
    saver.check()
    assert not done
    may_end.set()
    saver.finish()
    assert done
    assert done[0] is not threading.current_thread()
    saver.finish()


def test_the_next_write_begins_after_the_last_has_ended() -> None:
    saver, order = Saver(background=True), []

    def write(number: int) -> None:
        order.append(("begin", number))
        order.append(("end", number))

    for number in range(20):
        saver.save(lambda number=number: write(number))
    saver.finish()
    assert order == [(what, number) for number in range(20) for what in ("begin", "end")]


def test_a_failed_background_write_is_raised_by_check_once_it_is_known() -> None:
    saver = Saver(background=True)
    saver.save(fail)

    def raised() -> bool:
        try:
            saver.check()
        except OSError:
            return True
        return False

    wait_until(raised)
    saver.finish()


@pytest.mark.parametrize("background", [False, True])
def test_a_failed_write_stops_the_caller(background: bool) -> None:
    saver = Saver(background=background)
    with pytest.raises(OSError, match="the disk is gone"):  # noqa: PT012
        saver.save(fail)
        saver.finish()
