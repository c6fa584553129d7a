"""A node of a running task is drained: it is said, training goes on, and a spare takes over when the chain lets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.records.control import Drained
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.sandbox import FaultReport
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_chain.workloads.events import EventKind
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import ENDLESS, FT_LAUNCHER, TORCHRUN, Chain, Launcher, Shape, seconds_between
from tests.integration.measure import Figures
from tests.integration.stand_ins import shell_launcher

POLL_SECONDS = 2
SEEN_SECONDS = 3.0 * POLL_SECONDS + 10
"""A poll with its jitter, a busy machine, and how long it takes to write and to read the marker."""
REPAIR_SECONDS = 90.0
OPTIONS = (f"--drain-poll={POLL_SECONDS}",)
SPARE = Shape(train=2, hot=1, cold=1)


def _marker(chain: Chain, job: int, task: int) -> Drained | None:
    found = read_record(chain.generation(job).drained(task), Drained)
    return found if isinstance(found, Drained) else None


def _wait_for_marker(chain: Chain, job: int, task: int, *, active: bool) -> Drained:
    what = f"task {task} of {job} to be {'drained' if active else 'back in service'}"

    def look() -> Drained | None:
        marker = _marker(chain, job, task)
        return marker if marker is not None and marker.is_active is active else None

    return wait_for(look, SEEN_SECONDS, what)


def _is_kept_out(chain: Chain, job: int, task: int) -> bool:
    """By the file that ft_launcher reads."""
    path = chain.generation(job).segment_health(task)
    return path.exists() and path.read_bytes() != b""


def test_a_drained_task_is_stopped_when_that_was_asked_for_and_the_next_generation_inherits_nothing(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    launcher = shell_launcher(tmp_path / "launcher.sh", "exec sleep 1000")
    chain = submit(launcher, shape=SPARE, depth=2, options=[*OPTIONS, "--on-drain=restart"])
    first, second = chain.jobs
    wait_for(lambda: (record := chain.record(first)) and record.launched_at, 60, "the launch")
    host = chain.host_of(first, 1)
    cluster.sandbox.drain_node(host)
    marker = _wait_for_marker(chain, first, 1, active=True)
    assert marker.task_nodes == (host,)
    assert [(node.node, node.reason) for node in marker.drained_nodes] == [(host, "nvrx-chain sandbox")]
    assert marker.drained_nodes[0].by == "root"
    assert marker.drained_nodes[0].since is not None
    # It ends by itself, its slot goes to the cold spare, and Slurm gives that another node.
    wait_for(lambda: set(chain.running(first)) == {0, 2, 3}, 60, "task 1 to leave and the cold spare to start")
    assert host not in chain.running(first).values()
    assert {row.state for row in chain.rows(first) if row.task == 1} == {"COMPLETED"}
    assert chain.closed(first) is None
    cluster.cancel(f"{first}_0")
    assert chain.wait_for_outcome(first, seconds=60) is Outcome.TERMINATED
    wait_for(lambda: (record := chain.record(second)) and record.launched_at, 60, "the second generation to launch")
    record = chain.record(first)
    assert record is not None
    assert record.drained_tasks == (1,)
    assert host not in chain.running(second).values()
    control = chain.generation(second).control
    assert not [path.name for path in control.iterdir() if "drained" in path.name or "segment" in path.name]


@pytest.mark.slow
def test_a_drained_task_trains_on_until_a_restart_and_then_a_spare_takes_its_place(
    cluster: Cluster, submit: SubmitChain, figures: Figures
) -> None:
    chain = submit(FT_LAUNCHER, shape=SPARE, target_iteration=ENDLESS, options=OPTIONS)
    first = chain.jobs[0]
    chain.wait_for_training(first)
    task, host = _training_peer(chain, first)
    others = set(chain.running(first).values()) - {host}
    lives = _starts(chain, first)
    cluster.sandbox.drain_node(host)
    marker = _wait_for_marker(chain, first, task, active=True)
    assert (marker.task_nodes, marker.excluded) == ((host,), True)
    assert _is_kept_out(chain, first, task)
    (shown,) = chain.cli("status", "--json")["generations"][0]["drained"]
    assert (shown["array_task_id"], shown["nodes"][0]["node"], shown["excluded"]) == (task, host, True)
    seen = chain.events(first)[-1].unix
    chain.wait_for_step(first, after=seen, steps=100)
    assert _starts(chain, first) == lives, "training was disturbed"
    assert set(chain.running(first)) == {0, 1, 2}
    fault = chain.kill_rank(first, _rank_beside(chain, first, host))
    step = chain.wait_for_step(first, after=_restart(chain, first, fault))
    figures.add("drained", FT_LAUNCHER.name, seconds_between(fault, step), "rank killed beside a drained task")
    assert set(chain.rank_hosts(first).values()) == others
    wait_for(lambda: 3 in chain.running(first), 60, "the cold spare to start in the freed slot")
    assert host not in chain.running(first).values()
    assert {row.state for row in chain.rows(first) if row.task == task} == {"COMPLETED"}
    assert chain.closed(first) is None
    assert chain.cli("status", "--json")["generations"][0]["drained"] == []
    assert cluster.node_states()[host] == "drained", "the node is free for whoever asked for it"


@pytest.mark.slow
def test_one_drained_node_takes_its_whole_task_out_of_the_next_restart(cluster: Cluster, submit: SubmitChain) -> None:
    shape = Shape(train=2, hot=1, cold=0, nodes_per_task=2)
    chain = submit(FT_LAUNCHER, shape=shape, target_iteration=ENDLESS, options=OPTIONS)
    first = chain.jobs[0]
    chain.wait_for_training(first, seconds=3 * REPAIR_SECONDS)
    nodes = {task: expand_nodes(text) for task, text in chain.running(first).items()}
    busy = set(chain.rank_hosts(first).values())
    task = next(task for task, hosts in sorted(nodes.items()) if task != 0 and busy & set(hosts))
    cluster.sandbox.drain_node(nodes[task][1])
    marker = _wait_for_marker(chain, first, task, active=True)
    assert set(marker.task_nodes) == set(nodes[task])
    assert [node.node for node in marker.drained_nodes] == [nodes[task][1]]
    fault = chain.kill_rank(first, _rank_beside(chain, first, *nodes[task]))
    wait_for(lambda: task not in chain.running(first), 60, "both nodes of the task to be free")
    others = {host for index, hosts in nodes.items() if index != task for host in hosts}
    after = fault.hit_at.timestamp()
    wait_for(lambda: _hosts_of_steps(chain, first, after) == others, 2 * REPAIR_SECONDS, f"steps on {others}")
    assert {row.state for row in chain.rows(first) if row.task == task} == {"COMPLETED"}
    assert chain.closed(first) is None


@pytest.mark.slow
def test_a_node_that_returns_takes_part_again(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(FT_LAUNCHER, shape=SPARE, target_iteration=ENDLESS, options=OPTIONS)
    first = chain.jobs[0]
    chain.wait_for_training(first)
    task, host = _training_peer(chain, first)
    cluster.sandbox.drain_node(host)
    assert _wait_for_marker(chain, first, task, active=True).excluded
    cluster.sandbox.revive_node(host)
    returned = _wait_for_marker(chain, first, task, active=False)
    assert returned.returned_at is not None
    assert not _is_kept_out(chain, first, task)
    fault = chain.kill_rank(first, _rank_beside(chain, first, host))
    chain.wait_for_step(first, after=_restart(chain, first, fault), steps=20)
    assert set(chain.running(first)) == {0, 1, 2}, "nobody was left out"
    assert not list(chain.generation(first).control.glob("launcher_exit.*"))


@pytest.mark.slow
@pytest.mark.parametrize("real", [FT_LAUNCHER, TORCHRUN], ids=lambda real: real.name)
def test_with_restart_a_spare_takes_over_at_once(
    cluster: Cluster, submit: SubmitChain, figures: Figures, real: Launcher
) -> None:
    chain = submit(real, shape=SPARE, target_iteration=ENDLESS, options=[*OPTIONS, "--on-drain=restart"])
    first = chain.jobs[0]
    chain.wait_for_training(first)
    task, host = _training_peer(chain, first)
    others = set(chain.running(first).values()) - {host}
    fault = cluster.sandbox.drain_node(host)
    _wait_for_marker(chain, first, task, active=True)
    step = chain.wait_for_step(first, after=_restart(chain, first, fault))
    figures.add("drained", real.name, seconds_between(fault, step), "--on-drain restart, from the drain")
    assert set(chain.rank_hosts(first).values()) == others
    expected = {0, 1, 2, 3} - {task}
    wait_for(lambda: set(chain.running(first)) == expected, 60, "the task to leave and the cold spare to start")
    assert host not in chain.running(first).values()
    assert {event.world_size for event in chain.events(first)} == {2}
    assert chain.closed(first) is None


@pytest.mark.slow
def test_a_drained_spare_leaves_without_a_restart_of_those_that_train(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(FT_LAUNCHER, shape=SPARE, target_iteration=ENDLESS, options=[*OPTIONS, "--on-drain=restart"])
    first = chain.jobs[0]
    chain.wait_for_training(first)
    busy = set(chain.rank_hosts(first).values())
    # Task 0 closes the round that it hosts, and has the lowest rank: it is never the spare of the first cycle.
    task, host = next((task, host) for task, host in chain.running(first).items() if host not in busy)
    lives = _starts(chain, first)
    cluster.sandbox.drain_node(host)
    expected = {0, 1, 2, 3} - {task}
    wait_for(lambda: set(chain.running(first)) == expected, 60, "the spare to leave and the cold spare to start")
    seen = chain.events(first)[-1].unix
    chain.wait_for_step(first, after=seen, steps=50)
    assert _starts(chain, first) == lives, "training was disturbed"
    assert chain.closed(first) is None


def _training_peer(chain: Chain, job: int) -> tuple[int, str]:
    """A task that trains, other than task 0, and its node: a launcher takes those as spares that come last."""
    busy = set(chain.rank_hosts(job).values())
    return next((task, host) for task, host in sorted(chain.running(job).items()) if task != 0 and host in busy)


def _rank_beside(chain: Chain, job: int, *hosts: str) -> int:
    return next(rank for rank, place in sorted(chain.rank_hosts(job).items()) if place not in hosts)


def _hosts_of_steps(chain: Chain, job: int, after: float) -> set[str]:
    """Where the ranks trained of the newest life that began after a moment (Unix seconds)."""
    later = [event for event in chain.events(job) if event.unix > after]
    started = max((event.unix for event in later if event.event is EventKind.START), default=None)
    steps = [event for event in later if event.event is EventKind.STEP]
    return {event.host for event in steps if started is not None and event.unix > started}


def _starts(chain: Chain, job: int) -> int:
    return sum(event.event is EventKind.START for event in chain.events(job))


def _restart(chain: Chain, job: int, fault: FaultReport) -> float:
    """When both ranks had started again after a fault, in Unix seconds."""

    def look() -> float | None:
        later = [event for event in chain.events(job) if event.unix > fault.hit_at.timestamp()]
        starts = {event.rank: event.unix for event in later if event.event is EventKind.START}
        return max(starts.values()) if len(starts) == 2 else None

    return wait_for(look, REPAIR_SECONDS, "both ranks to start again")
