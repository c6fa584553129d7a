"""Measures how fast and how small the watcher reads: `python -m tests.watch_bench [--rounds 5] [--only READING]`.

First reading, second reading of the same process, first reading of a process that finds a cache, each over 100
generations of 200 closed cycles; and the memory of a watcher and its child with 50 chains of 400 cycles.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nvrx_chain.errors import Unobserved
from nvrx_watch.layout import Layout
from nvrx_watch.reading.worker import RunReader
from tests.rundirs import Size, age, write_own

BIG = Size(generations=100, cycles=200, nodes=64, live=False)
MANY = Size(generations=2, cycles=200, nodes=64, live=True)
CHAINS = 50
LIMITS = {"first": 0.9, "again": 0.012, "cached": 0.12, "megabytes": 90.0}


def in_fork(work: Callable[[], list[float]]) -> list[float]:
    """The numbers that `work` gives in a process of its own."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, " ".join(map(str, work())).encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as stream:
        numbers = [float(word) for word in stream.read().split()]
    os.waitpid(child, 0)
    return numbers


def timed(reader: RunReader, layout: Layout) -> float:
    """Seconds of one reading."""
    before = time.perf_counter()
    reading = reader.read(layout, deadline_seconds=60.0)
    took = time.perf_counter() - before
    assert not isinstance(reading, Unobserved), reading.reason
    assert not isinstance(reading.generations, Unobserved), reading.generations.reason
    count = sum(len(each.cycles) for each in reading.generations if isinstance(each.cycles, tuple))
    assert count == BIG.generations * BIG.cycles, count
    return took


def measure_speed(directory: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds by kind of reading."""
    layout = write_own(directory / "big run & more", BIG)
    age(layout.run_directory)
    cache = directory / "cache"
    found: dict[str, list[float]] = {"first": [], "again": [], "cached": []}

    def fresh() -> list[float]:
        reader = RunReader(cache_directory=cache)
        numbers = [timed(reader, layout), *(timed(reader, layout) for _ in range(5))]
        reader.close()
        return [numbers[0], statistics.median(numbers[1:])]

    for _ in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        first, again = in_fork(fresh)
        found["first"].append(first)
        found["again"].append(again)
        found["cached"].append(in_fork(fresh)[0])
    return found


def measure_memory(directory: Path) -> dict[str, list[float]]:
    """Megabytes of the watcher and of its child."""
    layouts = [write_own(directory / f"chain {number}", MANY) for number in range(CHAINS)]

    def watch() -> list[float]:
        reader = RunReader(cache_directory=directory / "cache")
        for _ in range(3):
            for layout in layouts:
                assert not isinstance(reader.read(layout, deadline_seconds=60.0), Unobserved)
        child = reader.child_pid
        numbers = [resident(os.getpid()), resident(child) if child is not None else 0.0]
        reader.close()
        return numbers

    own, child = in_fork(watch)
    return {"megabytes": [own + child], "  of it the watcher": [own], "  of it the child": [child]}


def resident(pid: int) -> float:
    """Resident memory of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("speed", "memory"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watch bench ") as name:
        found: dict[str, list[float]] = {}
        if options.only != "memory":
            found |= measure_speed(Path(name), options.rounds)
        if options.only != "speed":
            found |= measure_memory(Path(name) / "many")
    for what, numbers in found.items():
        limit = f"limit {LIMITS[what]:g}" if what in LIMITS else ""
        print(f"{what:20} {statistics.median(numbers):8.4f} (min {min(numbers):.4f}, max {max(numbers):.4f}) {limit}")


if __name__ == "__main__":
    main()
