"""Runs the writing of checkpoints, at once or behind the training: one at a time. Touches: a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Saver:
    """Takes one write after the other. A write that failed is raised at the next call, so training stops on it."""

    def __init__(self, *, background: bool) -> None:
        # The interpreter waits for such a thread at its end, so an exception elsewhere does not cut a save short.
        self._executor = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._running: Future[None] | None = None

    def save(self, write: Callable[[], None]) -> None:
        """Write, after the one before has ended; with a background saver come back before it is done."""
        self.finish()
        if self._executor is None:
            write()
        else:
            self._running = self._executor.submit(write)

    def check(self) -> None:
        """Raise what the write in the background failed with, without waiting for it."""
        if self._running is not None and self._running.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the write in the background. No deadline: leaving a half-written checkpoint frees nobody."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
