"""`make soak`: one chain after another is hurt at random moments for a while; every promise is checked after each.

Each chain has to finish whatever was done to it: a rank, a batch shell, run-task or a node killed, in a random order,
one fault each time that training has passed a new checkpoint. Appends what it saw to docs/benchmarks.md.
`--minutes N` (10), `--seed N` repeats the same order of faults. Touches: a private cluster, docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from nvrx_chain.records.outcome import Verdict
from nvrx_chain.sandbox import BatchScope, FaultReport
from tests.bench import describe_machine, read_commit
from tests.benchpage import SOAK, write_section
from tests.integration.cluster import Cluster, ClusterPool
from tests.integration.harness import FT_LAUNCHER, TORCHRUN, Chain, Launcher, seconds_between

CHAIN_DEPTH = 8
TARGET = 400
REPAIR_SECONDS = 180.0

Hurt = Callable[[Chain, int], FaultReport]

FAULTS: dict[str, Hurt] = {
    "rank 1 killed": lambda chain, job: chain.kill_rank(job, 1),
    "batch shell of task 0 killed": lambda chain, job: chain.kill_task_0(job),
    "run-task of task 0 killed": lambda chain, job: chain.kill_task_0(job, BatchScope.RUN_TASK),
    "node of task 0 lost": lambda chain, job: chain.kill_node_of(job, 0),
}


@dataclass
class Tally:
    """What a soak has seen."""

    chains: int = 0
    repairs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, fault: str, seconds: float) -> None:
        self.repairs.setdefault(fault, []).append(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"soak of {options.minutes:.0f} min, seed {options.seed}")
    chance, tally = random.Random(options.seed), Tally()
    deadline = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="nvrx-soak-") as name:
        pool = ClusterPool(Path(name))
        try:
            while time.monotonic() < deadline:
                cluster = pool.get()
                launcher = chance.choice((FT_LAUNCHER, TORCHRUN))
                one_chain(cluster, Path(name) / f"chain {tally.chains}", launcher, chance, deadline, tally)
                cluster.reset()
        finally:
            pool.close()
    write_report(tally, options.minutes, options.seed)
    return 0


def one_chain(
    cluster: Cluster, run_dir: Path, launcher: Launcher, chance: random.Random, deadline: float, tally: Tally
) -> None:
    """Submit one chain, hurt it until it has a single generation to spare or the time is over, and let it finish."""
    chain = Chain.submit(cluster, run_dir, launcher, depth=CHAIN_DEPTH, target_iteration=TARGET)
    try:
        generation = 0
        chain.wait_for_training(chain.jobs[0])
        while generation < CHAIN_DEPTH - 2 and time.monotonic() < deadline and (chain.iteration() or 0) < TARGET // 2:
            name = chance.choice(sorted(FAULTS))
            job = chain.jobs[generation]
            fault = FAULTS[name](chain, job)
            stays = name == "rank 1 killed"
            generation += 0 if stays else 1
            step = chain.wait_for_step(
                chain.jobs[generation], seconds=REPAIR_SECONDS, after=fault.hit_at.timestamp() + (3.0 if stays else 0.0)
            )
            tally.add(f"{name}, {launcher.name}", seconds_between(fault, step))
            print(f"chain {tally.chains + 1} generation {generation + 1}: {name}: {seconds_between(fault, step):.1f} s")
            chain.wait_for_training(chain.jobs[generation], seconds=REPAIR_SECONDS)
            chain.assert_no_overlap()
            for node, state in cluster.node_states().items():
                if "idle" not in state and "alloc" not in state and "mix" not in state:
                    cluster.sandbox.revive_node(node)
        verdict = chain.wait_for_verdict(seconds=2 * REPAIR_SECONDS)
        assert verdict is Verdict.COMPLETED, f"the chain ended as {verdict.value}\n{chain.describe()}"
        chain.wait_until_gone(seconds=REPAIR_SECONDS)
        chain.assert_no_overlap()
        tally.chains += 1
    except AssertionError:
        print(chain.describe())
        raise
    finally:
        chain.cancel()


def write_report(tally: Tally, minutes: float, seed: int) -> None:
    """Put what was seen into docs/benchmarks.md."""
    rows = [
        f"| {name} | {len(seconds)} | {statistics.median(seconds):.1f} | {max(seconds):.1f} |"
        for name, seconds in sorted(tally.repairs.items())
    ]
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    text = (
        f"Written by `make soak`: {minutes:.0f} minutes, seed {seed}, {date}, commit {read_commit()};"
        f" {tally.chains} chains, each finished, never two generations with live ranks, every node free afterwards.\n"
        f"{describe_machine()}\n\n| fault | times | median s to the first step | worst |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )
    write_section(SOAK, text)
    print(f"{tally.chains} chains")


if __name__ == "__main__":
    sys.exit(main())
