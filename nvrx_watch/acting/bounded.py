"""Work on files that may hang with their mount, done with a deadline: what hangs was not observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nvrx_chain.errors import Unobserved
from nvrx_watch.hang_guard import HangGuard, Hangs

T = TypeVar("T")

DEFAULT_SECONDS = 15.0
WHAT = "looking at the control files"


class Bounded:
    """Does one piece of work at a time. While one has not come back, no other is started: threads must not pile up."""

    def __init__(self, seconds: float = DEFAULT_SECONDS) -> None:
        self._seconds = seconds
        self._guard = HangGuard(WHAT)

    def call(self, work: Callable[[], T]) -> T | Unobserved:
        """The result; `Unobserved` when there was none in time. Raises what the work raises."""
        try:
            return self._guard.run(work, self._seconds)
        except Hangs as error:
            return Unobserved(error.message)
