"""The status of a chain for people: a header and one line per generation, readable at 80 columns without colour.

The only module of the command that needs rich; `status --json` does not import it. Touches: standard output.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nvrx_chain.clock import parse_time, render_age
from nvrx_chain.ops.status import ChainState, ChainStatus, DrainedTask, GenerationState, GenerationStatus
from nvrx_chain.ops.words import render_safely, render_time
from nvrx_chain.records.drained import name_drained
from nvrx_chain.records.manifest import Shape
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.records.progress import UNREADABLE

_STYLES = {
    ChainState.RUNNING: "green",
    ChainState.ENDING: "green",
    ChainState.HELD: "bold yellow",
    ChainState.RAN_DRY: "bold red",
    ChainState.UNKNOWN: "yellow",
}
_GOOD = frozenset({Outcome.COMPLETED})
_HARMLESS = frozenset({Outcome.WALLTIME, Outcome.PREEMPTED, Outcome.TERMINATED, Outcome.SUPERSEDED})
_LABEL_WIDTH = 10
_MOST_DRAINED = 4
_WIDTH_OF_A_PIPE = 200


def print_status(status: ChainStatus, console: Console) -> None:
    """Print it. All text from files and from Slurm goes in as plain text, never as markup."""
    now = parse_time(status.read_at)
    # Soft wrap: the terminal breaks a long path, and it can still be copied.
    for line in _header(status, now):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(_table(status, now))
    for line in _last_end(status):
        console.print(line, soft_wrap=True)


def make_console() -> Console:
    """Standard output; wide when it is no terminal, so that a generation stays on one line for grep."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_A_PIPE
    return console


def _header(status: ChainStatus, now: datetime | None) -> Iterator[Text]:
    word = "ending after this generation" if status.state is ChainState.ENDING else status.state.value.replace("_", " ")
    title = Text(f"{render_safely(status.name)} (chain {status.chain_id}): ", style="bold")
    yield title.append(word, style=_STYLES.get(status.state, "bold"))
    where = shlex.quote(status.run_directory)
    yield _line("directory", where)
    submitted, depth = len(status.generations), status.chain_depth
    count = f"{submitted} of {depth} submitted" if submitted <= depth else f"{submitted} submitted, {depth} at first"
    yield _line("shape", f"{_shape(status.shape)}; {count}")
    if status.iteration is not None or status.target_iteration is not None:
        target = f" of {status.target_iteration}" if status.target_iteration is not None else ""
        yield _line("iteration", f"{_iteration(status.iteration)}{target}")
    yield from _verdict_and_hold(status, where, now)
    if status.no_answer:
        yield _line("Slurm", f"could not be read, this is what the files say: {status.no_answer}", "yellow")
    for generation in status.generations:
        for task in generation.drained[:_MOST_DRAINED]:
            yield _line("drained", _drained(generation, task), "yellow")
        if len(generation.drained) > _MOST_DRAINED:
            yield _line("", f"and {len(generation.drained) - _MOST_DRAINED} further tasks of {generation.array_job_id}")
    for job in status.strays:
        yield _line("stray", f"job {job} carries this chain's comment and is not on record", "yellow")
    for problem in status.problems:
        yield _line("problem", problem, "yellow")


def _verdict_and_hold(status: ChainStatus, where: str, now: datetime | None) -> Iterator[Text]:
    if status.verdict is not None:
        verdict = status.verdict
        ago = _ago(verdict.decided_at, now)
        yield _line("verdict", f"{verdict.verdict.value}{ago} by {verdict.by}: {verdict.why}", "bold")
    if status.ending is not None and status.verdict is None:
        ending = status.ending
        ago = _ago(ending.decided_at, now)
        yield _line(
            "ending", f"generation {ending.array_job_id} is the last{ago}, by {ending.by}: {ending.why}", "bold"
        )
    if status.state is ChainState.RAN_DRY:
        yield _line("verdict", "none: every generation has ended and training is not known to be finished", "bold red")
        yield _line("", f"go on: nvrx-chain submit --resume --run-dir {where} ...")
    if status.hold is not None and status.is_held:
        hold = status.hold
        yield _line(
            "held",
            f"since {render_time(hold.held_at)}{_ago(hold.held_at, now)} by {hold.by}: {hold.why}",
            "bold yellow",
        )
        yield _line("", f"let it go on: nvrx-chain release --run-dir {where}")


def _line(label: str, text: str, style: str = "") -> Text:
    return Text(f"  {label:<{_LABEL_WIDTH}} ").append(render_safely(text), style=style)


