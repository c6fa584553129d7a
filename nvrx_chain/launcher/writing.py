"""Writes in a thread of their own, in order: a shared file system that hangs must not stop what calls.

Touches: a thread; whatever the work touches.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nvrx_chain.errors import NvrxError

log = logging.getLogger(__name__)

MOST_WAITING = 1000
"""Pieces of work; what comes on top while the file system hangs is dropped."""


@dataclass(slots=True)
class Written:
    """A piece of work that was handed over."""

    what: str
    error: str | None = None
    _finished: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> bool:
        """Whether it was done in time, and well."""
        return self._finished.wait(seconds) and self.error is None

    def finish(self, error: str | None) -> None:
        """Say how it went."""
        self.error = error
        self._finished.set()


class WriterThread:
    """One thread that does one piece of work after the other. It does not keep the process alive."""

    def __init__(self, name: str, *, most_waiting: int = MOST_WAITING) -> None:
        self._name = name
        self._most = most_waiting
        self._waiting: collections.deque[tuple[Written, Callable[[], None]]] = collections.deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def hand_over(self, what: str, work: Callable[[], None]) -> Written:
        """Have it done after all that was handed over before. What raises NvrxError or OSError is logged."""
        written = Written(what)
        with self._changed:
            if self._closed or len(self._waiting) >= self._most:
                self._drop(written)
                return written
            self._waiting.append((written, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return written

    def flush(self, seconds: float) -> bool:
        """Wait until everything is done, so long at most; False when something is left."""
        deadline = time.monotonic() + seconds
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._busy, max(0.0, deadline - time.monotonic())
            )

    def close(self, seconds: float) -> bool:
        """Take nothing more, and flush. What is left then is given up, with a line that says how much."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        done = self.flush(seconds)
        if not done:
            log.error("%s: given up, the file system does not answer waiting=%s", self._name, len(self._waiting))
        return done

    def _drop(self, written: Written) -> None:
        self._dropped += 1
        # Once, then at each power of two: a hang of an hour must not fill the log.
        if self._dropped & (self._dropped - 1) == 0:
            log.error("%s: not written, the file system does not answer dropped=%s", self._name, self._dropped)
        written.finish("dropped")

    def _run(self) -> None:
        # No deadline: it lives as long as the process, or until it is closed and has nothing left.
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                written, work = self._waiting.popleft()
                self._busy = True
            written.finish(self._do(written.what, work))

    def _do(self, what: str, work: Callable[[], None]) -> str | None:
        try:
            work()
        except (NvrxError, OSError) as error:
            log.error("%s: not written what=%s error=%s", self._name, what, error)
            return str(error)
        except Exception as error:
            # Without this thread nothing would be recorded any more, and nobody would know.
            log.exception("%s: not written what=%s", self._name, what)
            return repr(error)
        return None
