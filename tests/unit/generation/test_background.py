"""Work that may hang, beside the loop that starts it."""

from __future__ import annotations

import threading

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.background import Background, Finished, spawn_thread
from tests.fakes.generation_lab import HeldWork

PATIENCE_SECONDS = 60.0


def test_work_in_a_thread_is_handed_out_once_when_it_is_done() -> None:
    release, done = threading.Event(), threading.Event()

    def work() -> int:
        assert release.wait(PATIENCE_SECONDS)
        return 7

    def spawn(piece: object, name: str) -> None:
        assert callable(piece)
        spawn_thread(lambda: (piece(), done.set()), name)  # type: ignore[func-returns-value]

    background: Background[int] = Background(spawn, "work")
    background.start(work)
    assert background.busy
    assert background.take() is None
    release.set()
    assert done.wait(PATIENCE_SECONDS)
    assert background.take() == Finished(7)
    assert background.take() is None
    assert not background.busy


def test_only_one_piece_of_work_is_under_way() -> None:
    held = HeldWork()
    background: Background[str] = Background(held, "work")
    background.start(lambda: "first")
    background.start(lambda: "second")
    held.release()
    assert background.busy
    background.start(lambda: "third")
    assert held.names == ["work"]
    assert background.take() == Finished("first")


def test_work_that_fails_is_unobserved_with_its_reason_and_never_waited_for() -> None:
    held = HeldWork()
    background: Background[int] = Background(held, "dividing")
    background.start(lambda: 1 // 0)
    held.release()
    taken = background.take()
    assert taken is not None
    assert isinstance(taken.value, Unobserved)
    assert "dividing failed: ZeroDivisionError" in taken.value.reason
    assert not background.busy


def test_work_that_comes_to_nothing_is_told_from_work_that_is_not_done() -> None:
    held = HeldWork()
    background: Background[None] = Background(held, "work")
    background.start(lambda: None)
    assert background.take() is None
    held.release()
    assert background.take() == Finished(None)
