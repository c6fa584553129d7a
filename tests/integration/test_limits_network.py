"""Nodes that fall silent and a shared directory that hangs: a chain hands off or goes on, and never trains twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvrx_chain.clock import parse_time
from nvrx_chain.records.control import Lease
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.sandbox import FaultReport
from nvrx_chain.sandbox.members import find_node
from nvrx_chain.sandbox.procfs import read_environment
from nvrx_chain.sandbox.record import SandboxState, find_place, read_state
from nvrx_chain.workloads.events import Event
from tests.integration import timeline
from tests.integration.case_tools import put_fake
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.hand_off import HAND_OFF_SECONDS, lost_steps, next_step, start_endless
from tests.integration.harness import (
    START_SECONDS,
    Chain,
    Launcher,
    Shape,
    command_launcher,
    seconds_between,
)
from tests.integration.measure import Figure, Figures

pytestmark = [pytest.mark.cluster(network=True), pytest.mark.timeout(900)]

HEAL_SECONDS = 60.0
STALL_SECONDS = 90.0
GIVE_UP_SECONDS = 20.0
"""When the ranks of a launcher that cannot notice a silent peer itself give a collective up."""
LOOK_SECONDS = 0.5


class RankWatch:
    """Which generations had live rank processes at each look, by the kernel and not by what ranks say."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._end = threading.Event()
        self.looks: list[tuple[float, frozenset[int]]] = []

    def look(self) -> None:
        """Look until told to end."""
        while not self._end.wait(LOOK_SECONDS):
            self.looks.append((time.time(), living_generations(self._chain)))

    def end(self) -> None:
        self._end.set()

    def assert_one_at_a_time(self) -> None:
        """No two generations had live ranks at one look, and there were looks."""
        assert len(self.looks) > 10
        both = [(at, jobs) for at, jobs in self.looks if len(jobs) > 1]
        assert not both, f"ranks of two generations lived at the same time: {both}"


def living_generations(chain: Chain) -> frozenset[int]:
    """The generations of a chain that have a live process with a RANK on any node."""
    place = find_place(chain.cluster.sandbox.directory)
    state = read_state(place) if place else None
    assert isinstance(state, SandboxState), state
    views = (find_node(state, node) for node in chain.cluster.sandbox.node_names)
    environments = (read_environment(process.pid) for view in views if view for process in view.inside)
    jobs = {environ.get("SLURM_ARRAY_JOB_ID") for environ in environments if environ.get("RANK")}
    return frozenset(job for job in chain.jobs if str(job) in jobs)


@contextmanager
def watched_ranks(chain: Chain) -> Iterator[None]:
    """Watch the ranks meanwhile, and prove afterwards that no two generations had live ones."""
    watch = RankWatch(chain)
    thread = threading.Thread(target=watch.look)
    thread.start()
    try:
        yield
    finally:
        watch.end()
        thread.join()
    watch.assert_one_at_a_time()


def start(submit: SubmitChain, launcher: Launcher, *words: str) -> Chain:
    """A chain that trains without end, slowly; `words` are further arguments of the workload."""
    return start_endless(submit, launcher, workload=("--step-seconds=0.1", "--save-interval=20", *words))


def own_start(chain: Chain) -> float:
    """From the launch of the first generation to its first step."""
    record = chain.record(chain.jobs[0])
    assert record is not None
    launched = parse_time(record.launched_at)
    assert launched is not None
    return timeline.steps(chain.events(chain.jobs[0]))[0].unix - launched.timestamp()


def hand_off(figures: Figures, key: str, chain: Chain, launcher: Launcher, fault: FaultReport, step: Event) -> Figure:
    """The figure of a hand-off."""
    words = f"{lost_steps(chain, step)}, the launcher's own start took {own_start(chain):.0f} s"
    return figures.add(key, launcher.name, seconds_between(fault, step), words)


