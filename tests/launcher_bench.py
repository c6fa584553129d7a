"""Measures how quickly a job is back on its feet: `python -m tests.launcher_bench [--times 5]`; `make bench` runs it.

Our launcher, torchrun and ft_launcher 0.7.0 in turn, on this machine, with the same ranks (a sleep of 50 ms and one
all_reduce a step, gloo). Touches: a temporary directory, child processes, docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from tests.bench import describe_machine, read_commit
from tests.benchpage import LAUNCHER, write_section
from tests.integration.launcher.crew import Crew, await_end, crew

PEERS = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
OURS = "nvrx"
COLD = "nvrx cold"
KINDS = (OURS, COLD, "torchrun", "ft_launcher")
OWN_MARKS = ("failure_detected", "workers_stopped", "workers_started")
OWN_PARTS = ("detect", "stop", "rendezvous", "spawn")
"""What our launcher's own marks say of the time until a rank is born."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from a fault to the first step of all ranks, and of what they consist."""

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table: what, the bound, and how to measure it with one kind of launcher so many times."""

    key: str
    what: str
    bound: Callable[[Mapping[str, float]], float | None]
    """From the medians of the kinds; None where a bound makes no sense."""
    said: str
    measure: Callable[[str, Path, int], list[Recovery]]
    kinds: tuple[str, ...] = KINDS


@contextmanager
def job(kind: str, directory: Path, **options: object) -> Iterator[Crew]:
    """A crew of one kind of launcher with the options that make them comparable."""
    words = {
        OURS: ("--max-restarts", "99", "--refill-delay", "0", "--first-round-grace", "30"),
        COLD: ("--max-restarts", "99", "--no-warm-workers", "--first-round-grace", "30"),
        "torchrun": ("--max-restarts", "99"),
        "ft_launcher": ("--max-restarts", "99"),
    }
    directory.mkdir()
    launcher = OURS if kind == COLD else kind
    python = str(PEERS) if kind == "ft_launcher" else sys.executable
    if launcher == OURS:
        words[kind] += ("--timeline-dir", str(directory / "timeline"), "--cycle-info-dir", str(directory / "cycles"))
        words[kind] += ("--per-cycle-applog-prefix", str(directory / "app.log"))
    further = tuple(options.pop("options", ()))  # type: ignore[arg-type]
    with crew(directory, launcher=launcher, python=python, options=(*words[kind], *further), **options) as found:
        yield found


def recovery(found: Crew, ranks: int, number: int, fault_at: float) -> Recovery:
    """What happened after a fault until all ranks of round `number` had made a step."""
    first_step = found.until_stepping(number, ranks)
    last = {
        what: max(float(event["at"]) for event in found.events(what, round_number=number))
        for what in ("born", "imported", "joined")
    }
    marks = read_marks(found, number)
    names, edges = ["until born"], [fault_at, last["born"]]
    if all(name in marks for name in OWN_MARKS):
        names, edges = list(OWN_PARTS), [fault_at, *(marks[name] for name in OWN_MARKS), last["born"]]
    names += ["import", "init", "step"]
    edges += [last["imported"], last["joined"], first_step]
    parts = {name: later - earlier for name, earlier, later in zip(names, edges, edges[1:], strict=False)}
    return Recovery(total=first_step - fault_at, parts=parts)


def read_marks(found: Crew, number: int) -> dict[str, float]:
    """When the last launcher had done each step of this round: ours alone keep a timeline. One clock: one host."""
    marks: dict[str, float] = {}
    for path in found.directory.glob("timeline/*.jsonl"):
        for line in path.read_text().splitlines():
            mark = json.loads(line)
            # The failure counts from the first that knew of it, all else until the last was done.
            if mark["cycle"] == number:
                choose = min if mark["name"] == "failure_detected" else max
                marks[mark["name"]] = choose(marks.get(mark["name"], mark["at"]), mark["at"])
    return marks


def ready(found: Crew, kind: str, *indexes: int) -> None:
    """Wait for the parked workers where there are any: a fault inside the refill starts cold, as the other row does."""
    if kind == OURS:
        for index in indexes:
            found.until_parked(index)


def rounds_of(found: Crew) -> int:
    return max(int(event["round"]) for event in found.events("born"))


def measure_rank_kill(kind: str, directory: Path, times: int) -> list[Recovery]:
    """One node with two ranks; rank 1 is killed."""
    with job(kind, directory, ranks=2) as found:
        found.start(0)
        found.until_stepping(0, 2)
        results = []
        for number in range(times):
            ready(found, kind, 0)
            at = time.time()
            os.kill(found.rank_pid(1, number), signal.SIGKILL)
            results.append(recovery(found, 2, number + 1, at))
        return results


def measure_stuck(kind: str, directory: Path, times: int) -> list[Recovery]:
    """As above, while rank 0 stands still and ignores SIGTERM."""
    with job(kind, directory, ranks=2) as found:
        found.start(0)
        results = []
        for number in range(min(times, 3)):
            found.until_stepping(number, 2)
            ready(found, kind, 0)
            found.order(0, do="stick")
            found.until(lambda: len(found.events("stuck")) > number, "rank 0 is stuck")  # noqa: B023
            at = time.time()
            os.kill(found.rank_pid(1, number), signal.SIGKILL)
            results.append(recovery(found, 2, number + 1, at))
        return results


def measure_node_kill(kind: str, directory: Path, times: int) -> list[Recovery]:
    """Two nodes train, one is a spare; a training node is killed."""
    return [_lose_node(kind, directory / str(number), whole=True) for number in range(times) if _made(directory)]


def measure_agent_kill(kind: str, directory: Path, times: int) -> list[Recovery]:
    """The same, but only the launcher process is killed."""
    return [_lose_node(kind, directory / str(number), whole=False) for number in range(times) if _made(directory)]


def _made(directory: Path) -> bool:
    directory.mkdir(exist_ok=True)
    return True


def _lose_node(kind: str, directory: Path, *, whole: bool) -> Recovery:
    with job(kind, directory, nnodes="2:3") as found:
        found.start(0, 1, 2)
        found.until_stepping(0, 2)
        victim = found.node_of(1, 0) or found.node_of(0, 0)
        spare = ({1, 2} - {victim}).pop()
        ready(found, kind, 0, spare)
        rank = found.rank_pid(1, 0)
        at = time.time()
        if whole:
            found.nodes[victim].kill()
        else:
            os.kill(found.nodes[victim].pid, signal.SIGKILL)
            if kind == OURS:
                await_end(rank, 5.0)
        return recovery(found, 2, 1, at)


def measure_host_kill(kind: str, directory: Path, times: int) -> list[Recovery]:
    """The node of the rendezvous host is killed: until every other launcher and its ranks are gone."""
    results = []
    _made(directory)
    for number in range(times):
        with job(kind, directory / str(number), nnodes="2:2") as found:
            found.start(0, 1)
            found.until_stepping(0, 2)
            rank = found.rank_pid(1, 0) if found.node_of(1, 0) == 1 else found.rank_pid(0, 0)
            at = time.time()
            found.nodes[0].kill()
            found.wait(1)
            ended = max(await_end(found.nodes[1].pid, 1.0), await_end(rank, 60.0))
            results.append(Recovery(total=ended - at))
    return results


def measure_end(kind: str, directory: Path, times: int) -> list[Recovery]:
    """From the last rank's last line to the end of its launcher."""
    results = []
    _made(directory)
    for number in range(times):
        with job(kind, directory / str(number), ranks=2) as found:
            found.start(0)
            found.until_stepping(0, 2)
            found.finish()
            assert found.wait() == [0]
            ended = time.time()
            results.append(Recovery(total=ended - max(float(event["at"]) for event in found.events("done"))))
    return results