def _drained(generation: GenerationStatus, task: DrainedTask) -> str:
    spec = f"{generation.array_job_id}_{task.array_task_id}"
    if task.array_task_id == 0:
        fate = f"it hosts the rendezvous and stays; scancel {spec} frees it, and the next generation goes on"
    else:
        fate = "a spare takes its place" if task.excluded else "it stays"
    return f"{spec} on {name_drained(task.nodes)}: {fate}"


def _shape(shape: Shape) -> str:
    parts = [f"{shape.train_tasks} training"]
    parts += [f"{shape.hot_spares} hot"] if shape.hot_spares else []
    parts += [f"{shape.cold_spares} cold"] if shape.cold_spares else []
    nodes = "1 node" if shape.nodes_per_task == 1 else f"{shape.nodes_per_task} nodes"
    return f"{' + '.join(parts)} of {nodes} each"


def _table(status: ChainStatus, now: datetime | None) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("JOB", justify="right", no_wrap=True)
    table.add_column("TASKS", overflow="fold")
    table.add_column("NOW", overflow="fold")
    table.add_column("ITERATION", no_wrap=True)
    table.add_column("CYCLES", justify="right")
    table.add_column("AGE", no_wrap=True)
    for generation in status.generations:
        text, style = _now(generation)
        table.add_row(
            str(generation.sequence),
            "?" if generation.array_job_id is None else str(generation.array_job_id),
            Text(_tasks(generation)),
            Text(render_safely(text), style=style),
            _span(generation),
            "" if generation.cycles is None else str(generation.cycles),
            _age(generation, now),
        )
    return table


def _last_end(status: ChainStatus) -> Iterator[Text]:
    """Why the newest generation that has ended did so, and where to read more, unless training is finished."""
    last = next((generation for generation in reversed(status.generations) if generation.outcome is not None), None)
    if last is None or last.outcome is None or last.outcome is Outcome.COMPLETED:
        return
    why = last.evidence[0] if last.evidence else "no reason on record"
    yield Text()
    yield _line("last end", f"{last.array_job_id} {last.outcome.value}: {why}")
    where = shlex.quote(status.run_directory)
    yield _line("", f"its logs: nvrx-chain logs --run-dir {where} --generation {last.array_job_id}")


def _tasks(generation: GenerationStatus) -> str:
    if generation.tasks is None:
        return "?"
    if not generation.tasks:
        return "none"
    return render_safely(" ".join(f"{number} {word}" for word, number in generation.tasks.items()))


def _now(generation: GenerationStatus) -> tuple[str, str]:
    """The one thing to know about a generation: its outcome, else its phase, else why it waits."""
    if generation.problem:
        return generation.problem, "yellow"
    if generation.state is GenerationState.UNRESOLVED:
        return "submission without an answer", "yellow"
    if generation.outcome is not None:
        return generation.outcome.value, _outcome_style(generation.outcome)
    if generation.phase is not None:
        return generation.phase, "green"
    if generation.pending_reasons and generation.state is GenerationState.QUEUED:
        return ", ".join(generation.pending_reasons), ""
    if generation.state is GenerationState.ENDED:
        return ("ended without a word", "red") if generation.started_at else ("never started", "")
    return generation.state.value, ""


def _outcome_style(outcome: Outcome) -> str:
    if outcome in _GOOD:
        return "green"
    return "" if outcome in _HARMLESS else "red"


def _span(generation: GenerationStatus) -> str:
    last = generation.iteration_at_end if generation.ended_at else generation.iteration_now
    if generation.started_at is None or (generation.iteration_at_start is None and last is None):
        return ""
    return f"{_iteration(generation.iteration_at_start)} -> {_iteration(last)}"


def _iteration(value: int | None) -> str:
    if value is None:
        return "none"
    return "?" if value == UNREADABLE else str(value)


def _age(generation: GenerationStatus, now: datetime | None) -> str:
    """How long it has been running, or ran, or has been waiting."""
    begun = parse_time(generation.started_at or generation.submitted_at)
    ended = parse_time(generation.ended_at) or now
    if begun is None or ended is None:
        return ""
    if generation.started_at is None and generation.state is GenerationState.ENDED:
        return ""
    return render_age((ended - begun).total_seconds())


def _ago(at: str, now: datetime | None) -> str:
    then = parse_time(at)
    return f" ({render_age((now - then).total_seconds())} ago)" if then is not None and now is not None else ""
