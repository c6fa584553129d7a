"""What a launcher is given: a place to meet that is free, and numbers that agree with the array that Slurm runs."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.records.control import Rendezvous
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.sandbox.procfs import read_arguments
from nvrx_chain.slurm.nodelist import expand_nodes
from tests.integration.case_tools import (
    PAIR,
    SECONDS,
    beat,
    field_of,
    starts,
    tell,
    wait_for_ranks,
    wait_for_row,
)
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import ENDLESS, FT_LAUNCHER, TORCHRUN, Chain, Launcher, Shape

LAUNCH_SECONDS = 180.0
"""Five launchers that import torch at once on two cores."""
WORLD = Path(__file__).with_name("record_world.py")


def rendezvous_of(chain: Chain, job: int) -> Rendezvous | None:
    record = read_record(chain.generation(job).rendezvous, Rendezvous)
    return record if isinstance(record, Rendezvous) else None


# 26: a live spare above the maximum


@pytest.mark.slow
def test_case_26_a_rank_is_lost_beside_a_live_hot_spare_and_the_generation_goes_on(
    cluster: Cluster, submit: SubmitChain
) -> None:
    shape = Shape(train=4, hot=1, cold=0)
    chain = submit(FT_LAUNCHER, shape=shape, target_iteration=ENDLESS, depth=2)
    first, second = chain.jobs
    chain.wait_for_step(first, seconds=LAUNCH_SECONDS)
    assert nnodes_of_launchers(cluster) == {"4:5"}
    assert field_of(cluster, first, "ArrayTaskThrottle") == "5"
    wait_for(lambda: len(chain.running(first)) == 5, SECONDS, "the spare to run")
    wait_for(lambda: is_waiting(chain, first), SECONDS, "the spare to wait for its turn in the rendezvous")
    fault = chain.kill_rank(first, 2)
    hit = fault.hit_at.timestamp()
    step = chain.wait_for_step(first, after=hit + 1, seconds=LAUNCH_SECONDS, steps=10)
    again = [event for event in starts(chain, first) if event.unix > hit]
    assert {event.rank for event in again} == {0, 1, 2, 3}
    assert {event.world_size for event in again} == {4}
    assert step.iteration > 0
    cycle = newest_cycle(chain, first)
    assert cycle["cycle_number"] == 1
    # Which four they are may change: an early spare takes the seat of a node that is slow to come back.
    assert len(expand_nodes(cycle["active_nodes"])) == 4
    # The reported end: the rendezvous closed for all, and with it the generation.
    assert chain.closed(first) is None
    assert len(chain.running(first)) == 5
    assert {row.state for row in chain.rows(second)} == {"PENDING"}


def nnodes_of_launchers(cluster: Cluster) -> set[str]:
    """The --nnodes of every ft_launcher that runs, from their command lines."""
    found = set()
    for line in cluster.job_processes():
        words = read_arguments(int(re.search(r"pid (\d+)", line)[1]))  # type: ignore[index]
        if "nvidia_resiliency_ext.fault_tolerance.launcher" in words:
            found |= {word.split("=")[1] for word in words if word.startswith("--nnodes=")}
    return found


def newest_cycle(chain: Chain, job: int) -> dict[str, Any]:
    """What ft_launcher wrote about its newest cycle; empty before the first."""
    path = chain.generation(job).cycle_infos / f"cycle_info.{job}.current"
    cycle: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return cycle


def is_waiting(chain: Chain, job: int) -> bool:
    """Whether the launcher that has no ranks is at the rendezvous all the same; by its own words."""
    active = expand_nodes(newest_cycle(chain, job)["active_nodes"])
    (spare,) = (task for task, node in chain.running(job).items() if node not in active)
    return "attempts to join the next round" in chain.generation(job).launcher_log(spare).read_text()


# 30: the port


def test_case_30_a_port_that_is_taken_before_the_start_is_not_used(cluster: Cluster, submit: SubmitChain) -> None:
    fixed = socket.create_server(("", 29400), reuse_port=False) if _is_free(29400) else None
    # Room for task 0 alone: it publishes where to meet and waits for the other.
    *full, last, _room = cluster.sandbox.node_names
    with cluster.occupied([*full, last]) as release:
        chain = submit(beat(), shape=PAIR)
        first = chain.jobs[0]
        early = wait_for(lambda: rendezvous_of(chain, first), SECONDS, "task 0 to publish")
        assert early.started_at is None
        with socket.create_server(("", early.rendezvous_port)):
            release[last]()
            chain.wait_for_step(first)
            late = rendezvous_of(chain, first)
            assert late is not None
            assert late.started_at is not None
            assert late.rendezvous_port not in (early.rendezvous_port, 29400)
            # Both ranks met there: one listens, the other is connected.
            wait_for_ranks(chain, first)
            meeting = f"{late.rendezvous_host}:{late.rendezvous_port}"
            assert {event.detail for event in starts(chain, first)} == {meeting}
    if fixed is not None:
        fixed.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.slow
def test_case_30_a_predecessor_that_keeps_its_port_while_it_completes_is_not_in_the_way(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat("--on-term=ignore"), shape=PAIR)
    first, second, _ = chain.jobs
    chain.wait_for_training(first)
    cluster.cancel(first)
    early = wait_for(lambda: rendezvous_of(chain, first), SECONDS, "the first rendezvous")
    wait_for_row(chain, second, 0, "RUNNING")
    # The fault: the successor has its node, the predecessor's store still listens.
    assert wait_for_row(chain, first, 0, "COMPLETING").nodes
    assert not _is_free(early.rendezvous_port), "the predecessor's port is free already"
    chain.wait_for_step(second)
    late = rendezvous_of(chain, second)
    assert late is not None
    assert late.rendezvous_port != early.rendezvous_port
    chain.assert_no_overlap()


# The shape


SHAPES = [
    pytest.param(Shape(train=1, hot=0, cold=0), 1, id="one"),
    pytest.param(Shape(train=2, hot=1, cold=2), 1, id="spares"),
    pytest.param(Shape(train=2, hot=0, cold=1, nodes_per_task=2), 1, id="two-nodes"),
    pytest.param(Shape(train=2, hot=1, cold=1), 2, id="two-ranks"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "procs"), SHAPES)
@pytest.mark.parametrize("launcher", [FT_LAUNCHER, TORCHRUN], ids=lambda launcher: launcher.name)
def test_the_array_in_slurm_and_the_world_of_each_rank_agree_with_the_shape(
    cluster: Cluster, submit: SubmitChain, launcher: Launcher, shape: Shape, procs: int
) -> None:
    chain = submit(
        launcher,
        shape=shape,
        depth=2,
        workload=[str(WORLD)],
        options=["--complete-on-exit-zero", f"--procs-per-node={procs}"],
    )
    first, second = chain.jobs
    running = shape.train + shape.hot
    # Where nothing has started yet the whole array is one record.
    assert field_of(cluster, second, "ArrayTaskId") == (f"0-{shape.total - 1}%{running}" if shape.total > 1 else "0%1")
    if shape.total > running:
        assert {field_of(cluster, job, "ArrayTaskThrottle") for job in chain.jobs} == {str(running)}
    for job in chain.jobs:
        assert field_of(cluster, job, "NumNodes").split("-")[0] == str(shape.nodes_per_task)
    world = shape.train * shape.nodes_per_task * procs
    seen = wait_for(lambda: worlds(chain, first, world), LAUNCH_SECONDS, f"{world} ranks")
    assert {rank["WORLD_SIZE"] for rank in seen.values()} == {str(world)}
    assert set(seen) == set(range(world))
    assert {int(rank["LOCAL_RANK"]) for rank in seen.values()} == set(range(procs))
    # Every rank has its own place, and no more tasks than train have any.
    places = {(rank["SLURMD_NODENAME"], rank["LOCAL_RANK"]) for rank in seen.values()}
    assert len(places) == world
    assert len({rank["SLURM_ARRAY_TASK_ID"] for rank in seen.values()}) == shape.train
    wait_for(lambda: len(chain.running(first)) == running, SECONDS, f"{running} tasks to run")
    assert sum(row.is_pending for row in chain.rows(first)) == shape.cold
    tell(chain)
    assert chain.wait_for_verdict(seconds=LAUNCH_SECONDS) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=SECONDS)


def worlds(chain: Chain, job: int, count: int) -> Mapping[int, Mapping[str, str]] | None:
    """What each rank was told, once there are so many."""
    found = list((chain.run_dir / "worlds").glob(f"{job}.*.json"))
    if len(found) < count:
        return None
    return {int(path.name.split(".")[1]): json.loads(path.read_text()) for path in found}
