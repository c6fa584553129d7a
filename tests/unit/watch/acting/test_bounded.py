"""Work on a hung file system is left behind, and never twice."""

from __future__ import annotations

import threading

import pytest

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_watch.acting.bounded import WHAT, Bounded


def test_work_comes_back_with_its_result() -> None:
    assert Bounded().call(lambda: 7) == 7


def test_errors_of_ours_come_back_too() -> None:
    def work() -> None:
        raise RecordError("writing x")

    with pytest.raises(RecordError, match="writing x"):
        Bounded().call(work)


def test_work_that_hangs_is_left_and_no_other_is_begun_until_it_came_back() -> None:
    hung, came_back, begun = threading.Event(), threading.Event(), []

    def work() -> None:
        hung.wait(30)
        came_back.set()

    bounded = Bounded(seconds=0.05)
    assert isinstance(bounded.call(work), Unobserved)
    assert isinstance(bounded.call(lambda: begun.append(1)), Unobserved)
    assert not begun
    hung.set()
    assert came_back.wait(30)
    for thread in threading.enumerate():
        if thread.name == WHAT:
            thread.join(30)
    assert bounded.call(lambda: 7) == 7
