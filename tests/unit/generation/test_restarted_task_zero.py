"""A task 0 that Slurm restarts in spite of --no-requeue changes nothing of what is known about its generation."""

from __future__ import annotations

import pytest

from nvrx_chain.errors import ExitCode
from nvrx_chain.generation.task_zero import TaskZero
from nvrx_chain.records.outcome import Outcome
from tests.fakes.generation_lab import Lab


@pytest.mark.parametrize("outcome", [Outcome.TERMINATED, Outcome.LEASE_LOST, Outcome.WALLTIME])
def test_it_exits_with_76_and_leaves_the_outcome_of_its_first_life(lab: Lab, outcome: Outcome) -> None:
    first_life = lab.context(1, 0)
    first_life.board.close(outcome, exit_code=143, evidence=("first life",), leases={})
    context = lab.context(1, 0, restart_count=1)
    context.watcher.start()
    assert TaskZero(context).run() is ExitCode.REFUSED
    closed = lab.closed(1)
    assert closed is not None
    assert (closed.outcome, closed.evidence) == (outcome, ("first life",))
    assert (1, 0) not in lab.launchers, "it started a launcher"


def test_one_that_was_never_closed_is_closed_as_refused(lab: Lab) -> None:
    context = lab.context(1, 0, restart_count=1)
    context.watcher.start()
    assert TaskZero(context).run() is ExitCode.REFUSED
    closed = lab.closed(1)
    assert closed is not None
    assert closed.outcome is Outcome.REFUSED
