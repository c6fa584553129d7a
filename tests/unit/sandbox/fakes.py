"""A clock that nobody has to wait for, and real processes to be looked at."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone


class FakeClock:
    """Time passes only when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 30, tzinfo=timezone.utc) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.seconds += seconds
        return event.is_set()


@contextlib.contextmanager
def child(*argv: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A real child process, dead and reaped afterwards."""
    with subprocess.Popen(argv, env={"PATH": "/usr/bin:/bin", **environ}) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)
