"""Work in a thread of its own: in order, bounded, and with an answer for whoever waits."""

from __future__ import annotations

import threading
import time

import pytest

from nvrx_chain.errors import RecordError
from nvrx_chain.launcher.writing import WriterThread

PATIENCE_SECONDS = 10.0


def hang(thread: WriterThread) -> threading.Event:
    """Keep it busy until the event is set."""
    started, answers = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        answers.wait(PATIENCE_SECONDS)

    thread.hand_over("a write that hangs", work)
    assert started.wait(PATIENCE_SECONDS)
    return answers


def test_work_is_done_in_order_and_the_patient_last() -> None:
    thread, done = WriterThread("t"), list[str]()
    answers = hang(thread)
    thread.hand_over("p1", lambda: done.append("p1"), is_patient=True)
    thread.hand_over("a", lambda: done.append("a"))
    thread.hand_over("p2", lambda: done.append("p2"), is_patient=True)
    thread.hand_over("b", lambda: done.append("b"))
    answers.set()
    assert thread.close(PATIENCE_SECONDS)
    assert done == ["a", "b", "p1", "p2"]


@pytest.mark.parametrize("error", [RecordError("no"), OSError("no"), ZeroDivisionError("no")])
def test_what_fails_is_said_and_the_next_is_done(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    thread, done = WriterThread("t"), list[int]()

    def fail() -> None:
        raise error

    failed = thread.hand_over("one", fail)
    good = thread.hand_over("two", lambda: done.append(1))
    assert good.wait(PATIENCE_SECONDS)
    assert not failed.wait(0.0)
    assert failed.error
    assert done == [1]
    assert "not written what=one" in caplog.text


def test_more_than_can_wait_is_dropped_with_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    thread, done = WriterThread("t", most_waiting=10), list[int]()
    answers = hang(thread)
    for number in range(1000):
        thread.hand_over("w", lambda number=number: done.append(number))  # type: ignore[misc]
    answers.set()
    assert thread.close(PATIENCE_SECONDS)
    assert done == list(range(10))
    assert 1 < len(caplog.records) < 15


def test_nothing_is_taken_after_the_end_and_the_thread_is_gone() -> None:
    thread = WriterThread("a thread of this test")
    assert thread.hand_over("a", lambda: None).wait(PATIENCE_SECONDS)
    assert thread.close(PATIENCE_SECONDS)
    assert not thread.hand_over("b", lambda: None).wait(0.01)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(found.name == "a thread of this test" for found in threading.enumerate()):
        assert time.monotonic() < deadline


def test_without_work_there_is_no_thread() -> None:
    before = threading.active_count()
    assert WriterThread("t").close(0.0)
    assert threading.active_count() == before