def _tenth_of_the_better(limit: float) -> Callable[[Mapping[str, float]], float | None]:
    def bound(medians: Mapping[str, float]) -> float | None:
        peers = [medians[kind] for kind in ("torchrun", "ft_launcher") if kind in medians]
        return min([limit, *(peer / 10 for peer in peers)])

    return bound


ROWS = (
    Row(
        key="rank",
        what="one node, 2 ranks: a rank SIGKILLed -> first step of all",
        bound=_tenth_of_the_better(0.30),
        said="0.30 s and a tenth of the better peer",
        measure=measure_rank_kill,
    ),
    Row(
        key="node",
        what="2 nodes and a spare: a training node killed -> first step on the spare",
        bound=_tenth_of_the_better(0.50),
        said="0.50 s and a tenth of ft_launcher",
        measure=measure_node_kill,
        kinds=(OURS, COLD, "ft_launcher"),
    ),
    Row(
        key="stuck",
        what="a rank SIGKILLed while the other ignores SIGTERM -> first step of all",
        bound=lambda medians: 2.3,
        said="grace (2 s) + 0.3 s",
        measure=measure_stuck,
    ),
    Row(
        key="agent",
        what="a launcher process alone killed: its ranks gone, the spare's first step",
        bound=lambda medians: 0.5,
        said="0.5 s",
        measure=measure_agent_kill,
        kinds=(OURS,),
    ),
    Row(
        key="host",
        what="the rendezvous host's node killed -> every other launcher and its ranks gone",
        bound=lambda medians: 1.0,
        said="1 s",
        measure=measure_host_kill,
        kinds=(OURS, "torchrun", "ft_launcher"),
    ),
    Row(
        key="end",
        what="last rank done -> its launcher has exited",
        bound=lambda medians: 1.0,
        said="1 s",
        measure=measure_end,
        kinds=(OURS, "torchrun", "ft_launcher"),
    ),
)


