"""The limits that a chain must meet, what the reference does there, and the figures that a run measured.

Touches: the file named by NVRX_TEST_FIGURES, one JSON line for each figure, for tests/bench.py.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FIGURES_VARIABLE = "NVRX_TEST_FIGURES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One row of the table. `bound_seconds` None: the bound is no duration, or the test computes it (see `bound`).

    `reference` is NVIDIA's example deployment around ft_launcher 0.7.0: m is measured on such a sandbox, r is from
    reading it. `torchrun_note` says why torchrun cannot meet the row, None when it can.
    """

    key: str
    what: str
    bound: str
    bound_seconds: float | None
    reference: str
    torchrun_note: str | None = None


LIMITS: tuple[Limit, ...] = (
    Limit(
        key="release",
        what="last training step -> no job of the chain in the queue",
        bound="15 s, no further generation starts",
        bound_seconds=15.0,
        reference="m: 317 s per generation, all run again",
    ),
    Limit(
        key="rank-killed",
        what="a rank SIGKILLed -> first step of the next cycle, in the same generation",
        bound="the launcher's own restart",
        bound_seconds=None,
        reference="m: 5.2 s (2 nodes on 2 cores); torchrun on one node: 3.6 s",
    ),
    Limit(
        key="shell-killed",
        what="task 0's batch process SIGKILLed, node alive -> first step of the next generation",
        bound="bare successor array + 20 s",
        bound_seconds=None,
        reference="m: 383 s (5 s when a cold spare happens to start on that very node)",
    ),
    Limit(
        key="node-dead",
        what="task 0's node dead -> first step of the next generation",
        bound="75 s",
        bound_seconds=75.0,
        reference="m: 461 s",
    ),
    Limit(
        key="two-nodes-dead",
        what="nodes of task 0 and of one training peer dead together -> first step of the next generation",
        bound="90 s",
        bound_seconds=90.0,
        reference="r: not before SlurmdTimeout",
    ),
    Limit(
        key="node-cut",
        what="task 0's node cut off, silent and without its disk -> first step of the next generation",
        bound="90 s, never ranks of two generations at once",
        bound_seconds=90.0,
        reference="r: not before SlurmdTimeout",
    ),
    Limit(
        key="node-cut-healed",
        what="the same, and healed after 60 s",
        bound="90 s, never ranks of two generations at once",
        bound_seconds=90.0,
        reference="r: both generations train",
    ),
    Limit(
        key="host-unreachable",
        what="task 0's node cut off, its lease goes on -> first step of the next generation",
        bound="60 s, never ranks of two generations at once",
        bound_seconds=60.0,
        reference="r: not before SlurmdTimeout",
    ),
    Limit(
        key="peer-cut",
        what="a training peer's node cut off, a spare there -> its task is cancelled and a cold spare runs",
        bound="60 s, training goes on in the same generation",
        bound_seconds=60.0,
        reference="r: not before SlurmdTimeout",
    ),
    Limit(
        key="disk-stalls",
        what="shared directory hangs for 90 s on all nodes: its end -> 20 steps later",
        bound="nothing is cancelled or restarted, training goes on",
        bound_seconds=None,
        reference="-",
    ),
    Limit(
        key="disk-stalls-for-task-0",
        what="shared directory hangs for 90 s on task 0's node alone -> first step of the next generation",
        bound="130 s, never ranks of two generations at once",
        bound_seconds=130.0,
        reference="-",
    ),
    Limit(
        key="slurm-calls",
        what="64 tasks lose task 0, cut off -> the generation is closed; calls of Slurm by all peers in any minute",
        bound="60 s, at most 10 calls a minute",
        bound_seconds=60.0,
        reference="-",
    ),
    Limit(
        key="slurmd-frozen",
        what="slurmd frozen under a training task 0, which is then cancelled -> first step of the next generation",
        bound="100 s, never ranks of two generations at once",
        bound_seconds=100.0,
        reference="r: both generations train",
    ),
    Limit(
        key="array-cancelled-slurmd-frozen",
        what="the same, but the whole array is cancelled, so that Slurm starts the next generation at once",
        bound="100 s, never ranks of two generations at once",
        bound_seconds=100.0,
        reference="r: both generations train",
    ),
    Limit(
        key="fails-at-once",
        what="launcher that fails at once",
        bound="2 generations spent, chain held, rest queued, reason in status, release works",
        bound_seconds=None,
        reference="m: 3 generations in 40 s",
    ),
    Limit(
        key="no-restart",
        what="exit 93 on one node of a 2-node task -> no job of the chain in the queue",
        bound="whole chain cancelled, outcome no_restart",
        bound_seconds=None,
        reference="r: next generation starts",
        torchrun_note="torchrun never exits with 93 by itself; measured with a launcher script that does",
    ),
    Limit(
        key="no-restart-site",
        what="the same with KillOnBadExit=1 in slurm.conf",
        bound="whole chain cancelled, outcome no_restart",
        bound_seconds=None,
        reference="r: next generation starts",
        torchrun_note="as above",
    ),
    Limit(
        key="no-restart-own-srun",
        what="the same with the launcher in its own srun -K1",
        bound="whole chain cancelled, outcome no_restart",
        bound_seconds=None,
        reference="r: next generation starts",
        torchrun_note="as above",
    ),
    Limit(
        key="late-tasks",
        what="tasks of one generation start far apart (nodes occupied): last training task starts -> first step",
        bound="assembles and trains; nothing held, nothing burned",
        bound_seconds=None,
        reference="r: the launcher's join time-out ends it",
    ),
    Limit(
        key="dry-run",
        what="nvrx-chain submit --dry-run, wall time",
        bound="0.4 s, torch never imported",
        bound_seconds=0.4,
        reference="-",
    ),
    Limit(
        key="submit",
        what="nvrx-chain submit of 8 generations of 65 tasks, wall time",
        bound="3 s",
        bound_seconds=3.0,
        reference="-",
    ),
)

