"""Signals as flags that the training loop looks at: no handler ever runs code inside a collective or a save.

Touches: the signal handlers and the wake-up descriptor of this process. `threading.Event.set` takes a lock that the
interrupted main thread may hold, so the handlers set no Event; the interpreter writes each signal into a pipe.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from types import FrameType


class SignalFlags:
    """Remembers the signals that ask for a save, and wakes whoever waits here. Make it in the main thread."""

    def __init__(self) -> None:
        self._received: deque[int] = deque()
        self._unreported: deque[int] = deque()
        self._wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Written by the C handler of whichever thread got the signal, so a wait ends even when it was not this one.
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)

    def watch(self, number: signal.Signals) -> None:
        """From now on this signal is a request to save and leave."""
        signal.signal(number, self._on_signal)

    def restore_default(self, number: signal.Signals) -> None:
        """From now on this signal does what the kernel does by default, also when the parent had it ignored."""
        signal.signal(number, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        self._unreported.append(number)

    @property
    def requested(self) -> bool:
        """Whether a watched signal has come."""
        return bool(self._received)

    def take_unreported(self) -> list[signal.Signals]:
        """The signals that came since the last call, in order."""
        taken = []
        while self._unreported:
            taken.append(signal.Signals(self._unreported.popleft()))
        return taken

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds`; at once when a watched signal has come, and as soon as one comes."""
        if seconds > 0 and not self.requested:
            select.select([self._wake_reader], [], [], seconds)

    def wait_for_next(self) -> None:
        """Wait for one more signal, for ever: only a hang that is asked for waits here, and its end is a kill."""
        select.select([self._wake_reader], [], [])
        os.read(self._wake_reader, 4096)
