"""The signals of a batch job as flags that a loop reads: the time-limit warning, termination, a dead batch shell.

Touches: signal handlers of this process, prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from types import FrameType

from nvrx_chain.bell import Bell

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class SignalFlags:
    """Set by the handlers, read by the loop. `wake` is set by every signal."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._bell = Bell()
        self.terminated = False
        self.walltime_warned = False
        self._parent = os.getppid()

    def install(self) -> None:
        """Install the handlers, and ask the kernel for a TERM when the batch shell dies before us."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGINT, self._on_terminate)
        signal.signal(signal.SIGUSR1, self._on_walltime)
        set_parent_death_signal(signal.SIGTERM)
        if os.getppid() != self._parent:
            # The shell died between our start and the prctl: no signal will come any more.
            self.terminated = True

    @property
    def parent_died(self) -> bool:
        """The batch shell is gone: killed by somebody, not by Slurm's own ending of the job."""
        return os.getppid() != self._parent

    def _on_terminate(self, _signal: int, _frame: FrameType | None) -> None:
        self.terminated = True
        self._bell.ring(self.wake.set)

    def _on_walltime(self, _signal: int, _frame: FrameType | None) -> None:
        self.walltime_warned = True
        self._bell.ring(self.wake.set)


def set_parent_death_signal(number: signal.Signals) -> None:
    """Have the kernel send `number` to this process when the thread that started it ends (prctl(2))."""
    _prctl(_PR_SET_PDEATHSIG, int(number))


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that a rank whose launcher died can still be found and ended (prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
