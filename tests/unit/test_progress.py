"""The line that says what a command is doing: on a terminal only, after a moment only, and gone at the end."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, threading, time
from nvrx_chain.commands import progress
shown = threading.Event()
class Told(progress.Progress):
    def _show(self):
        super()._show()
        shown.set()
with Told("queueing 3 generations", quiet={quiet}) as line:
    if {slow}:
        assert shown.wait(60) or not {expected}
        line.tell("queueing the last [of them]")
        print("a note", file=sys.stderr)
        time.sleep(0.3)
    if {fails}:
        raise KeyboardInterrupt
print("result")
print("rich" in sys.modules)
"""


def run(
    directory: Path,
    *,
    slow: bool,
    quiet: bool = False,
    fails: bool = False,
    term: str = "xterm",
    terminal: bool = True,
    code: str | None = None,
) -> tuple[str, str]:
    """(standard output, what was seen on standard error)."""
    expected = terminal and not quiet and term != "dumb"
    # Where nothing will ever be shown: long enough for the moment to have passed.
    script = SCRIPT if expected else SCRIPT.replace("shown.wait(60)", "shown.wait(2)")
    code = code or script.format(quiet=quiet, slow=slow, fails=fails, expected=expected)
    own, theirs = pty.openpty() if terminal else os.pipe()
    out = directory / "out"
    with out.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=theirs,
            env={**os.environ, "TERM": term, "COLUMNS": "100"},
        )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(own, 4096)
        except OSError:
            # The other end of a terminal is closed.
            break
        if not part:
            break
        seen += part
    process.wait(timeout=60)
    os.close(own)
    return out.read_text(), seen.decode(errors="replace")


def test_what_takes_long_is_said_with_what_it_does_now_and_a_note_is_kept(tmp_path: Path) -> None:
    out, seen = run(tmp_path, slow=True)
    assert "queueing 3 generations" in seen
    assert "queueing the last [of them]" in seen
    assert "a note" in seen
    assert "0:00:0" in seen
    # The line is erased and the cursor is back.
    assert seen.rstrip().endswith("\x1b[2K")
    assert "\x1b[?25h" in seen
    assert out == "result\nTrue\n"


def test_what_is_done_in_a_moment_shows_nothing_and_imports_nothing(tmp_path: Path) -> None:
    out, seen = run(tmp_path, slow=False)
    assert seen == ""
    assert out == "result\nFalse\n"


@pytest.mark.parametrize(
    "how", [{"quiet": True}, {"terminal": False}, {"term": "dumb"}], ids=["json", "pipe", "dumb terminal"]
)
def test_nothing_is_shown_where_nobody_looks(how: dict[str, bool], tmp_path: Path) -> None:
    out, seen = run(tmp_path, slow=True, **how)  # type: ignore[arg-type]
    assert seen.replace("\r", "") == "a note\n"
    assert out == "result\nFalse\n"


def test_an_interrupt_leaves_a_clean_terminal(tmp_path: Path) -> None:
    _, seen = run(tmp_path, slow=True, fails=True)
    assert seen.index("\x1b[?25h") < seen.index("KeyboardInterrupt")


BAR = """
import sys, threading
from nvrx_chain.commands import progress
shown = threading.Event()
class Told(progress.Progress):
    def _show(self):
        super()._show()
        shown.set()
with Told("removing \x1b[2J" + "x" * {width}, total=200, quiet={quiet}) as line:
    line.advance(50)
    assert shown.wait(60) or {quiet}
    line.advance(100)
    line._bar is None or line._bar.refresh()
print("result")
print("rich" in sys.modules)
"""


def test_a_bar_is_filled_from_what_was_done_before_it_was_shown_on(tmp_path: Path) -> None:
    _, seen = run(tmp_path, slow=True, code=BAR.format(quiet=False, width=1))
    assert "75%" in seen
    assert "━" in seen
    assert "removing \\x1b[2J" in seen, "what a file is called steers no terminal"


def test_a_line_that_is_too_long_is_cut_and_leaves_nothing_behind(tmp_path: Path) -> None:
    _, seen = run(tmp_path, slow=True, code=BAR.format(quiet=False, width=300))
    assert "…" in seen
    assert "75%" in seen
    assert "\x1b[1A\x1b[2K\x1b[1A" not in seen, "it took one line"


def test_the_cursor_is_there_while_the_line_is_shown(tmp_path: Path) -> None:
    _, seen = run(tmp_path, slow=True)
    assert seen.index("\x1b[?25h") < seen.index("queueing the last")
