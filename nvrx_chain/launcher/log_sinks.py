"""Where the lines of one node go: into the files of the job (direct), or to the standard output of the launcher.

A sink may hold its caller up, for a while, and says then how much it had to drop. The funnel's client is one too.
Touches: log files, standard output.
"""

from __future__ import annotations

import collections
import errno
import logging
import os
import select
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from nvrx_chain.launcher.log_files import Appending, LogFiles, NotALog
from nvrx_chain.launcher.log_settings import Kind, LogPlaces

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
QUIET_SECONDS = 10.0
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


class Quiet:
    """Lets a complaint through that was not made of late: what is logged here comes back as lines to be written."""

    def __init__(self) -> None:
        self._until = 0.0

    def may_say(self) -> bool:
        """Whether it is time to say it again."""
        now = time.monotonic()
        if now < self._until:
            return False
        self._until = now + QUIET_SECONDS
        return True


class Tally:
    """Lines that had to be dropped: said when it begins, and with the number when it is over."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._quiet = Quiet()
        self._said = False
        self._lines = 0
        self._bytes = 0
        self.total_lines = 0

    def drop(self, lines: bytes) -> None:
        """These are lost."""
        if not self._lines:
            self._said = self._quiet.may_say()
            if self._said:
                log.error("log lines of this node are dropped reason=%s", self._why)
        count = lines.count(b"\n")
        self._lines += count
        self._bytes += len(lines)
        self.total_lines += count

    def note(self) -> bytes:
        """What was lost since the last time, as a line for the log that misses it; empty when nothing was."""
        if not self._lines:
            return b""
        said = f"nvrx-chain: {self._lines} lines ({self._bytes} bytes) of this node were dropped here: {self._why}\n"
        return said.encode()

    def settle(self) -> None:
        """The note is in the log, or the end has come."""
        if not self._lines:
            return
        if self._said:
            log.error(
                "log lines of this node were dropped lines=%s bytes=%s reason=%s", self._lines, self._bytes, self._why
            )
        self._lines = self._bytes = 0


@dataclass(slots=True)
class _Chunk:
    kind: Kind
    cycle: int
    lines: bytes
    appending: Appending | None = None
    """Set once a part is in the file: the rest comes before all other lines, or one of them would be torn."""


class DirectSink:
    """Appends to the files of the job. For a job of one node, or nodes that write to one file at their own risk."""

    def __init__(self, places: LogPlaces, *, stall_seconds: float) -> None:
        self._files = LogFiles(places)
        self._stall = stall_seconds
        self._hurry = threading.Event()
        self._tally = Tally("the log could not be written to")
        self._chunks: collections.deque[_Chunk] = collections.deque()
        self._quiet = Quiet()

    def write(self, kind: Kind, cycle: int, lines: bytes) -> None:
        """Take whole lines."""
        if not self._files.has(kind):
            write_to_stream(kind, lines)
            return
        self._chunks.append(_Chunk(kind, cycle, self._tally.note() + lines))
        if not self._flush_within(self._stall) and self._chunks[-1].appending is None:
            self._chunks.pop()
            self._tally.drop(lines)
        else:
            self._tally.settle()

    def hurry(self) -> None:
        """Hold nobody up any more."""
        self._hurry.set()

    def close(self, within_seconds: float) -> bool:
        """Nothing is on the way here but what a full file system refused."""
        is_clean = self._flush_within(0.0)
        self._tally.settle()
        self._files.close()
        return is_clean and not self._tally.total_lines

    def _flush_within(self, seconds: float) -> bool:
        """Write, again and again while a full or absent file system refuses; False when it did not work in time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._flush()
                return True
            except (OSError, NotALog) as error:
                if self._quiet.may_say():
                    log.warning("a log cannot be written to error=%s", error)
            if time.monotonic() >= deadline or self._hurry.wait(RETRY_SECONDS):
                return False

    def _flush(self) -> None:
        while self._chunks:
            chunk = self._chunks[0]
            if chunk.appending is None:
                file = self._files.open(chunk.kind, chunk.cycle, len(chunk.lines))
                chunk.appending = Appending(file.descriptor, [chunk.lines])
            try:
                chunk.appending.go()
            finally:
                if not chunk.appending.has_begun:
                    chunk.appending = None
            self._chunks.popleft()


class StreamSink:
    """Hands the lines of the ranks to the launcher's standard output, its own to standard error."""

    def __init__(self) -> None:
        self._tally = Tally("the reader of standard output is gone")

    def write(self, kind: Kind, cycle: int, lines: bytes) -> None:
        if not write_to_stream(kind, lines):
            self._tally.drop(lines)

    def hurry(self) -> None:
        """It waits for the reader of the stream alone."""

    def close(self, within_seconds: float) -> bool:
        self._tally.settle()
        return not self._tally.total_lines


def write_to_stream(kind: Kind, lines: bytes) -> bool:
    """All of it to standard output, or error for the launcher's own; False when the reader of that is gone."""
    descriptor = STDERR if kind is Kind.LAUNCHER else STDOUT
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
