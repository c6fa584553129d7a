"""How a demo is shown: a live line on a terminal, plain lines with times elsewhere, and the tables at the end.

Touches: the console that is handed in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from nvrx_chain.clock import Clock
from nvrx_chain.demo.evidence import Evidence
from nvrx_chain.demo.expectations import RowState, failures
from nvrx_chain.demo.narrate import describe_now
from nvrx_chain.demo.play import View
from nvrx_chain.demo.scenario import DemoReport, Scenario

_PLAIN_WIDTH = 150
_STYLES = {RowState.OK: "green", RowState.FAILED: "bold red", RowState.OPEN: "yellow"}


class PlainView:
    """One line for each thing that happens, with the time and the seconds since the start. For files and pipes."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._began_at = clock.monotonic()

    def say(self, line: str) -> None:
        now = self._clock.now().astimezone().strftime("%H:%M:%S")
        passed = self._clock.monotonic() - self._began_at
        style = "bold red" if line.startswith(("FAULT", "FAILED")) else ""
        # Soft wrap: a path must stay in one piece.
        self._console.print(Text(f"{now} {passed:6.1f} s  {line}", style=style), soft_wrap=True)

    def show(self, evidence: Evidence, waiting_for: str) -> None:
        pass


class LiveView(PlainView):
    """The same lines, and below them how things stand."""

    def __init__(self, console: Console, clock: Clock, live: Live, scenario: Scenario) -> None:
        super().__init__(console, clock)
        self._live = live
        self._target = scenario.target_iteration

    def show(self, evidence: Evidence, waiting_for: str) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(Spinner("dots"), Text(waiting_for, style="bold"))
        if self._target:
            grid.add_row("", ProgressBar(total=self._target, completed=evidence.iteration(), width=60))
        grid.add_row("", Text(describe_now(evidence, self._target), style="dim"))
        self._live.update(grid)


def make_console(*, plain: bool, to_stderr: bool) -> Console:
    """A console that is readable without colour; `plain` and everything that is no terminal gets no control codes."""
    console = Console(stderr=to_stderr, highlight=False)
    if plain or not console.is_terminal:
        return Console(stderr=to_stderr, highlight=False, force_terminal=False, no_color=True, width=_PLAIN_WIDTH)
    return console


@contextlib.contextmanager
def opened_view(console: Console, clock: Clock, scenario: Scenario) -> Iterator[View]:
    """The view that fits the console."""
    if not console.is_terminal:
        yield PlainView(console, clock)
        return
    with Live(console=console, transient=True) as live:
        yield LiveView(console, clock, live, scenario)


def print_report(report: DemoReport, console: Console) -> None:
    """Two tables: what was hurt and repaired, what was promised and kept."""
    ascii_only = not console.encoding.lower().startswith("utf")
    look = box.ASCII if ascii_only else box.SIMPLE_HEAD
    repairs = Table(box=look, title_justify="left", title=f"{report.scenario.value} with {report.launcher}")
    for title, justify in (("fault", "left"), ("repaired by", "left"), ("s to first step", "right"), ("lost", "right")):
        repairs.add_column(title, justify=justify)  # type: ignore[arg-type]
    for repair in report.repairs:
        seconds = "-" if repair.seconds is None else f"{repair.seconds:.1f}"
        lost = "-" if repair.steps_lost is None else f"{repair.steps_lost} steps"
        repairs.add_row(Text(repair.fault), Text(repair.repaired_by), seconds, lost)
    promises = Table(box=look)
    promises.add_column("expected")
    promises.add_column("holds")
    promises.add_column("seen")
    for row in report.expectations:
        promises.add_row(Text(row.name), Text(row.state.value, style=_STYLES[row.state]), Text(row.detail))
    for table in (repairs, promises):
        console.print(table)
    console.print(Text(summarise(report)))


def summarise(report: DemoReport) -> str:
    """One line on how it went."""
    kept = sum(row.state is RowState.OK for row in report.expectations)
    broken = failures(report.expectations)
    words = f"{kept} of {len(report.expectations)} expectations hold, {report.seconds:.0f} s"
    return f"{words}; FAILED: {', '.join(broken)}" if broken else words


def render_json(report: DemoReport) -> str:
    """The report as one JSON object."""
    return msgspec.json.encode(report, enc_hook=str).decode()
