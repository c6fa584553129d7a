"""A daemon that acts, over a chain that is hurt every 20 s: `python -m tests.watch_soak [--minutes 10] [--seed N]`.

Task 0 dies, or the controller is away for a while, in a random order. Each orphan has to go, by id, and nothing else;
after a warm-up third the daemon's memory may grow by less than 1 MB in 100 passes, its file descriptors not at all.
`make soak` runs it. Touches: a private cluster, a temporary directory, docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from nvrx_chain.sandbox import BatchScope
from tests.bench import describe_machine, read_commit
from tests.benchpage import WATCHER_SOAK, write_section
from tests.integration.cluster import Cluster, ClusterPool, wait_for
from tests.integration.controller import controller_away
from tests.integration.watch_tools import Watcher, submit_plain, tasks_in, wait_until_up

FAULT_SECONDS = 20.0
AWAY_SECONDS = 6.0
INTERVAL = 1
GRACE = 3.0
WAIT = 90.0
MOST_GROWTH_MB = 1.0
TASK_ZERO, CONTROLLER = "task 0 killed", "controller frozen for a while"


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon after some passes: megabytes and file descriptors of it and its reading child."""

    passes: int
    megabytes: float
    descriptors: int


@dataclass
class Account:
    """What a soak has seen."""

    samples: list[Sample] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    release_seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def settled(self) -> list[Sample]:
        """What comes after the warm-up third."""
        return self.samples[len(self.samples) // 3 :]

    def growth(self) -> float:
        """Megabytes per 100 passes after the warm-up, by least squares."""
        after = self.settled()
        fit = statistics.linear_regression([one.passes for one in after], [one.megabytes for one in after])
        return 100 * fit.slope

    def least_descriptors(self) -> tuple[int, int]:
        """The fewest open at once in the first third, and in the last: a pass that is under way has pipes besides."""
        third = len(self.samples) // 3
        return min(one.descriptors for one in self.samples[:third]), min(
            one.descriptors for one in self.samples[-third:]
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"soak of the watcher of {options.minutes:.0f} min, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nvrx-soak-") as name:
        pool = ClusterPool(Path(name))
        try:
            account = soak(pool.get(), Path(name), 60 * options.minutes, random.Random(options.seed))
        finally:
            pool.close()
    check(account)
    write_report(account, options.minutes, options.seed)
    return 0


def soak(cluster: Cluster, directory: Path, seconds: float, chance: random.Random) -> Account:
    """Hurt the chain until the time is over; every orphan has to go meanwhile."""
    account, work, log = Account(), directory / "work & dir", directory / "watch.jsonl"
    jobs = list(submit_plain(cluster, work, depth=2 + int(seconds / FAULT_SECONDS)))
    wait_until_up(cluster, work, jobs[0])
    watcher = Watcher(
        cluster, directory / "state", {"orphan_grace": GRACE}, options=("--act", "--json", f"--work-dir={work}")
    )
    until = time.monotonic() + seconds
    with watcher.staying(str(jobs[0]), f"--interval={INTERVAL}", log=log) as daemon:
        while time.monotonic() < until:
            began = time.monotonic()
            fault = chance.choice((TASK_ZERO, TASK_ZERO, CONTROLLER))
            account.faults[fault] += 1
            if fault == TASK_ZERO:
                account.release_seconds.append(lose_task_zero(cluster, work, jobs))
                account.lost.append(jobs.pop(0))
                wait_until_up(cluster, work, jobs[0], WAIT)
            else:
                with controller_away(cluster):
                    watch_for(AWAY_SECONDS, daemon.pid, log, account)
            watch_for(FAULT_SECONDS - (time.monotonic() - began), daemon.pid, log, account)
            assert tasks_in(cluster, jobs[0], "RUNNING") == {0, 1, 2}, "the chain that trains was touched"
            print(f"{fault}: {account.samples[-1]}", flush=True)
    lines = [json.loads(line) for line in (watcher.state / "actions.jsonl").read_text().splitlines()]
    asked = Counter(spec for line in lines for spec in line["asked"])
    assert set(asked) == {f"{job}_4" for job in account.lost}, f"asked to cancel {sorted(asked)}"
    assert {spec for line in lines for spec in line["gone"]} == set(asked), "an orphan stayed"
    return account


def lose_task_zero(cluster: Cluster, work: Path, jobs: list[int]) -> float:
    """Kill task 0, wait until the spare behind it is gone, and end what is left; the seconds until it was gone."""
    job = jobs[0]
    cluster.sandbox.kill_task_0(job, scope=BatchScope.SHELL)
    wait_for(lambda: 0 in tasks_in(cluster, job, "FAILED"), WAIT, f"task 0 of {job} to have failed")
    failed = time.monotonic()
    wait_for(lambda: not tasks_in(cluster, job, "PENDING"), WAIT, f"the spares of {job} to go")
    took = time.monotonic() - failed
    assert tasks_in(cluster, jobs[1], "PENDING") == {0, 1, 2, 3, 4}, "the next generation was touched"
    assert tasks_in(cluster, job, "RUNNING") == {1, 2, 3}, "a task that runs was touched"
    cluster.cancel(job)
    return took


def watch_for(seconds: float, pid: int, log: Path, account: Account) -> None:
    """Take a sample with each new pass for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        seen = account.samples[-1].passes if account.samples else 0
        try:
            passes = wait_for(lambda seen=seen: count_passes(log, more_than=seen), until - time.monotonic(), "a pass")
        except AssertionError:
            # A pass that waits for an absent controller may outlast the time to watch.
            return
        account.samples.append(take_sample(pid, passes))


def count_passes(log: Path, more_than: int) -> int | None:
    """How many passes are on record, None while there are no more than that."""
    count = sum(line.startswith(b"{") for line in log.read_bytes().splitlines())
    return count if count > more_than else None


def take_sample(pid: int, passes: int) -> Sample:
    """What the daemon and its reading child hold now."""
    page = os.sysconf("SC_PAGE_SIZE")
    family = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    pages, descriptors = 0, 0
    for one in family:
        try:
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
            descriptors += len(os.listdir(f"/proc/{one}/fd")) if one == pid else 0
        except (FileNotFoundError, ProcessLookupError):
            # A squeue that has ended meanwhile.
            continue
    return Sample(passes=passes, megabytes=pages * page / 1e6, descriptors=descriptors)


def check(account: Account) -> None:
    """The promises about the process itself."""
    assert account.growth() < MOST_GROWTH_MB, f"memory grows by {account.growth():.2f} MB in 100 passes"
    first, last = account.least_descriptors()
    assert last <= first, f"{last} file descriptors in the last third, {first} in the first"


def write_report(account: Account, minutes: float, seed: int) -> None:
    """Put what was seen into docs/benchmarks.md."""
    first, last = account.least_descriptors()
    rows = [
        ("faults", ", ".join(f"{name}: {count}" for name, count in sorted(account.faults.items()))),
        ("passes", f"{account.samples[-1].passes}, a few seconds apart while the controller is away"),
        ("orphaned generations, spares released by id", f"{len(account.lost)}, all; nothing else was cancelled"),
        (
            f"task 0 failed -> its spare is gone (grace {GRACE:g} s)",
            f"median {statistics.median(account.release_seconds):.1f} s, worst {max(account.release_seconds):.1f} s",
        ),
        (
            "memory of the daemon and its child after the warm-up third",
            f"{account.samples[-1].megabytes:.0f} MB, {account.growth():+.2f} MB in 100 passes (bound 1 MB)",
        ),
        ("file descriptors of the daemon between passes", f"{first} in the first third, {last} in the last"),
    ]
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    write_section(
        WATCHER_SOAK,
        f"Written by `.venv/bin/python -m tests.watch_soak --minutes {minutes:g} --seed {seed}`, {date},"
        f" commit {read_commit()}: one daemon\nwith `--act --interval {INTERVAL}`, a fault every {FAULT_SECONDS:g} s."
        f" {describe_machine()}\n\n| what | seen |\n|---|---|\n"
        + "\n".join(f"| {what} | {seen} |" for what, seen in rows),
    )


if __name__ == "__main__":
    sys.exit(main())
