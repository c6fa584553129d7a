"""Waking a thread from a signal handler. Touches: a thread.

`threading.Event.set` takes a lock. A handler runs between two bytecodes of the main thread, which holds that lock
whenever it begins or ends a wait: the handler would wait for ever for the code that it interrupted.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Bell:
    """Does for handlers what they must not do themselves, a moment later and in a thread of its own."""

    def __init__(self) -> None:
        # Its put may be called in the middle of another one.
        self._rung: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="bell", daemon=True).start()

    def ring(self, action: Callable[[], None]) -> None:
        """Have `action` called, such as the `set` of an event; it must not raise. Safe in a signal handler."""
        self._rung.put(action)

    def _run(self) -> None:
        # No deadline: it lives as long as the process.
        while True:
            self._rung.get()()
