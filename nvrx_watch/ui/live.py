"""The live screen: the newest pass, drawn again each second, because ages and the time to the wall move by themselves.

The passes run in a thread of their own, so that a pass that hangs leaves the screen moving and its age in view. Where
there is no terminal every pass is printed once as a static frame. Touches: the console that is handed in.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from nvrx_chain.clock import Clock
from nvrx_watch.ui.frame import render_frame, render_text
from nvrx_watch.ui.screen_model import ScreenModel

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""How often ages are counted anew."""

_JOIN_SECONDS = 2.0


def make_console(*, no_color: bool = False) -> Console:
    """Standard output; rich reads NO_COLOR, TERM, COLUMNS and LINES itself."""
    return Console(highlight=False, no_color=True if no_color else None)


def show_live(passes: Iterable[ScreenModel], stop: threading.Event, clock: Clock, *, console: Console) -> None:
    """Show every model that `passes` gives until it has no more or `stop` is set; sets `stop` before it returns.

    `passes` is iterated in another thread and waits for its interval itself, on `stop`. What it raises is raised here.
    """
    feed = _Feed(passes, stop)
    feed.start()
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            _draw(feed, stop, clock, console)
        else:
            _print_each(feed, clock, console)
    finally:
        stop.set()
        # A pass that hangs in a dead mount is left behind: the thread is a daemon.
        feed.join(_JOIN_SECONDS)
    feed.raise_error()


def print_once(model: ScreenModel, console: Console) -> None:
    """One static frame without escape codes, in the size of the console: what `--live --once` prints."""
    width, height = console.size
    console.file.write(render_text(model, width, height, encoding=console.encoding) + "\n")
    console.file.flush()


class _Feed(threading.Thread):
    """Runs the passes and keeps the newest model."""

    def __init__(self, passes: Iterable[ScreenModel], stop: threading.Event) -> None:
        super().__init__(name="watch-passes", daemon=True)
        self._passes = passes
        self._stop_asked = stop
        self._changed = threading.Condition()
        self._waiting: list[ScreenModel] = []
        self._ended = False
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            for model in self._passes:
                self._put(model)
                if self._stop_asked.is_set():
                    break
        except Exception as error:  # noqa: BLE001 - carried over to the thread of the screen, which raises it
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def take_newest(self) -> tuple[ScreenModel | None, bool]:
        """The newest model since the last call, None without one; and whether there will be no more."""
        with self._changed:
            newest = self._waiting[-1] if self._waiting else None
            self._waiting.clear()
            return newest, self._ended

    def take_next(self) -> ScreenModel | None:
        """The oldest model not taken, waiting for it; None when there will be no more."""
        with self._changed:
            # No deadline: the passes have theirs, and `stop` ends them.
            while not self._waiting and not self._ended:
                self._changed.wait(REFRESH_SECONDS)
                if self._stop_asked.is_set():
                    break
            return self._waiting.pop(0) if self._waiting else None

    def raise_error(self) -> None:
        """Raise what ended the passes."""
        if self._error is not None:
            raise self._error

    def _put(self, model: ScreenModel) -> None:
        with self._changed:
            self._waiting.append(model)
            self._changed.notify_all()


class _Screen:
    """A renderable that measures the terminal each time it is drawn, so a resize needs no signal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.model: ScreenModel | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.model is None:
            yield "the first pass is under way"
            return
        yield render_frame(
            self.model.at(self._clock.now()),
            width=options.max_width,
            height=options.size.height,
            color=not console.no_color,
            encoding=console.encoding,
        )


def _draw(feed: _Feed, stop: threading.Event, clock: Clock, console: Console) -> None:
    screen = _Screen(clock)
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(screen, console=console, screen=True, auto_refresh=False))
        while True:
            newest, ended = feed.take_newest()
            screen.model = newest or screen.model
            live.refresh()
            if ended or clock.wait(stop, REFRESH_SECONDS):
                break
    # The alternate screen is gone with its content: what was seen last stays readable.
    if screen.model is not None:
        print_once(screen.model.at(clock.now()), console)


def _print_each(feed: _Feed, clock: Clock, console: Console) -> None:
    first = True
    while (model := feed.take_next()) is not None:
        if not first:
            console.file.write("\n")
        first = False
        print_once(model.at(clock.now()), console)
