"""Work on files that may hang with their mount, done with a deadline. Starts daemon threads.

A process that waits for a dead file server cannot be interrupted; a thread can at least be left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from nvrx_chain.errors import NvrxError, Unobserved

T = TypeVar("T")

DEFAULT_SECONDS = 15.0


class _Work(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.results: list[T] = []
        self.errors: list[NvrxError] = []

    def __call__(self) -> None:
        try:
            self.results.append(self._work())
        except NvrxError as error:
            self.errors.append(error)


class Bounded:
    """Does one piece of work at a time. While one has not come back, no other is started: threads must not pile up."""

    def __init__(self, seconds: float = DEFAULT_SECONDS) -> None:
        self._seconds = seconds
        self._stuck: threading.Thread | None = None

    def call(self, work: Callable[[], T]) -> T | Unobserved:
        """The result; `Unobserved` when there was none in time. Raises what the work raises of our own errors."""
        if self._stuck is not None and self._stuck.is_alive():
            return Unobserved("an earlier look at these files has not come back")
        doing = _Work(work)
        thread = threading.Thread(target=doing, name="files", daemon=True)
        thread.start()
        thread.join(self._seconds)
        if thread.is_alive():
            self._stuck = thread
            return Unobserved(f"the file system did not answer in {self._seconds:.0f} s")
        if doing.errors:
            raise doing.errors[0]
        return doing.results[0] if doing.results else Unobserved("the look at the files broke off")
