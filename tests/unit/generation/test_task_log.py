"""The log of run-task holds up nobody, whatever the file system does."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_chain.errors import RecordError
from nvrx_chain.generation.task_log import TaskLog

log = logging.getLogger("nvrx_chain.test")


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    root.handlers[:], root.level = handlers, level


def test_what_is_logged_is_in_the_file_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "task & 0.log"
    task_log = TaskLog(path)
    log.info("peers=%s", (1, 2))
    try:
        raise ZeroDivisionError("a fault")
    except ZeroDivisionError:
        log.exception("it failed")
    assert task_log.close(60.0)
    lines = path.read_text().splitlines()
    assert lines[0].endswith("INFO nvrx_chain.test peers=(1, 2)")
    assert "Traceback" in path.read_text()


def test_a_second_start_appends(tmp_path: Path) -> None:
    for number in (1, 2):
        task_log = TaskLog(tmp_path / "task.log")
        log.info("start %s", number)
        assert task_log.close(60.0)
    assert len((tmp_path / "task.log").read_text().splitlines()) == 2


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="opening the log"):
        TaskLog(tmp_path / "gone" / "task.log")


def test_a_file_system_that_takes_no_more_holds_up_neither_who_logs_nor_the_end(tmp_path: Path) -> None:
    # A FIFO that nobody reads takes 64 KiB and then lets its writer wait, as a stalled server does.
    path = tmp_path / "task.log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR)
    try:
        task_log = TaskLog(path)
        done = threading.Event()

        def talk() -> None:
            for _ in range(200):
                log.info("x" * 1000)
            done.set()

        threading.Thread(target=talk, daemon=True).start()
        assert done.wait(60.0)
        assert not task_log.close(0.2)
    finally:
        os.set_blocking(reader, False)
        drained = 0
        while not task_log.close(0.05):
            drained += len(os.read(reader, 1 << 20))
        assert drained > 0
        os.close(reader)
