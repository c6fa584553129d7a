"""Since when a reader of the control directory can be believed: single reads, and the times at which none came back.

A pass over the files of many tasks may take long while each read is quick; that is slow, not blind. Blind is who got
nothing out of the directory for longer than a single read may take. Pure but for the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved

log = logging.getLogger(__name__)

T = TypeVar("T")

BLIND_SECONDS = 8.0
"""A reader that got nothing for so long has to watch anew before it suspects anybody. Shorter gaps are within the
margin of the fence."""


class Sight:
    """Times every single read of one thread. `pause_seconds` lie between two passes."""

    def __init__(self, clock: Clock, pause_seconds: float) -> None:
        self._clock = clock
        self._pause = pause_seconds
        self._waiting_since: float | None = None
        self._paused = False
        self.seen_at = clock.monotonic()
        """When the last read that saw something came back."""
        self.since = float("-inf")
        """When the last blindness ended. What was seen before says nothing about the time until then."""

    def begin_pass(self) -> None:
        """The pause before this pass was wanted, and is no blindness."""
        self._paused = True

    def read(self, look: Callable[[], T]) -> T:
        """Do one read. Nothing or `Unobserved` is no sight: a directory that fails at once shows no more than one
        that hangs."""
        self._waiting_since = self._clock.monotonic()
        try:
            found = look()
        finally:
            self._waiting_since = None
        if found is not None and not isinstance(found, Unobserved):
            self._note()
        return found

    def unread_seconds(self) -> float:
        """For how long the read that is under way has not come back. May be asked by any thread."""
        since = self._waiting_since
        return 0.0 if since is None else self._clock.monotonic() - since

    def _note(self) -> None:
        now = self._clock.monotonic()
        if now - self.seen_at > BLIND_SECONDS + (self._pause if self._paused else 0.0):
            self.since = now
            log.warning("the board could not be read for seconds=%.0f", now - self.seen_at)
        self.seen_at, self._paused = now, False
