"""`make test-all`: every integration scenario, each in a process of its own, resumable; writes docs/verification.md.

What passed is remembered in out/verify.json and not run again while nothing that it depends on has changed since: the
product, its test module and what that imports. So an interrupted run goes on where it was. `--times N` runs each until
it has passed N times, in N rounds. Touches: out/, docs/verification.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.verifypage import write_scenarios

ROOT = Path(__file__).parents[1]
STATE = ROOT / "out" / "verify.json"
PRODUCT = ("nvrx_chain", "sbatch_templates", "pyproject.toml")
WATCHER = "nvrx_watch"  # counts for the scenarios that run it; nvrx_chain imports nothing of it
ALONE = (
    "tests/integration/test_limits_",
    "tests/integration/test_demo.py",
    "tests/integration/launcher/test_hangs.py",
)  # measured against a bound in seconds
SCENARIO_SECONDS = 1200

HEADER = """# Verification

Every scenario of docs/scenarios.md on a private Slurm cluster on one machine, written by `make test-all`. Commit is the
one at which it passed; one that changes what a scenario depends on makes `make test-all` run it again. Seconds is the
median of a whole run with its cluster.

| Scenario | Commit | Times passed | Seconds |
|---|---|---|---|
"""


@dataclass
class Tally:
    """What is known about one scenario: the commit of its last pass. `counts`: nothing it depends on changed since."""

    commit: str
    seconds: list[float] = field(default_factory=list)
    counts: bool = True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1, help="how often each scenario has to pass (default 1)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="scenarios at a time; those with a bound run alone (default 1)"
    )
    parser.add_argument(
        "--together", action="store_true", help="those with a bound too; one that fails so has one more try, alone"
    )
    parser.add_argument("-k", dest="expression", default="", help="only scenarios that match, as for pytest")
    options = parser.parse_args()
    scenarios = collect(options.expression)
    book = Book(commit=head_commit(), tallies=still_true(read_state()), total=options.times)
    alone = [scenario for scenario in scenarios if scenario.startswith(ALONE)]
    together = [scenario for scenario in scenarios if not scenario.startswith(ALONE)]
    for _ in range(options.times):
        run_round(book, [*alone, *together] if options.together else together, options.jobs)
        if options.together:
            book.failed -= set(alone)
        run_round(book, alone, 1)
    write_report(book.tallies)
    print(f"{len(scenarios) - len(book.failed)} passed, {len(book.failed)} failed")
    for scenario in sorted(book.failed):
        print(f"failed: {scenario}")
    return 1 if book.failed else 0


@dataclass
class Book:
    """What passed how often and still counts, and what failed in this run; several scenarios report at once."""

    commit: str
    tallies: dict[str, Tally]
    total: int
    failed: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def wants(self, scenario: str) -> bool:
        tally = self.tallies.get(scenario)
        passed = len(tally.seconds) if tally is not None and tally.counts else 0
        return scenario not in self.failed and passed < self.total

    def enter(self, scenario: str, seconds: float | None) -> None:
        with self.lock:
            if seconds is None:
                self.failed.add(scenario)
                print(f"{scenario} FAILED", flush=True)
                return
            tally = self.tallies.get(scenario)
            if tally is None or not tally.counts:
                tally = self.tallies[scenario] = Tally(commit=self.commit)
            tally.commit = self.commit
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


def head_commit() -> str:
    """The commit that is checked out; with a `+` when the working tree differs from it, so that it counts only once."""
    commit = git("rev-parse", "--short=7", "HEAD").stdout.strip()
    paths = (*PRODUCT, WATCHER, "tests")
    return f"{commit}+" if git("status", "--porcelain", "--", *paths).stdout.strip() else commit


def still_true(tallies: dict[str, Tally]) -> dict[str, Tally]:
    """The same tallies, each marked with whether it still counts."""
    known: dict[tuple[str, str], bool] = {}
    for scenario, tally in tallies.items():
        module = scenario.partition("::")[0]
        if (module, tally.commit) not in known:
            known[module, tally.commit] = is_unchanged(tally.commit, dependencies(module))
        tally.counts = known[module, tally.commit]
    return tallies


def is_unchanged(commit: str, paths: list[str]) -> bool:
    """Whether the working tree has these paths as they were at a commit."""
    same = git("diff", "--quiet", commit, "--", *paths).returncode == 0
    return same and not git("status", "--porcelain", "--", *paths).stdout.strip()


def dependencies(module: str) -> list[str]:
    """What a scenario's result depends on: the product, its module and all that this imports of the tests."""
    wanted, found = [module, "tests/integration/conftest.py"], set()
    while wanted:
        path = wanted.pop()
        if path in found:
            continue
        found.add(path)
        wanted += imported_tests((ROOT / path).read_text()) if (ROOT / path).exists() else []
    runs_watcher = any(WATCHER in (ROOT / path).read_text() for path in found if (ROOT / path).exists())
    return [*PRODUCT, *([WATCHER] if runs_watcher else []), *sorted(found)]


def imported_tests(source: str) -> list[str]:
    """The files below tests/ that a module imports."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
            names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    paths = [f"{name.replace('.', '/')}.py" for name in names]
    return [path for path in paths if (ROOT / path).is_file()]


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """One git command in the repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def read_state() -> dict[str, Tally]:
    if not STATE.exists():
        return {}
    return {name: Tally(**entry) for name, entry in json.loads(STATE.read_text()).items()}


def write_state(tallies: dict[str, Tally]) -> None:
    STATE.parent.mkdir(exist_ok=True)
    temporary = STATE.with_suffix(".tmp")
    entries = {name: {"commit": tally.commit, "seconds": tally.seconds} for name, tally in tallies.items()}
    temporary.write_text(json.dumps(entries, indent=1))
    temporary.replace(STATE)


def write_report(tallies: dict[str, Tally]) -> None:
    """Write the table anew; a scenario that never passed has no row."""
    rows = [
        f"| {name} | {tally.commit} | {len(tally.seconds)} | {statistics.median(tally.seconds):.0f} |"
        for name, tally in sorted(tallies.items())
        if tally.seconds
    ]
    write_scenarios(HEADER + "\n".join(rows) + "\n")


if __name__ == "__main__":
    sys.exit(main())
