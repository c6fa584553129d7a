"""Where the lines of one node go: into the files of the job (direct), or to the standard output of the launcher.

A sink may hold its caller up, for a while, and says then how much it had to drop. The funnel's client is one too.
Touches: log files, standard output.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from nvrx_chain.launcher.log_files import Appending, LogFiles, NotALog
from nvrx_chain.launcher.log_settings import Kind, LogPlaces

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
STDOUT = 1
STDERR = 2


class LogSink(Protocol):
    """Takes whole lines. Called by one thread, but for `hurry` and `close`."""

    def write(self, kind: Kind, cycle: int, lines: bytes) -> None:
        """Take the lines; waits while there is no room, for the time that the sink was given."""

    def hurry(self) -> None:
        """Wait for nothing any more, in a `write` under way too: the launcher ends."""

    def close(self, within_seconds: float) -> bool:
        """Bring everything to its place and end; False when something did not come there in time."""


class Tally:
    """Lines that had to be dropped: said once when it begins and once with the number when it is over."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._lines = 0
        self._bytes = 0
        self.total_lines = 0

    def drop(self, lines: bytes) -> None:
        """These are lost."""
        if not self._lines:
            log.error("log lines of this node are dropped reason=%s", self._why)
        count = lines.count(b"\n")
        self._lines += count
        self._bytes += len(lines)
        self.total_lines += count

    def settle(self) -> str | None:
        """What was lost since the last time, for the log that misses it; None when nothing was."""
        if not self._lines:
            return None
        said = f"nvrx-chain: {self._lines} lines ({self._bytes} bytes) of this node were dropped here: {self._why}"
        log.error(
            "log lines of this node were dropped lines=%s bytes=%s reason=%s", self._lines, self._bytes, self._why
        )
        self._lines = self._bytes = 0
        return said


class DirectSink:
    """Appends to the files of the job. For a job of one node, or nodes that write to one file at their own risk."""

    def __init__(self, places: LogPlaces, *, stall_seconds: float) -> None:
        self._files = LogFiles(places)
        self._stall = stall_seconds
        self._hurry = threading.Event()
        self._tally = Tally("the log could not be written to")

    def write(self, kind: Kind, cycle: int, lines: bytes) -> None:
        if not self._files.has(kind):
            _write_to(STDERR if kind is Kind.LAUNCHER else STDOUT, lines)
            return
        missed = self._tally.settle()
        if missed is not None:
            lines = missed.encode() + b"\n" + lines
        if not _retry(lambda: self._append(kind, cycle, lines), self._stall, self._hurry):
            self._tally.drop(lines)

    def _append(self, kind: Kind, cycle: int, lines: bytes) -> Callable[[], None]:
        return Appending(self._files.open(kind, cycle, len(lines)).descriptor, [lines]).go

    def hurry(self) -> None:
        self._hurry.set()

    def close(self, within_seconds: float) -> bool:
        self._tally.settle()
        self._files.close()
        return not self._tally.total_lines


def _retry(begin: Callable[[], Callable[[], None]], seconds: float, hurry: threading.Event) -> bool:
    """Write, again and again while a full or absent file system refuses; False when it did not work in time."""
    deadline = time.monotonic() + seconds
    go: Callable[[], None] | None = None
    said = False
    while True:
        try:
            go = go or begin()
            go()
            return True
        except (OSError, NotALog) as error:
            if not said:
                log.warning("a log cannot be written to, trying again error=%s", error)
                said = True
        if time.monotonic() >= deadline or hurry.wait(RETRY_SECONDS):
            return False


class StreamSink:
    """Hands the lines of the ranks to the launcher's standard output, its own to standard error."""

    def __init__(self, *, stall_seconds: float = 60.0) -> None:
        self._stall = stall_seconds
        self._tally = Tally("the reader of standard output is gone")

    def write(self, kind: Kind, cycle: int, lines: bytes) -> None:
        if not _write_to(STDERR if kind is Kind.LAUNCHER else STDOUT, lines):
            self._tally.drop(lines)

    def hurry(self) -> None:
        pass

    def close(self, within_seconds: float) -> bool:
        self._tally.settle()
        return not self._tally.total_lines


def _write_to(descriptor: int, lines: bytes) -> bool:
    """All of it to a stream of this process; False when its reader is gone."""
    left = memoryview(lines)
    # No deadline: whoever reads the launcher's output sets the pace, as without a launcher.
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [], 1.0)
        except OSError as error:
            if error.errno == errno.EINTR:
                continue
            return False
    return True
