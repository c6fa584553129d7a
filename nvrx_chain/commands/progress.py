"""A line on the terminal that says what a command is doing and for how long, when it takes longer than a moment.

Touches: standard error, and only a terminal; rich is imported when the line is first shown, and the line
vanishes at the end.
"""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

DELAY_SECONDS = 0.7
"""What is done sooner than that needs no line, and should not pay for importing rich."""


class Progress:
    """While the block runs, `text` stands on the terminal with a spinner and the time since it began.

    With `quiet` (JSON is asked for), in pipes and on terminals that cannot move the cursor nothing is ever printed.
    """

    def __init__(self, text: str, *, quiet: bool = False) -> None:
        self._text = text
        self._is_wanted = not quiet and sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
        self._lock = threading.Lock()
        self._is_over = False
        self._bar: Bar | None = None
        self._timer = threading.Timer(DELAY_SECONDS, self._show)
        # A command that is interrupted must not wait for it.
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if self._is_wanted:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()

    def tell(self, text: str) -> None:
        """What is being done now."""
        with self._lock:
            self._text = text
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], description=text)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        # What others print meanwhile goes above the line: rich takes both streams over until it stops.
        bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.add_task(self._text)
        with self._lock:
            if not self._is_over:
                bar.update(bar.task_ids[0], description=self._text)
                bar.start()
                self._bar = bar
