"""Scenario `no-restart`: on one of two nodes the launcher says that a restart is useless; the chain ends. Pure.

The two nodes are one array task, and the site kills steps on a bad exit (KillOnBadExit=1): the case in which the code
itself would be lost on its way through srun.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from nvrx_chain.demo.evidence import Evidence
from nvrx_chain.demo.expectations import (
    Expectation,
    check,
    check_closed,
    check_never_ran,
    check_nodes_free,
    check_queue_empty,
    check_verdict,
    undecided,
)
from nvrx_chain.demo.repairs import Repair
from nvrx_chain.demo.scenario import Act, Await, Scenario, ScenarioName
from nvrx_chain.errors import ExitCode
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.records.outcome import Outcome, Verdict

NODES_PER_TASK = 2
SCRIPT_NAME = "launcher.sh"
SCRIPT = f"""\
#!/bin/sh
# Stands for a launcher: on the second node it finds that a restart is useless, on the first one it trains on.
[ "$1" = 1 ] && exit {int(ExitCode.NO_RESTART)}
exec sleep 600
"""

SAID = "the launcher on one node said that a restart is useless"
ENDED = "generation 1 ended as no_restart"
VERDICT = "the chain ended as no_restart"
NEVER_RAN = "the rest of the chain was cancelled and never ran"
QUEUE_EMPTY = "no task of the chain is left in the queue"
NODES_FREE = "every node is free"


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    """Every promise of the scenario, in the order of the story."""
    first = next(iter(evidence.generations), None)
    return (
        _check_said(evidence),
        check_closed(ENDED, first, Outcome.NO_RESTART),
        check_verdict(VERDICT, evidence, Verdict.NO_RESTART),
        check_never_ran(NEVER_RAN, evidence, first),
        check_queue_empty(QUEUE_EMPTY, evidence),
        check_nodes_free(NODES_FREE, evidence),
    )


def find_repairs(evidence: Evidence) -> tuple[Repair, ...]:
    """One row: nothing is repaired, that is the point."""
    said = next((seen.no_restart for seen in evidence.generations if seen.no_restart), None)
    if said is None:
        return ()
    fault = f"the launcher on {said.node} exited with {said.exit_code}"
    ended = evidence.outcome is not None and evidence.outcome.verdict is Verdict.NO_RESTART
    return (Repair(fault=fault, repaired_by="none wanted: the chain ended" if ended else "the chain has not ended"),)


def _check_said(evidence: Evidence) -> Expectation:
    said = next((seen.no_restart for seen in evidence.generations if seen.no_restart), None)
    if said is None:
        return undecided(SAID, "no verdict file is there")
    return check(SAID, said.exit_code == ExitCode.NO_RESTART, said.cause)


ACTS: tuple[Act, ...] = (
    Await(title="the launcher says that a restart is useless", seconds=60, rows=(SAID,)),
    Await(title="the chain ends", seconds=60, rows=(ENDED, VERDICT)),
    Await(title="the rest of the chain is cancelled", seconds=45, rows=(NEVER_RAN, QUEUE_EMPTY, NODES_FREE)),
)


def _submit_flags(place: Path) -> dict[str, Any]:
    script = shlex.quote(str(place / SCRIPT_NAME).replace("{", "{{").replace("}", "}}"))
    return {
        "train_tasks": "1",
        "nodes_per_task": str(NODES_PER_TASK),
        "chain_depth": "3",
        "launcher": LauncherKind.COMMAND.value,
        "launcher_command": f"/bin/sh {script} {{node_rank}}",
        "complete_on_exit_zero": True,
    }


NO_RESTART = Scenario(
    name=ScenarioName.NO_RESTART,
    title="on one of two nodes the launcher exits with 93; no further generation starts",
    nodes=NODES_PER_TASK,
    submit_flags=_submit_flags,
    workload=None,
    acts=ACTS,
    judge=judge,
    find_repairs=find_repairs,
    kill_on_bad_exit=1,
    files={SCRIPT_NAME: SCRIPT},
)
