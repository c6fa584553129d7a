"""A line on the terminal that says what a command does and for how long, when it takes longer than a moment.

Touches: standard error, and only a terminal; rich is imported when the line is first shown, and the line
vanishes at the end.
"""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from nvrx_chain.ops.words import render_safely

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

DELAY_SECONDS = 0.7
"""What is done sooner than that needs no line, and should not pay for importing rich."""
_TIME_ROOM = 12
_BAR_WIDTH = 30
_BAR_ROOM = _TIME_ROOM + _BAR_WIDTH + 6


class Progress:
    """While the block runs, `text` stands on the terminal with a spinner and the time since it began.

    With a `total` it has a bar too, which `advance` fills. With `quiet` (JSON is asked for), in pipes and on terminals
    that cannot move the cursor nothing is ever printed.
    """

    def __init__(self, text: str, *, total: int | None = None, quiet: bool = False) -> None:
        self._text = render_safely(text)
        self._total = total
        self._done = 0
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
            self._text = render_safely(text)
            self._update()

    def advance(self, amount: int) -> None:
        """So much more of the total is done."""
        with self._lock:
            self._done += amount
            self._update()

    def _update(self) -> None:
        if self._bar is None:
            return
        # rich would shorten the time and the bar first.
        room = self._bar.console.width - (_BAR_ROOM if self._total is not None else _TIME_ROOM)
        text = self._text if len(self._text) <= room else f"{self._text[: max(0, room - 1)]}…"
        self._bar.update(self._bar.task_ids[0], description=text, completed=self._done)

    def _show(self) -> None:
        bar = _make_bar(has_total=self._total is not None)
        bar.add_task("", total=self._total)
        with self._lock:
            if not self._is_over:
                self._bar = bar
                self._update()
                bar.start()
                # rich hides the cursor, and a command that is killed could not bring it back.
                bar.console.show_cursor(True)


def _make_bar(*, has_total: bool) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    filled = (BarColumn(bar_width=_BAR_WIDTH), TaskProgressColumn()) if has_total else ()
    # What others print meanwhile goes above the line: rich takes both streams over until it stops.
    console = Console(stderr=True)
    return Bar(
        SpinnerColumn(), text, *filled, TimeElapsedColumn(), console=console, transient=True, refresh_per_second=5
    )
