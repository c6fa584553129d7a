"""A clock that moves only when it is told to, or when somebody waits on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

_START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class FakeClock:
    """Implements nvrx_chain.clock.Clock. `wait` moves the time on; what was put `after` happens on the way."""

    def __init__(self, start: datetime = _START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._planned: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let up to `seconds` pass, less when something planned sets the event."""
        self._pass_until(self._elapsed + max(0.0, seconds), event)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        self._pass_until(self._elapsed + seconds, threading.Event())

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run the action when this much time has passed."""
        self._planned.append((self._elapsed + seconds, action))

    def _pass_until(self, end: float, event: threading.Event) -> None:
        while not event.is_set():
            due = [plan for plan in self._planned if plan[0] <= end]
            if not due:
                self._elapsed = end
                return
            plan = min(due, key=lambda planned: planned[0])
            self._planned.remove(plan)
            self._elapsed = max(self._elapsed, plan[0])
            plan[1]()
