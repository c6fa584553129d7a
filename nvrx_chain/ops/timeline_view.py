"""The recovery timeline of a chain for people: one line per cycle. Touches: standard output."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nvrx_chain.ops.timeline import ChainTimeline, CycleRecovery
from nvrx_chain.ops.words import render_safely, render_time
from nvrx_chain.records.marks import MarkName

_COLUMNS = {
    "STOP": MarkName.WORKERS_STOPPED,
    "JOIN": MarkName.JOINED,
    "FILL": MarkName.ROUND_FILLED,
    "START": MarkName.WORKERS_STARTED,
    "GROUP": MarkName.PROCESS_GROUP_READY,
    "CKPT": MarkName.CHECKPOINT_RESTORED,
    "STEP": MarkName.FIRST_STEP,
}
_NOTHING = "-"


def print_timeline(timeline: ChainTimeline, console: Console) -> None:
    """Print it. All text from files goes in as plain text, never as markup."""
    if not timeline.recoveries:
        console.print(Text("no recovery is on record: only nvrx-chain's own launcher keeps a timeline"))
    else:
        console.print(_table(timeline))
        console.print(Text(_summary(timeline)), soft_wrap=True)
    for problem in timeline.problems:
        console.print(Text(f"problem: {render_safely(problem)}", style="yellow"), soft_wrap=True)


def _table(timeline: ChainTimeline) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("JOB", justify="right", no_wrap=True)
    table.add_column("CYCLE", justify="right", no_wrap=True)
    for title in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("CAUSE", overflow="fold")
    for recovery in timeline.recoveries:
        cells = [_cell(recovery, name) for name in _COLUMNS.values()]
        cause = Text(render_safely(f"{recovery.cause} ({render_time(recovery.failed_at)})"))
        style = "" if recovery.is_recovered else "yellow"
        table.add_row(str(recovery.array_job_id), str(recovery.cycle_number), *cells, cause, style=style)
    return table


def _cell(recovery: CycleRecovery, name: MarkName) -> str:
    seconds = recovery.after_seconds.get(name.value)
    if seconds is None:
        return _NOTHING
    sign = "~" if name.value in recovery.approximate_steps else ""
    return f"{sign}{seconds:.2f}" if seconds < 100 else f"{sign}{seconds:.0f}"


def _summary(timeline: ChainTimeline) -> str:
    recovered = sum(recovery.is_recovered for recovery in timeline.recoveries)
    text = f"seconds after the failure; {recovered} of {len(timeline.recoveries)} cycles reached a committed step"
    if any(recovery.approximate_steps for recovery in timeline.recoveries):
        text += "; ~ compares the clocks of two nodes"
    return text
