"""Task 0 is lost, one way or another, and the next generation trains soon; never two generations at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Outcome
from nvrx_chain.sandbox import BatchScope
from tests.integration.bare import measure_bare_successor
from tests.integration.cluster import Cluster
from tests.integration.conftest import SubmitChain
from tests.integration.hand_off import lost_steps, next_step, start_endless
from tests.integration.harness import DEFAULT_SHAPE, Launcher, seconds_between
from tests.integration.measure import Figures

EXTRA_SECONDS = 20.0
"""What a hand-off may take beyond a bare successor array."""


@pytest.mark.parametrize(
    "scope",
    [
        BatchScope.SHELL,
        pytest.param(BatchScope.WHOLE_STEP, marks=pytest.mark.slow),
        pytest.param(BatchScope.RUN_TASK, marks=pytest.mark.slow),
    ],
    ids=lambda scope: scope.value,
)
def test_a_killed_batch_process_of_task_0_costs_little_more_than_a_bare_successor(
    cluster: Cluster, submit: SubmitChain, launcher: Launcher, figures: Figures, tmp_path: Path, scope: BatchScope
) -> None:
    bare = measure_bare_successor(cluster, tmp_path / "bare", launcher, DEFAULT_SHAPE)
    chain = start_endless(submit, launcher)
    fault = chain.kill_task_0(chain.jobs[0], scope)
    step = next_step(chain, fault)
    figure = figures.add(
        "shell-killed",
        launcher.name,
        seconds_between(fault, step),
        f"bare {bare:.1f} s, {lost_steps(chain, step)}",
        variant=f"{scope.value} killed",
        limit_seconds=bare + EXTRA_SECONDS,
    )
    assert figure.is_within, figure


def test_a_dead_node_of_task_0_is_proven_dead_and_handed_off(
    submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = start_endless(submit, launcher)
    fault = chain.kill_node_of(chain.jobs[0], 0)
    step = next_step(chain, fault)
    figure = figures.add("node-dead", launcher.name, seconds_between(fault, step), lost_steps(chain, step))
    assert chain.wait_for_outcome(chain.jobs[0], seconds=1) is Outcome.LEASE_LOST
    assert fault.target not in chain.running(chain.jobs[1]).values()
    assert figure.is_within, figure


@pytest.mark.slow
def test_two_dead_nodes_are_both_cleared_so_that_neither_blocks_the_next_generation(
    submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = start_endless(submit, launcher)
    first = chain.jobs[0]
    hosts = set(chain.rank_hosts(first).values())
    peer = next(task for task, node in chain.running(first).items() if task != 0 and node in hosts)
    fault = chain.kill_node_of(first, 0)
    other = chain.kill_node_of(first, peer)
    assert {fault.target, other.target} == hosts
    step = next_step(chain, fault)
    figure = figures.add("two-nodes-dead", launcher.name, seconds_between(fault, step), lost_steps(chain, step))
    assert not hosts & set(chain.running(chain.jobs[1]).values())
    assert figure.is_within, figure


@pytest.mark.slow
@pytest.mark.parametrize("whole_array", [False, True], ids=["task-0-cancelled", "array-cancelled"])
def test_a_task_0_that_slurm_cannot_end_never_trains_beside_the_next_generation(
    cluster: Cluster, submit: SubmitChain, launcher: Launcher, figures: Figures, whole_array: bool
) -> None:
    chain = start_endless(submit, launcher)
    first = chain.jobs[0]
    fault = chain.freeze_slurmd_of(first, 0)
    cluster.cancel(first if whole_array else f"{first}_0")
    states = {row.state for row in chain.rows(first) if row.task == 0}
    assert states == {"COMPLETING"}, f"Slurm should be ending task 0 in vain; it is {states}"
    step = next_step(chain, fault)
    key = "array-cancelled-slurmd-frozen" if whole_array else "slurmd-frozen"
    figure = figures.add(key, launcher.name, seconds_between(fault, step), lost_steps(chain, step))
    assert fault.target not in chain.running(chain.jobs[1]).values()
    assert figure.is_within, figure
