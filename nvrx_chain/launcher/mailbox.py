"""Messages from other threads to the one that steers the workers, with a descriptor that a selector can watch.

Touches: one eventfd.
"""

from __future__ import annotations

import collections
import os
import selectors
import threading
import time
from typing import Generic, TypeVar

M = TypeVar("M")


class Mailbox(Generic[M]):
    """Many writers, one reader."""

    def __init__(self) -> None:
        self._messages: collections.deque[M] = collections.deque()
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Readable while there are messages."""
        return self._descriptor

    def post(self, message: M) -> None:
        """Add a message and wake the reader. After `close` it is dropped."""
        with self._lock:
            self._messages.append(message)
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def take(self) -> list[M]:
        """All messages since the last time; does not wait."""
        with self._lock:
            found = list(self._messages)
            self._messages.clear()
            if found and self._descriptor >= 0:
                os.eventfd_read(self._descriptor)
            return found

    def wait(self, seconds: float) -> list[M]:
        """As `take`, waiting for the first one; empty when none came in time."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while not (found := self.take()):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return self.take()
            return found

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