def training_peer(chain: Chain, job: int) -> int:
    """A task other than 0 that has ranks."""
    hosts = set(chain.rank_hosts(job).values())
    return next(task for task, node in chain.running(job).items() if task != 0 and node in hosts)


def wait_out(fault: FaultReport, seconds: float) -> None:
    """Until so long after a fault."""
    time.sleep(max(0.0, fault.hit_at.timestamp() + seconds - time.time()))


@pytest.mark.slow
def test_a_cut_node_of_task_0_is_proven_dead_and_handed_off(
    submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = start(submit, launcher)
    with watched_ranks(chain):
        fault = chain.cut_node_of(chain.jobs[0], 0)
        step = next_step(chain, fault)
    figure = hand_off(figures, "node-cut", chain, launcher, fault, step)
    assert chain.wait_for_outcome(chain.jobs[0], seconds=1) is Outcome.LEASE_LOST
    assert fault.target not in chain.running(chain.jobs[1]).values()
    assert figure.is_within, figure


@pytest.mark.slow
def test_a_node_of_task_0_that_comes_back_disturbs_nobody(
    cluster: Cluster, submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = start(submit, launcher)
    first, second, _ = chain.jobs
    with watched_ranks(chain):
        fault = chain.cut_node_of(first, 0)
        wait_out(fault, HEAL_SECONDS)
        healed = chain.heal(fault)
        step = next_step(chain, fault)
        wait_for(
            lambda: not [line for line in cluster.job_processes() if line.startswith(f"{fault.target}: ")],
            START_SECONDS,
            "nothing of the job on the healed node",
        )
        chain.wait_for_step(second, after=max(step.unix, healed.hit_at.timestamp()), steps=20)
    figure = hand_off(figures, "node-cut-healed", chain, launcher, fault, step)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.LEASE_LOST
    assert chain.closed(second) is None
    assert figure.is_within, figure


@pytest.mark.slow
def test_a_host_that_nobody_reaches_while_its_lease_goes_on_is_closed_by_its_peers(
    submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = start(submit, launcher)
    first = chain.jobs[0]
    with watched_ranks(chain):
        fault = chain.cut_node_of(first, 0, keep_disk=True)
        step = next_step(chain, fault)
    figure = hand_off(figures, "host-unreachable", chain, launcher, fault, step)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.RENDEZVOUS_LOST
    assert 0 in {task for task in range(chain.shape.total) if chain.generation(first).left(task).exists()}
    assert figure.is_within, figure


@pytest.mark.slow
def test_a_cut_training_peer_is_replaced_in_the_same_generation(
    submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = start(submit, launcher, f"--collective-timeout={GIVE_UP_SECONDS:g}")
    first = chain.jobs[0]
    peer = training_peer(chain, first)
    with watched_ranks(chain):
        fault = chain.cut_node_of(first, peer)
        cold = wait_for(
            lambda: [task for task in chain.running(first) if task >= chain.shape.train + chain.shape.hot],
            HAND_OFF_SECONDS,
            "a cold spare to start",
        )
        figure = figures.add(
            "peer-cut", launcher.name, time.time() - fault.hit_at.timestamp(), f"task {cold[0]} starts"
        )
        last = timeline.steps(chain.events(first))[-1]
        step = chain.wait_for_step(first, seconds=HAND_OFF_SECONDS, after=fault.hit_at.timestamp() + 2, steps=5)
    figures.add("peer-cut-trains", launcher.name, seconds_between(fault, step), f"after iteration {last.iteration}")
    assert chain.closed(first) is None, "the whole generation was given up for one peer"
    assert chain.started_jobs() == (first,)
    assert {row.state for row in chain.rows(first) if row.task == peer} <= {"COMPLETING", "CANCELLED"}
    assert figure.is_within, figure


@pytest.mark.slow
def test_a_directory_that_stalls_for_all_stops_nobody(
    submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = start(submit, launcher)
    first = chain.jobs[0]
    running = chain.running(first)
    with watched_ranks(chain):
        fault = chain.slow_disk_of(first, None, STALL_SECONDS)
        wait_out(fault, STALL_SECONDS)
        step = chain.wait_for_step(first, after=fault.hit_at.timestamp() + STALL_SECONDS, steps=20)
        # Whoever drew conclusions from the silence would act on them now.
        chain.wait_for_step(first, after=time.time() + 30, seconds=60)
    figures.add("disk-stalls", launcher.name, seconds_between(fault, step) - STALL_SECONDS, "until 20 steps later")
    assert chain.running(first) == running
    assert chain.closed(first) is None
    assert chain.started_jobs() == (first,)
    starts = [event for event in chain.events(first) if event.event.value == "start"]
    assert len(starts) == chain.shape.train, "ranks were restarted"


@pytest.mark.slow
def test_a_directory_that_stalls_for_task_0_alone_makes_it_stop_and_hand_off(
    submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = start(submit, launcher)
    first = chain.jobs[0]
    with watched_ranks(chain):
        fault = chain.slow_disk_of(first, 0, STALL_SECONDS)
        step = next_step(chain, fault)
    figure = hand_off(figures, "disk-stalls-for-task-0", chain, launcher, fault, step)
    assert figure.is_within, figure


MANY = 64
CALLS_A_MINUTE = 10
PROGRAMS = ("squeue", "sinfo", "scontrol", "scancel")


@pytest.mark.slow
@pytest.mark.cluster(network=True, nodes=MANY, cpus_per_node=1, gpus_per_node=0)
def test_many_peers_that_lose_task_0_ask_the_controller_little(
    cluster: Cluster, submit: SubmitChain, figures: Figures, tmp_path: Path
) -> None:
    environ = {}
    for program in PROGRAMS:
        environ = put_fake(
            tmp_path / "fakes",
            program,
            'echo "$(date +%s.%N) $(hostname)" >>"$own.times"; exec "$real" "$@"\n',
            cluster,
        )
    shape = Shape(train=MANY, hot=0, cold=0)
    chain = submit(command_launcher("sleep 100000"), shape=shape, depth=1, environ=environ)
    first = chain.jobs[0]
    exits = chain.generation(first).control
    wait_for(lambda: len(list(exits.glob("joined.*.json"))) == MANY, 300, "all tasks at the gate")
    wait_for(lambda: "running" in lease_phase(chain, first), 120, "the generation to run")
    fault = chain.cut_node_of(first, 0)
    outcome = chain.wait_for_outcome(first, seconds=180)
    closed = chain.closed(first)
    assert closed is not None
    closed_at = parse_time(closed.closed_at)
    assert closed_at is not None
    wait_for((exits / "cleared.json").exists, 180, "the queue to be cleared")
    began = fault.hit_at.timestamp()
    # A task 0 that is cut off asks too, and reaches nobody.
    made = [call for program in PROGRAMS for call in calls_by_node(tmp_path / "fakes" / program)]
    calls = sorted(at for at, node in made if at > began and node != fault.target)
    worst = max(sum(1 for other in calls if at <= other < at + 60) for at in calls)
    figure = figures.add(
        "slurm-calls", "sleep", closed_at.timestamp() - began, f"{worst} calls in the worst minute, {len(calls)} in all"
    )
    assert outcome is Outcome.LEASE_LOST
    assert figure.is_within, figure
    assert worst <= CALLS_A_MINUTE, [f"{at - began:.1f}" for at in calls]


def calls_by_node(fake: Path) -> list[tuple[float, str]]:
    """When and where a fake program was called."""
    path = fake.with_name(f"{fake.name}.times")
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(float(at), node) for at, node in rows]


def lease_phase(chain: Chain, job: int) -> str:
    """What task 0 says that it does."""
    lease = read_record(chain.generation(job).lease(0), Lease)
    return lease.phase if isinstance(lease, Lease) else ""