def main() -> int:
    """Measure the rows that were asked for and write their table; 1 when ours is over a bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="faults of each row and kind (default 5)")
    parser.add_argument("--rows", default="", help="keys of the rows, by commas (all of them)")
    parser.add_argument("--kinds", default="", help="kinds of launchers, by commas (all of them)")
    parser.add_argument("--dry", action="store_true", help="print the table and write nothing")
    options = parser.parse_args()
    wanted = [row for row in ROWS if not options.rows or row.key in options.rows.split(",")]
    lines, is_over = [], False
    for row in wanted:
        kinds = [kind for kind in row.kinds if not options.kinds or kind in options.kinds.split(",")]
        cells, over = measure(row, kinds, options.times)
        lines.append(cells)
        is_over |= over
    text = render(lines)
    print(text)
    if not options.dry:
        write_section(LAUNCHER, text)
    return int(is_over)


def measure(row: Row, kinds: Sequence[str], times: int) -> tuple[list[str], bool]:
    """The cells of a row, and whether ours is over its bound."""
    found: dict[str, list[Recovery]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        for kind in kinds:
            found[kind] = row.measure(kind, Path(directory) / kind.replace(" ", "-"), times)
            print(f"{row.key} {kind}: {describe(found[kind])}", flush=True)
    medians = {kind: statistics.median(one.total for one in results) for kind, results in found.items()}
    bound = row.bound(medians)
    over = OURS in medians and bound is not None and medians[OURS] > bound
    cells = [row.what, row.said, *(describe(found[kind]) if kind in found else "-" for kind in KINDS)]
    if over:
        cells[2] += " **over**"
    return cells, over


def describe(results: Sequence[Recovery]) -> str:
    """Median, least and most, and the medians of the parts."""
    totals = [one.total for one in results]
    text = f"{statistics.median(totals):.3g} s ({min(totals):.3g} to {max(totals):.3g})"
    if results[0].parts:
        parts = (f"{name} {statistics.median(one.parts[name] for one in results):.3g}" for name in results[0].parts)
        text += f": {', '.join(parts)}"
    return text


def render(rows: Sequence[Sequence[str]]) -> str:
    """The section of the page."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    columns = ("what", "bound", "ours", "ours, cold", "torchrun", "ft_launcher")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return (
        f"Written by `.venv/bin/python -m tests.launcher_bench`, {date}, commit {read_commit()}.\n"
        f"{describe_machine()}\n"
        "Medians, least to most in brackets, all kinds in one run. A step is a sleep of 50 ms and one all_reduce;\n"
        "ours with logs, health checks and records on. `until born` is the launcher's part up to the first line of\n"
        "the last rank, with the start of its interpreter; for ours by its own timeline: detect, stop, rendezvous,\n"
        "spawn. Then the import of torch, the process group (init) and the first step.\n\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
