"""Time, handed in: aware UTC instants for records, a monotonic reading for every duration.

Wall clocks of two nodes are never compared; freshness is a change of a counter timed on `monotonic`.
"""

from __future__ import annotations

import math
import threading
import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """What the code may know about time."""

    def now(self) -> datetime:
        """The current instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that only goes forward and has no meaning elsewhere."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until `event` is set, at most `seconds`. True when it was set."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds))


def format_time(at: datetime) -> str:
    """ISO-8601 in UTC with a `Z`, as NVRx writes it."""
    return at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def format_epoch(seconds: float) -> str:
    """The same of seconds since the epoch, before the year 10000."""
    return format_time(datetime.fromtimestamp(seconds, timezone.utc))


def parse_time(text: str | None) -> datetime | None:
    """The instant of an ISO-8601 text with a zone; None for None and for text that is none."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def render_age(seconds: float) -> str:
    """A duration in at most two units, e.g. `45s`, `12m`, `3h05m`, `2d04h`. Less than nothing is nothing; NaN `?`."""
    if not math.isfinite(seconds):
        return "?"
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if not minutes:
        return f"{whole}s"
    if not hours:
        return f"{minutes}m"
    if not days:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{days}d{hours % 24:02d}h"
