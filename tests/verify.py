"""`make test-all`: every integration scenario, each in a process of its own, resumable; writes docs/verification.md.

What passed at this state of the code is remembered in out/verify.json and not run again, so an interrupted run goes on
where it was. `--times N` runs each until it has passed N times, in N rounds. Touches: out/, docs/verification.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATE = ROOT / "out" / "verify.json"
REPORT = ROOT / "docs" / "verification.md"
CODE = ("nvrx_chain", "nvrx_watch", "sbatch_templates", "tests/integration")
ALONE = ("tests/integration/test_limits_", "tests/integration/test_demo.py")  # measured against a bound in seconds
SCENARIO_SECONDS = 1200

HEADER = """# Verification

Every scenario of docs/scenarios.md on a private Slurm cluster on one machine, written by `make test-all`. Commit is the
last one that changed code or scenario; seconds is the median of a whole run with its cluster.

| Scenario | Commit | Times passed | Seconds |
|---|---|---|---|
"""


@dataclass
class Tally:
    """What is known about one scenario at one commit."""

    commit: str
    seconds: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1, help="how often each scenario has to pass (default 1)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="scenarios at a time; those with a bound run alone (default 1)"
    )
    parser.add_argument("-k", dest="expression", default="", help="only scenarios that match, as for pytest")
    options = parser.parse_args()
    book = Book(commit=code_commit(), tallies=read_state(), total=options.times)
    scenarios = collect(options.expression)
    alone = [scenario for scenario in scenarios if scenario.startswith(ALONE)]
    together = [scenario for scenario in scenarios if not scenario.startswith(ALONE)]
    for _ in range(options.times):
        run_round(book, together, options.jobs)
        run_round(book, alone, 1)
    write_report(book.tallies)
    print(f"{len(scenarios) - len(book.failed)} passed, {len(book.failed)} failed")
    for scenario in sorted(book.failed):
        print(f"failed: {scenario}")
    return 1 if book.failed else 0


@dataclass
class Book:
    """What passed how often at `commit`, and what failed in this run; several scenarios report into it at once."""

    commit: str
    tallies: dict[str, Tally]
    total: int
    failed: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def wants(self, scenario: str) -> bool:
        tally = self.tallies.get(scenario)
        passed = len(tally.seconds) if tally is not None and tally.commit == self.commit else 0
        return scenario not in self.failed and passed < self.total

    def enter(self, scenario: str, seconds: float | None) -> None:
        with self.lock:
            if seconds is None:
                self.failed.add(scenario)
                print(f"{scenario} FAILED", flush=True)
                return
            tally = self.tallies.get(scenario)
            if tally is None or tally.commit != self.commit:
                tally = self.tallies[scenario] = Tally(commit=self.commit)
            tally.seconds.append(seconds)
            print(f"{scenario} passed in {seconds:.0f} s", flush=True)
            write_state(self.tallies)
            write_report(self.tallies)


def run_round(book: Book, scenarios: list[str], jobs: int) -> None:
    """Run once each scenario that has not passed often enough yet, `jobs` at a time."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        wanted = [scenario for scenario in scenarios if book.wants(scenario)]
        for _ in pool.map(lambda scenario: book.enter(scenario, run(scenario)), wanted):
            pass


def collect(expression: str) -> list[str]:
    """The node ids of all integration tests. Raises SystemExit when they cannot be collected."""
    argv = [sys.executable, "-m", "pytest", "tests/integration", "--collect-only", "-m", "integration"]
    if expression:
        argv += ["-k", expression]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"collecting the scenarios failed:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def run(scenario: str) -> float | None:
    """Run one scenario; its seconds when it passed, None (and its output printed) when it did not."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "pytest", scenario, "-x", "--timeout", str(SCENARIO_SECONDS)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=2 * SCENARIO_SECONDS, check=False)
    if done.returncode == 0:
        return time.monotonic() - began
    print(done.stdout[-6000:])
    return None


def code_commit() -> str:
    """The last commit that changed code or scenarios; with a `+` when the working tree differs from it."""
    log = ["git", "log", "-1", "--format=%h", "--", *CODE]
    commit = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    status = ["git", "status", "--porcelain", "--", *CODE]
    dirty = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    return f"{commit}+" if dirty else commit


def read_state() -> dict[str, Tally]:
    if not STATE.exists():
        return {}
    return {name: Tally(**entry) for name, entry in json.loads(STATE.read_text()).items()}


def write_state(tallies: dict[str, Tally]) -> None:
    STATE.parent.mkdir(exist_ok=True)
    temporary = STATE.with_suffix(".tmp")
    temporary.write_text(json.dumps({name: vars(tally) for name, tally in tallies.items()}, indent=1))
    temporary.replace(STATE)


def write_report(tallies: dict[str, Tally]) -> None:
    """Write the table anew; a scenario that never passed has no row."""
    rows = [
        f"| {name} | {tally.commit} | {len(tally.seconds)} | {statistics.median(tally.seconds):.0f} |"
        for name, tally in sorted(tallies.items())
        if tally.seconds
    ]
    REPORT.write_text(HEADER + "\n".join(rows) + "\n")


if __name__ == "__main__":
    sys.exit(main())
