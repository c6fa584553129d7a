"""A node that loses slurmctld alone: its ranks, its peers and the run directory are fine, so nothing ends."""

from __future__ import annotations

import pytest

from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.sandbox import FaultReport
from tests.integration.case_tools import PAIR, SECONDS, beat, starts, tell, wait_for_ranks, why_left
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import FT_LAUNCHER, START_SECONDS
from tests.integration.test_cases_controller import AT_ONCE, closed_within
from tests.integration.test_limits_network import training_peer, watched_ranks

pytestmark = [pytest.mark.slow, pytest.mark.cluster(network=True), pytest.mark.timeout(600)]

ISOLATED_SECONDS = 60.0
TARGET = 800
"""A step takes a tenth of a second: not reached while the node is isolated."""
ASKS_OFTEN = ("--threshold=self_check=3", "--drain-poll=2")
"""Each question of task 0 to Slurm is asked many times while nobody answers."""
UNANSWERED = "the queue could not be read"


def assert_isolated(cluster: Cluster, fault: FaultReport) -> None:
    """The fault stands, on that node alone."""
    found = {node.name: node.faults for node in cluster.sandbox.status().nodes if node.faults}
    assert found == {fault.target: ("isolated from the controller",)}


@pytest.mark.parametrize("of_task_0", [False, True], ids=["training-peer", "task-0"])
def test_a_node_that_loses_the_controller_alone_trains_on_and_the_chain_finishes(
    cluster: Cluster, submit: SubmitChain, of_task_0: bool
) -> None:
    chain = submit(FT_LAUNCHER, target_iteration=TARGET, options=ASKS_OFTEN)
    first, *others = chain.jobs
    chain.wait_for_training(first)
    wait_for(lambda: set(chain.running(first)) == {0, 1, 2}, START_SECONDS, "both training tasks and the hot spare")
    running = chain.running(first)
    with watched_ranks(chain):
        fault = chain.isolate_node_of(first, 0 if of_task_0 else training_peer(chain, first))
        began = fault.hit_at.timestamp()
        chain.wait_for_step(first, seconds=2 * ISOLATED_SECONDS, after=began + ISOLATED_SECONDS)
        assert_isolated(cluster, fault)
        assert chain.closed(first) is None
        assert chain.running(first) == running
        assert {row.state for row in chain.rows() if row.job in others} == {"PENDING"}
        assert [row.state for row in chain.rows(first) if row.task in (3, 4)] == ["PENDING", "PENDING"]
        healed = chain.heal(fault)
        chain.wait_for_step(first, after=healed.hit_at.timestamp(), steps=20)
        assert len(starts(chain, first)) == chain.shape.train, "ranks were restarted"
        assert chain.wait_for_verdict(seconds=3 * SECONDS) is Verdict.COMPLETED
        chain.wait_until_gone(seconds=2 * SECONDS)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.COMPLETED
    assert chain.started_jobs() == (first,)
    chain.assert_no_overlap()


def test_a_training_that_ends_on_an_isolated_node_is_closed_at_once_and_settled_when_it_is_healed(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat("--until-told"), shape=PAIR, options=[*ASKS_OFTEN, "--complete-on-exit-zero"])
    first, *others = chain.jobs
    chain.wait_for_training(first)
    wait_for_ranks(chain, first)
    fault = chain.isolate_node_of(first, 0)
    tell(chain)
    assert chain.wait_for_outcome(first, seconds=SECONDS) is Outcome.COMPLETED
    assert closed_within(chain, first) < AT_ONCE
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
    wait_for(lambda: why_left(chain, first, 1), SECONDS, "the peer to leave")
    # What it cannot cancel does not keep it from trying again, and nobody else starts beside it.
    wait_for(lambda: chain.task_log(first, 0).count(UNANSWERED) > 1, 2 * SECONDS, "two teardowns without an answer")
    assert_isolated(cluster, fault)
    assert {row.state for row in chain.rows() if row.job in others} == {"PENDING"}
    chain.heal(fault)
    chain.wait_until_gone(seconds=3 * SECONDS)
    assert {row.state for row in chain.rows() if row.job in others} == {"CANCELLED"}
    assert chain.started_jobs() == (first,)
    assert "teardown verified" in chain.task_log(first, 0)
