"""A scenario as a value: the cluster it needs, the chain it submits, what is done to it, what is promised. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvrx_chain.demo.evidence import Evidence
from nvrx_chain.demo.expectations import Expectation, RowState
from nvrx_chain.demo.repairs import FindRepairs, Repair

SCHEMA = 1


class ScenarioName(str, enum.Enum):
    """The scenarios, as the command line names them."""

    HAND_OFF = "hand-off"
    NO_RESTART = "no-restart"
    WALLTIME = "walltime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """Wait until something has happened, at most `seconds`; without `until` that is a decision on all of `rows`.

    `rows` are the promises that are broken when it has not; without any, `title` itself becomes a broken promise.
    """

    title: str
    seconds: float
    until: Callable[[Evidence], bool] | None = None
    rows: tuple[str, ...] = ()

    def is_over(self, evidence: Evidence, rows: Sequence[Expectation]) -> bool:
        """Whether what this waits for has happened. `rows` are the promises as judged on that evidence."""
        if self.until is not None:
            return self.until(evidence)
        return not any(row.name in self.rows and row.state is RowState.OPEN for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRank:
    """SIGKILL of one rank of the generation that trains."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillHostNode:
    """Power loss of the node of array task 0 of the generation that trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviveNodes:
    """Declare every node that was lost down, as an operator does, and power it on again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReference:
    """Start the same training beside the cluster, which nobody will disturb."""

    target_iteration: int
    ranks: int


Act = Await | KillRank | KillHostNode | ReviveNodes | StartReference


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that makes a scenario.

    `submit_flags` gives the flags of `nvrx-chain submit` by parameter name, told the demo's directory, into which
    `files` are written before. `workload` are arguments of mock-gpt, None when the launcher needs no workload.
    `target_iteration` is what training aims at, None when it has no such aim.
    """

    name: ScenarioName
    title: str
    nodes: int
    submit_flags: Callable[[Path], Mapping[str, Any]]
    workload: tuple[str, ...] | None
    acts: tuple[Act, ...]
    judge: Callable[[Evidence], tuple[Expectation, ...]]
    find_repairs: FindRepairs
    target_iteration: int | None = None
    kill_on_bad_exit: int = 0
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """How a demo went; `ok`: every expectation holds. `kept` is the directory that is still there, None without one.

    `seconds` from the command to the end of the cluster. This is what `--json` prints: docs/demo.md lists the fields.
    """

    schema: int = SCHEMA
    ok: bool
    scenario: ScenarioName
    launcher: str
    seconds: float
    repairs: tuple[Repair, ...]
    expectations: tuple[Expectation, ...]
    kept: Path | None
