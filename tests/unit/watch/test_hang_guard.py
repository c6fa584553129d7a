"""Work that hangs is given up, and is not started twice."""

from __future__ import annotations

import threading

import pytest

from nvrx_watch.hang_guard import HangGuard, Hangs

LONG = 30.0


def test_a_result_and_an_error_come_back() -> None:
    guard = HangGuard("doing it")
    assert guard.run(lambda: 7, LONG) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        guard.run(lambda: int("x"), LONG)
    assert not guard.is_hanging()


def test_what_hangs_is_given_up_once_and_what_it_held_is_let_go_of() -> None:
    guard = HangGuard("doing it")
    release, let_go = threading.Event(), threading.Event()
    started: list[int] = []
    got: list[str] = []

    def late(result: str) -> None:
        got.append(result)
        let_go.set()

    def work() -> str:
        started.append(1)
        assert release.wait(LONG)
        return "held"

    with pytest.raises(Hangs, match=r"doing it: not done within 0.1 s"):
        guard.run(work, 0.1, late=late)
    with pytest.raises(Hangs, match="an earlier try still hangs"):
        guard.run(work, LONG)
    release.set()
    assert let_go.wait(LONG)
    assert (got, started) == (["held"], [1])
    assert guard.run(lambda: 1, LONG) == 1
