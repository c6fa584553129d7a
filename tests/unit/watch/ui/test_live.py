"""The live screen on a terminal that is a string. The clock is a fake one, so a second of the screen takes no time."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from nvrx_watch.ui.live import print_once, show_live
from nvrx_watch.ui.screen_model import ScreenModel
from tests.fakes.fake_clock import FakeClock
from tests.unit.watch import build
from tests.unit.watch.ui.scenes import healthy, restart_storm

DEADLINE = 60.0
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_HOME = "\x1b[H"
_LEFT_ALTERNATE_SCREEN = "\x1b[?1049l"


class Terminal(io.StringIO):
    """Keeps what is written, and says when a wanted text came by."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: list[tuple[str, threading.Event]] = []

    def write(self, text: str) -> int:
        for wanted, seen in list(self._wanted):
            if wanted in text:
                seen.set()
        return super().write(text)

    def expect(self, text: str) -> Callable[[], None]:
        """Watch for the text from now on; the function waits until it has come by."""
        seen = threading.Event()
        self._wanted.append((text, seen))

        def wait() -> None:
            assert seen.wait(DEADLINE), f"{text!r} was not drawn"

        return wait

    def wait_for(self, text: str) -> None:
        """Wait for a text that every frame from now on has."""
        self.expect(text)()


class SteppedClock(FakeClock):
    """A clock on which each wait of the screen takes one tick, which the test gives."""

    def __init__(self) -> None:
        super().__init__(build.NOW)
        self._ticks = threading.Semaphore(0)

    def tick(self, times: int) -> None:
        self._ticks.release(times)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        assert self._ticks.acquire(timeout=DEADLINE), "the test gave no tick"
        return super().wait(event, seconds)


def terminal(width: int = 80, height: int = 24, **settings: Any) -> tuple[Console, Terminal]:
    out = Terminal()
    values: dict[str, Any] = {"force_terminal": True, "color_system": None, "highlight": False}
    return Console(file=out, width=width, height=height, **{**values, **settings}), out


def show(passes: Iterator[ScreenModel], console: Console, stop: threading.Event | None = None) -> None:
    show_live(passes, stop or threading.Event(), FakeClock(build.NOW), console=console)


def test_ages_move_each_second_without_a_new_pass() -> None:
    console, out = terminal()
    clock, stop = SteppedClock(), threading.Event()

    def passes() -> Iterator[ScreenModel]:
        yield healthy().screen()
        for ticks, text in ((3, "pass 3s ago"), (27, "saved 48000 2m ago"), (30, "pass 1m ago")):
            drawn = out.expect(text)
            clock.tick(ticks)
            drawn()
        clock.tick(1)

    show_live(passes(), stop, clock, console=console)
    assert stop.is_set()


def test_the_newest_pass_replaces_the_one_before() -> None:
    console, out = terminal()

    def passes() -> Iterator[ScreenModel]:
        yield healthy().screen()
        out.wait_for("none open")
        yield restart_storm().screen()
        out.wait_for("3 critical")

    show(passes(), console)
    assert out.getvalue().rstrip().endswith("owner: scancel 11_3 11_4")


def test_before_the_first_pass_the_screen_says_so() -> None:
    console, out = terminal()

    def passes() -> Iterator[ScreenModel]:
        out.wait_for("the first pass is under way")
        yield healthy().screen()

    show(passes(), console)


def test_a_resized_terminal_gets_a_frame_of_its_new_size() -> None:
    console, out = terminal(140, 40)

    def passes() -> Iterator[ScreenModel]:
        yield restart_storm().screen()
        out.wait_for("[restart_storm]")
        console.size = (40, 10)  # type: ignore[assignment]
        out.wait_for("CRIT 3 WARN")

    show(passes(), console)
    drawn = re.split(rf"{re.escape(_HOME)}|{re.escape(_LEFT_ALTERNATE_SCREEN)}", out.getvalue())
    shown = [_CODES.sub("", frame).split("\n") for frame in drawn if "CRIT 3 WARN" in frame]
    assert shown
    for lines in shown:
        assert max(map(cell_len, lines)) <= 40
        assert len(lines) <= 11


def test_the_terminal_is_given_back_and_keeps_the_last_frame() -> None:
    console, out = terminal()
    show(iter([healthy().screen()]), console)
    left = out.getvalue().split(_LEFT_ALTERNATE_SCREEN)
    assert len(left) == 2
    assert "saved 48000" in left[1]


def test_what_ends_the_passes_is_raised_after_the_terminal_was_given_back() -> None:
    console, out = terminal()

    def passes() -> Iterator[ScreenModel]:
        yield healthy().screen()
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        show(passes(), console)
    assert _LEFT_ALTERNATE_SCREEN in out.getvalue()


def test_a_pass_that_hangs_keeps_nobody_from_leaving() -> None:
    console, out = terminal()
    stop, release = threading.Event(), threading.Event()

    def passes() -> Iterator[ScreenModel]:
        yield healthy().screen()
        out.wait_for("none open")
        stop.set()
        release.wait(DEADLINE)

    show(passes(), console, stop)
    assert not release.is_set()
    release.set()


@pytest.mark.parametrize("settings", [{"force_terminal": False}, {"_environ": {"TERM": "dumb"}}])
def test_without_a_terminal_each_pass_is_one_static_frame(settings: dict[str, Any]) -> None:
    console, out = terminal(**settings)
    first = healthy().screen()
    show(iter([first, replace(first, name="second")]), console)
    text = out.getvalue()
    assert "\x1b" not in text
    frames = text.split("\n\nRUNNING")
    assert len(frames) == 2
    assert frames[1].startswith("  second of ann")


def test_without_a_terminal_a_stop_ends_it() -> None:
    console, out = terminal(force_terminal=False)
    stop = threading.Event()

    def passes() -> Iterator[ScreenModel]:
        printed = out.expect("RUNNING")
        yield healthy().screen()
        printed()
        stop.set()
        while True:
            yield healthy().screen()

    show(passes(), console, stop)
    assert out.getvalue().count("RUNNING  train") <= 2


def test_one_frame_is_plain_text_even_on_a_terminal() -> None:
    console, out = terminal(80, 24, color_system="truecolor")
    print_once(restart_storm().screen(), console)
    lines = out.getvalue().rstrip("\n").split("\n")
    assert "\x1b" not in out.getvalue()
    assert len(lines) <= 24
    assert max(map(cell_len, lines)) <= 80