_BY_KEY = {limit.key: limit for limit in LIMITS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement. `limit_seconds` is what it must stay within, None where the limit is no duration.

    `variant` tells several of one row apart, `detail` is what else is worth a word, `test` is the test that took it.
    """

    key: str
    launcher: str
    seconds: float
    limit_seconds: float | None = None
    variant: str = ""
    detail: str = ""
    test: str = ""

    @property
    def is_within(self) -> bool:
        return self.limit_seconds is None or self.seconds <= self.limit_seconds


class Figures:
    """What was measured in this run."""

    def __init__(self) -> None:
        self._figures: list[Figure] = []

    def add(
        self,
        key: str,
        launcher: str,
        seconds: float,
        detail: str = "",
        *,
        variant: str = "",
        limit_seconds: float | None = None,
    ) -> Figure:
        """Keep one figure and print it; the caller asserts `is_within`, so that a figure over its limit is seen too.

        `key` is that of a Limit, or a name of your own for anything else. `limit_seconds` is by default the row's.
        """
        limit = _BY_KEY.get(key)
        if limit_seconds is None and limit is not None:
            limit_seconds = limit.bound_seconds
        figure = Figure(
            key=key,
            launcher=launcher,
            seconds=round(seconds, 2),
            limit_seconds=limit_seconds,
            variant=variant,
            detail=detail,
            test=os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0],
        )
        self._figures.append(figure)
        print(_line(figure))
        path = os.environ.get(FIGURES_VARIABLE)
        if path:
            with Path(path).open("a") as stream:
                stream.write(json.dumps(asdict(figure)) + "\n")
        return figure

    def render(self) -> tuple[str, ...]:
        """One line for each figure, in the order of the table."""
        order = [limit.key for limit in LIMITS]
        known = sorted(
            self._figures, key=lambda figure: order.index(figure.key) if figure.key in _BY_KEY else len(order)
        )
        return tuple(_line(figure) for figure in known)


def _line(figure: Figure) -> str:
    limit = _BY_KEY.get(figure.key)
    within = "" if figure.limit_seconds is None else f" of {figure.limit_seconds:.1f} s"
    over = "" if figure.is_within else "  OVER THE LIMIT"
    words = "; ".join(word for word in (figure.variant, figure.detail) if word)
    reference = f"  [{limit.reference}]" if limit else ""
    return f"{figure.key:<30} {figure.launcher:<12} {figure.seconds:7.1f} s{within}{over}  {words}{reference}"


def read_figures(path: Path) -> tuple[Figure, ...]:
    """The figures that a test run wrote."""
    return tuple(Figure(**json.loads(line)) for line in path.read_text().splitlines())
