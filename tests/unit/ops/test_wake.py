"""A write wakes; without a directory to watch nothing does, and nothing fails."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest
from watchdog.observers.api import ObservedWatch
from watchdog.observers.inotify import InotifyEmitter

from nvrx_chain.ops.wake import wake_on_change

PATIENCE_SECONDS = 30.0


def test_a_write_below_the_directory_wakes(tmp_path: Path) -> None:
    wake = threading.Event()
    deep = tmp_path / "12" / "logs"
    deep.mkdir(parents=True)
    with wake_on_change(tmp_path, wake):
        (deep / "task_0.log").write_text("x\n")
        assert wake.wait(PATIENCE_SECONDS)


def test_a_directory_that_comes_later_wakes_too(tmp_path: Path) -> None:
    wake = threading.Event()
    with wake_on_change(tmp_path, wake):
        (tmp_path / "13").mkdir()
        assert wake.wait(PATIENCE_SECONDS)


def test_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    wake = threading.Event()
    with wake_on_change(tmp_path / "absent", wake):
        assert not wake.is_set()


def test_its_threads_end(tmp_path: Path) -> None:
    before = threading.active_count()
    with wake_on_change(tmp_path, threading.Event()):
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_an_end_that_meets_a_read_is_no_error_on_the_terminal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with wake_on_change(tmp_path, threading.Event()):
        pass
    # What watchdog's thread does when it is told to end between two reads.
    InotifyEmitter(queue.Queue(), ObservedWatch(str(tmp_path), recursive=False)).queue_events(0.1)
    assert not caplog.records
