"""Measures how fast and how small the watcher is: `python -m tests.watch_bench [--rounds 5]`; `make bench` runs it.

Whole commands over 100 generations of 200 closed cycle files, the first pass and the later ones; the steady pass of a
daemon over them; the calls of Slurm in a pass; the memory of a watcher and its child with 50 chains of 400 cycles; the
start of `--help`. Touches: a temporary directory, child processes, docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from nvrx_chain.errors import Unobserved
from nvrx_watch.config import build_config
from nvrx_watch.detectors.registry import ALL
from nvrx_watch.reading.worker import RunReader
from nvrx_watch.thresholds import WatchThresholds
from nvrx_watch.watcher import Watcher
from tests.bench import describe_machine, read_commit
from tests.benchpage import WATCHER, write_section
from tests.rundirs import Size, age, write_own

BIG = Size(generations=100, cycles=200, nodes=64, live=False)
MANY = Size(generations=2, cycles=200, nodes=64, live=True)
CHAINS = 50
STEADY_PASSES = 50
COMMAND = (sys.executable, "-m", "nvrx_watch")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: what, the bound, the reference, and what was measured in its unit."""

    what: str
    bound: float
    unit: str
    reference: str
    measured: Sequence[float]

    def cells(self) -> tuple[str, ...]:
        middle = statistics.median(self.measured)
        over = "" if middle <= self.bound else " **over**"
        spread = f" ({min(self.measured):.3g} to {max(self.measured):.3g})" if len(self.measured) > 1 else ""
        return (self.what, f"{self.bound:g} {self.unit}", f"{middle:.3g} {self.unit}{over}{spread}", self.reference)


def seconds_of(argv: Sequence[str]) -> float:
    """Wall time of a command that ends well; 1 is what a pass without a scheduler says of a chain that is over."""
    # An installed command has its bytecode.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = time.perf_counter()
    done = subprocess.run(
        argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120, check=False
    )
    took = time.perf_counter() - before
    assert done.returncode in (0, 1, 2), (done.returncode, done.stderr)
    return took


def measure_commands(run: Path, directory: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of first and of later passes, each a process of its own."""
    state = directory / "state"
    argv = [*COMMAND, "--run-dir", str(run), "--platform", "none", "--state-dir", str(state)]
    first, later = [], []
    seconds_of(argv)
    for _ in range(rounds):
        shutil.rmtree(state, ignore_errors=True)
        first.append(seconds_of(argv))
        later.append(seconds_of(argv))
    return first, later


def measure_steady(run: Path, directory: Path) -> list[float]:
    """Milliseconds of a daemon's passes after the first: reading, detectors, history and state."""
    command = {"run_dir": run, "platform": "none", "state_dir": directory / "steady", "interval": 1.0}
    config = build_config(defaults() | command, WatchThresholds(), {}, frozenset(detector.name for detector in ALL))
    found = []
    with contextlib.redirect_stderr(io.StringIO()), Watcher(config) as watcher:
        watcher.resolve()
        watcher.run_pass()
        for _ in range(STEADY_PASSES):
            before = time.perf_counter()
            (result,) = watcher.run_pass()
            found.append(1000 * (time.perf_counter() - before))
            assert isinstance(result.snapshot.generations, tuple)
            assert len(result.snapshot.generations) >= BIG.generations
    return found


def defaults() -> dict[str, object]:
    """Every option of the command line with its default."""
    from nvrx_watch.cli import watch

    context = watch.make_context("nvrx-watch", [])
    return dict(context.params)


def measure_memory(directory: Path) -> list[float]:
    """Megabytes of a watcher and its child that have read 50 chains several times."""
    layouts = [write_own(directory / f"chain {number}", MANY) for number in range(CHAINS)]

    def watch() -> list[float]:
        reader = RunReader(cache_directory=directory / "cache")
        readings = []
        for _ in range(3):
            readings = [reader.read(layout, deadline_seconds=60.0) for layout in layouts]
        for reading in readings:
            assert not isinstance(reading, Unobserved)
            assert not isinstance(reading.generations, Unobserved)
            # What a detector may look at is made and stays in memory.
            assert sum(len(list(each.cycles or ())) for each in reading.generations if not blind(each.cycles)) == 400
        child = reader.child_pid
        number = resident(os.getpid()) + (resident(child) if child is not None else 0.0)
        reader.close()
        return [number]

    return in_fork(watch)


def blind(cycles: object) -> bool:
    return isinstance(cycles, Unobserved)


def in_fork(work: Callable[[], list[float]]) -> list[float]:
    """The numbers that `work` gives in a process of its own."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(write_end, " ".join(map(str, work())).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    with open(read_end, "rb") as stream:
        numbers = [float(word) for word in stream.read().split()]
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
    return numbers


def resident(pid: int) -> float:
    """Resident memory of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(directory: Path, rounds: int) -> list[Row]:
    """Every row of the table."""
    run = write_own(directory / "big run & more", BIG).run_directory
    age(run)
    first, later = measure_commands(run, directory, rounds)
    files = "whole command over 20,000 closed cycle files (100 generations of 200)"
    return [
        Row(f"{files}, second and later passes", 0.35, "s", "2.8 s, every pass", later),
        Row(f"{files}, first pass", 1.4, "s", "2.8 s", first),
        Row(
            "steady pass of a daemon over them, without start-up",
            20.0,
            "ms",
            "not possible",
            measure_steady(run, directory),
        ),
        Row(f"memory with {CHAINS} chains of 400 cycles", 120.0, "MB", "-", measure_memory(directory / "many")),
        Row(
            "`nvrx-watch --help`", 0.25, "s", "0.2 to 0.4 s", [seconds_of([*COMMAND, "--help"]) for _ in range(rounds)]
        ),
    ]


def main() -> int:
    """The command; 1 when a row is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watch bench ") as name:
        rows = measure(Path(name), options.rounds)
    lines = ["| row | bound | ours: median (least to most) | reference |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    write_section(
        WATCHER,
        f"Written by `.venv/bin/python -m tests.watch_bench`, {date}, commit {read_commit()}. {describe_machine()}\n"
        "No scheduler is asked in these (`--platform none`). A pass with one makes two calls, squeue and sacct, and\n"
        "one of scontrol for the nodes, whatever the number of generations (tests/unit/watch/test_slurm_facts.py).\n\n"
        + "\n".join(lines),
    )
    print("\n".join(lines))
    return int(any("**over**" in "".join(row.cells()) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
