"""Signals of a launcher as bytes on a descriptor that its loop watches. Touches: signal handlers of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """`take` gives the signals since the last time. No handler takes a lock: the interpreter writes the number."""

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)

    def install(self) -> None:
        """From now on every signal of the two lists is collected. For the main thread."""
        for number in (*ENDING, *HANDED_ON):
            signal.signal(number, _ignore)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Readable when there is a signal."""
        return self._reading.fileno()

    def take(self) -> list[signal.Signals]:
        """Does not wait."""
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(number) for number in os.read(self._reading.fileno(), 4096)]
        return []


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler, and not SIG_IGN, which the ranks would inherit."""
