"""A frozen machine: nothing on it runs, its connections stay open, and one day it goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nvrx_chain.clock import parse_time
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.sandbox import FaultKind, FaultReport
from tests.integration import timeline
from tests.integration.case_tools import SECONDS, beat, starts, wait_for_ranks, wait_for_row
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import DEFAULT_SHAPE, Chain

# What a peer needs to notice a silent task 0, and the fence to be sure, without waiting for the defaults.
QUICK = [
    "--threshold=lease_interval=1",
    "--threshold=self_fence=6",
    "--threshold=lease_timeout=8",
    "--threshold=drain=3",
    "--threshold=fence_margin=5",
]
HAND_OFF_SECONDS = 150.0


def train(submit: SubmitChain, *words: str) -> Chain:
    chain = submit(beat(*words), shape=DEFAULT_SHAPE, options=QUICK)
    chain.wait_for_training(chain.jobs[0])
    wait_for_ranks(chain, chain.jobs[0])
    return chain


def assert_silent(chain: Chain, fault: FaultReport, job: int, tasks: Sequence[int]) -> None:
    """The ranks of these tasks have written nothing since the fault."""
    late = [
        event
        for event in chain.events(job)
        if event.array_task_id in tasks and event.unix > fault.hit_at.timestamp() + 1
    ]
    assert not late, late


def thaw(cluster: Cluster, fault: FaultReport) -> FaultReport:
    """The machine goes on; checked that it had been stopped until now."""
    report = cluster.sandbox.thaw_node(fault.target)
    assert report.kind is FaultKind.THAW_NODE
    assert len(report.pids) >= 4, f"it was not frozen: {report}"
    return report


@pytest.mark.slow
def test_a_peer_on_a_frozen_node_is_proven_dead_and_its_seat_goes_to_a_spare(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = train(submit)
    first = chain.jobs[0]
    peer = next(event.array_task_id for event in starts(chain, first) if event.rank == 1)
    assert peer is not None
    fault = chain.freeze_node_of(first, peer)
    late = wait_for(
        lambda: [event for event in starts(chain, first) if event.unix > fault.hit_at.timestamp()],
        HAND_OFF_SECONDS,
        "a spare to train in its place",
    )
    assert [event.rank for event in late] == [1]
    assert_silent(chain, fault, first, [peer])
    assert wait_for_row(chain, first, peer, "COMPLETING", "CANCELLED").nodes == fault.target
    assert chain.closed(first) is None, "the whole generation was given up for one peer"
    assert chain.started_jobs() == (first,)

    thawed = thaw(cluster, fault)
    # Whoever thinks that it still has the seat must be gone before it does much with it.
    wait_for(lambda: not processes_on(cluster, fault.target), SECONDS, "nothing of the job on the thawed node")
    written = [event for event in chain.events(first) if event.array_task_id == peer]
    assert written[-1].unix - thawed.hit_at.timestamp() < 5
    step = timeline.steps(chain.events(first))[-1]
    chain.wait_for_step(first, after=step.unix, steps=5)


def processes_on(cluster: Cluster, node: str) -> tuple[str, ...]:
    return tuple(line for line in cluster.job_processes() if line.startswith(f"{node}: "))


@pytest.mark.slow
@pytest.mark.parametrize("on_term", ["die", "ignore"], ids=["ranks-die", "ranks-ignore-term"])
def test_a_task_0_on_a_frozen_node_is_fenced_and_does_nothing_when_it_thaws(
    cluster: Cluster, submit: SubmitChain, on_term: str
) -> None:
    chain = train(submit, f"--on-term={on_term}")
    first, second, _ = chain.jobs
    fault = chain.freeze_node_of(first, 0)
    step = chain.wait_for_step(second, seconds=HAND_OFF_SECONDS)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.LEASE_LOST
    assert fault.target not in chain.running(second).values()
    assert_silent(chain, fault, first, [0])
    # Its peer's ranks were gone before the next ones came.
    chain.assert_no_overlap()
    assert step.unix > fault.hit_at.timestamp()

    before = chain.iteration()
    thawed = thaw(cluster, fault)
    wait_for(lambda: not processes_on(cluster, fault.target), SECONDS, "nothing of the job on the thawed node")
    last = [event for event in chain.events(first) if event.array_task_id == 0][-1]
    # It wakes beside the next generation; nobody can prevent the first moment, only that it lasts.
    assert last.unix - thawed.hit_at.timestamp() < 2
    after = chain.wait_for_step(second, after=thawed.hit_at.timestamp(), steps=10)
    assert before is not None
    wait_for(lambda: (chain.iteration() or 0) >= before, SECONDS, f"the checkpoints to go on from {before}")
    assert after.iteration > step.iteration
    assert chain.closed(second) is None
    closed = chain.closed(first)
    assert closed is not None
    assert (parse_time(closed.closed_at) or thawed.hit_at) < thawed.hit_at
