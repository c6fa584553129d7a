"""Each fault on a real cluster: it hits what it means, it is seen by the kernel and by Slurm, and it can be undone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox import BatchScope, FaultKind
from nvrx_chain.sandbox.procfs import Process, find_process, read_arguments
from tests.integration.sandbox_lab import CLOCK, Lab, needs_cluster, running_lab, wait

pytestmark = [pytest.mark.integration, needs_cluster]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("faults") / "it's 100% a&b #1"
    with running_lab(directory, nodes=4, kill_wait_seconds=3, slurmd_timeout_seconds=5) as lab:
        yield lab


@pytest.fixture
def lab(cluster: Lab) -> Iterator[Lab]:
    yield cluster
    cluster.sandbox.start_controller()
    cluster.reset()


def _alive(process: Process) -> bool:
    return find_process(process.id) is not None


def _slurm_state(lab: Lab, node: str) -> str:
    return lab.run("sinfo", "-h", "-N", "-n", node, "-o", "%T")


def test_kill_node_takes_everything_on_it_and_nothing_elsewhere(lab: Lab) -> None:
    job = lab.running_array()
    victim, other = lab.node_of(f"{job}_0"), lab.node_of(f"{job}_1")
    lost, kept = lab.ranks(job, 0) + lab.ranks(job, 1), lab.ranks(job, 2) + lab.ranks(job, 3)
    before = CLOCK.now()
    report = lab.sandbox.kill_node(victim)
    assert (report.kind, report.target) == (FaultKind.KILL_NODE, victim)
    assert before <= report.hit_at <= CLOCK.now()
    assert {process.pid for process in lost} <= set(report.pids)
    assert not any(_alive(process) for process in lost)
    assert all(_alive(process) for process in kept)
    # Nobody told Slurm.
    assert lab.queue()[f"{job}_0"] == ("RUNNING", victim)
    status = {node.name: node for node in lab.sandbox.status().nodes}
    assert (status[victim].machine.value, status[other].machine.value) == ("dead", "running")
    with pytest.raises(SandboxError, match="it is off"):
        lab.sandbox.kill_node(victim)
    wait(lambda: _slurm_state(lab, victim).startswith("down"), "Slurm gives the node up")
    assert lab.beats(1)


def test_revive_node_brings_a_dead_node_back_into_service(lab: Lab) -> None:
    lab.sandbox.kill_node("n3")
    lab.run("scontrol", "update", "nodename=n3", "state=down", "reason=test")
    report = lab.sandbox.revive_node("n3")
    assert report.kind is FaultKind.REVIVE_NODE
    assert all(find_process_by_pid(pid) for pid in report.pids)
    assert lab.run("srun", "-w", "n3", "hostname") == "n3"


def test_a_node_revived_before_slurm_noticed_is_the_new_one(lab: Lab) -> None:
    old = lab.sandbox.kill_node("n2").pids
    assert not set(lab.sandbox.revive_node("n2").pids) & set(old)
    assert lab.run("srun", "-w", "n2", "hostname") == "n2"


def test_freeze_node_stops_all_of_it_and_keeps_its_connections_open(lab: Lab) -> None:
    job = lab.running_array()
    node = lab.node_of(f"{job}_0")
    report = lab.sandbox.freeze_node(node)
    assert {process.pid for process in lab.ranks(job, 0)} <= set(report.pids)
    assert all(process.is_stopped for process in lab.ranks(job, 0) + lab.ranks(job, 1))
    assert not any(process.is_stopped for process in lab.ranks(job, 2) + lab.ranks(job, 3))
    assert not lab.beats(0)
    assert lab.beats(1)
    assert {n.name: n.machine.value for n in lab.sandbox.status().nodes}[node] == "stopped"
    index = lab.sandbox.node_names.index(node)
    port = int(lab.run("scontrol", "-o", "show", "node", node).split(" Port=")[1].split()[0])
    # The kernel accepts, nobody answers: this is what tells a frozen machine from one without power.
    with socket.create_connection((f"127.0.{_slot(lab)}.{index + 1}", port), timeout=5) as connection:
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    wait(lambda: "*" in _slurm_state(lab, node) or "down" in _slurm_state(lab, node), "Slurm misses the node")
    lab.sandbox.thaw_node(node)
    assert not any(process.is_stopped for process in lab.ranks(job, 0))


def test_freeze_slurmd_leaves_the_job_running_where_slurm_cannot_end_it(lab: Lab) -> None:
    job = lab.running_array()
    node = lab.node_of(f"{job}_0")
    report = lab.sandbox.freeze_slurmd(node)
    assert [Path(read_arguments(pid)[0]).name for pid in report.pids] == ["slurmd"]
    assert lab.beats(0)
    lab.run("scancel", f"{job}_0")
    wait(lambda: lab.queue()[f"{job}_0"][0] == "COMPLETING", "the cancelled task completes")
    assert lab.beats(0)
    lab.sandbox.thaw_node(node)
    wait(lambda: not lab.ranks(job, 0), "the ranks are ended once slurmd hears of it")


@pytest.mark.parametrize("scope", list(BatchScope))
def test_kill_task_0_takes_its_part_of_the_batch_step_and_not_the_node(lab: Lab, scope: BatchScope) -> None:
    job = lab.running_array()
    node = lab.node_of(f"{job}_0")
    own = _lasting_batch_processes(lab, job, 0)
    shell = [process for process in own if "slurm_script" in " ".join(read_arguments(process.pid))]
    run_task = [process for process in own if "run-task" in read_arguments(process.pid)]
    assert (len(shell), len(run_task)) == (1, 1)
    report = lab.sandbox.kill_task_0(job, scope=scope)
    expected = {
        BatchScope.SHELL: {process.pid for process in shell},
        BatchScope.RUN_TASK: {process.pid for process in run_task},
    }
    if scope is BatchScope.WHOLE_STEP:
        assert {process.pid for process in own} <= set(report.pids)
        assert not _batch_processes(lab, job, 0)
    else:
        assert set(report.pids) == expected[scope]
    assert not any(find_process_by_pid(pid) for pid in report.pids)
    assert {n.name: n.slurmd.value for n in lab.sandbox.status().nodes}[node] == "running"
    assert lab.beats(1)
    if scope is BatchScope.RUN_TASK:
        assert lab.beats(0)
        assert lab.queue()[f"{job}_0"][0] == "RUNNING"
    else:
        wait(lambda: lab.queue().get(f"{job}_0", ("gone",))[0] != "RUNNING", "Slurm ends the task")
        wait(lambda: "JobState=FAILED" in lab.run("scontrol", "show", "job", f"{job}_0"), "the task has failed")
        # As on a site with cgroups, and though Slurm knows of no cgroups here.
        wait(lambda: not _batch_processes(lab, job, 0) and not lab.ranks(job, 0), "orphans die with their step", 10)


def test_kill_task_0_refuses_what_does_not_run_here(lab: Lab) -> None:
    with pytest.raises(SandboxError, match=r"killing task 0 of array job 99999: no node of this sandbox runs"):
        lab.sandbox.kill_task_0(99999)
    job = lab.submit("--array=0-0", script="#!/bin/bash\nsleep 3600\n")
    wait(lambda: _batch_processes(lab, job, 0), "the task runs")
    with pytest.raises(SandboxError, match=r"want one run-task process in the batch step, found 0"):
        lab.sandbox.kill_task_0(job, scope=BatchScope.RUN_TASK)
    assert _batch_processes(lab, job, 0)


def test_kill_rank_hits_the_rank_and_not_its_child_its_sibling_or_another_array(lab: Lab) -> None:
    one, two = lab.running_array(tasks=1), lab.running_array(tasks=1)
    victim, child = sorted(lab.ranks(one, 1), key=lambda process: process.pid)
    assert child.parent == victim.pid
    report = lab.sandbox.kill_rank(one, 1)
    assert report.pids == (victim.pid,)
    assert not _alive(victim)
    assert _alive(child)
    assert len(lab.ranks(one, 0)) == len(lab.ranks(two, 1)) == 2
    assert lab.queue()[f"{one}_0"][0] == "RUNNING"
    lab.run("scancel", str(one))
    wait(lambda: not lab.ranks(one, 1), "the orphaned child dies with its step", 10)
    wait(lambda: f"{one}_0" not in lab.queue(), "nothing keeps the task completing", 10)


def test_kill_rank_wants_exactly_one(lab: Lab) -> None:
    script = "#!/bin/bash\nRANK=5 sleep 3600 &\nRANK=5 sleep 3600 &\nwait\n"
    job = lab.submit("--array=0-0", script=script)
    wait(lambda: len(lab.ranks(job, 5)) == 2, "both run")
    with pytest.raises(SandboxError, match="want one such process, found 2: pid "):
        lab.sandbox.kill_rank(job, 5)
    with pytest.raises(SandboxError, match="want one such process, found 0"):
        lab.sandbox.kill_rank(job, 6)
    assert len(lab.ranks(job, 5)) == 2


def test_a_stopped_controller_hangs_its_clients_and_goes_on_where_it_was(lab: Lab) -> None:
    job = lab.running_array(tasks=1)
    pid = lab.sandbox.stop_controller().pids
    assert [daemon.state.value for daemon in lab.sandbox.status().daemons if daemon.name == "slurmctld"] == ["stopped"]
    assert lab.sandbox.status().no_answer == "slurmctld is stopped"
    assert lab.beats(0)
    assert lab.sandbox.start_controller().pids == pid
    assert lab.queue()[f"{job}_0"][0] == "RUNNING"


def test_a_killed_controller_is_replaced_and_finds_its_jobs_again(lab: Lab) -> None:
    job = lab.running_array(tasks=1)
    # An unclean death before the controller has saved its jobs (at most every 5 s) loses the job.
    saved, changed_at = lab.sandbox.logs.parent / "state" / "job_state", time.time()
    lab.run("scontrol", "update", f"jobid={job}", "comment=so that there is something to save")
    wait(lambda: saved.stat().st_mtime > changed_at, "the controller has saved the running job")
    report = lab.sandbox.stop_controller(kill=True)
    assert not any(find_process_by_pid(pid) for pid in report.pids)
    with pytest.raises(SandboxError, match="it does not run"):
        lab.sandbox.stop_controller()
    assert lab.beats(0)
    assert not set(lab.sandbox.start_controller().pids) & set(report.pids)
    assert lab.queue()[f"{job}_0"][0] == "RUNNING"
    assert lab.ranks(job, 0)
    lab.sandbox.start_controller()


def test_drain_node_lets_jobs_finish_and_none_start(lab: Lab) -> None:
    job = lab.running_array(tasks=1)
    node = lab.node_of(f"{job}_0")
    lab.sandbox.drain_node(node)
    assert lab.beats(0)
    lab.run("scancel", str(job))
    wait(lambda: _slurm_state(lab, node) == "drained", "the node is drained")
    waiting = lab.submit("--array=0-0", f"--nodelist={node}", script="#!/bin/bash\nhostname\n")
    assert lab.queue()[f"{waiting}_0"][0] == "PENDING"
    lab.sandbox.revive_node(node)
    wait(lambda: f"{waiting}_0" not in lab.queue(), "the job ran after all")


def test_a_node_that_is_none_is_refused_by_every_fault(lab: Lab) -> None:
    sandbox = lab.sandbox
    for fault in (
        sandbox.kill_node,
        sandbox.freeze_node,
        sandbox.freeze_slurmd,
        sandbox.thaw_node,
        sandbox.drain_node,
        sandbox.revive_node,
    ):
        with pytest.raises(SandboxError, match=r"no 'vm' here \(n1 to n4\)"):
            fault("vm")


def find_process_by_pid(pid: int) -> bool:
    return bool(read_arguments(pid))


def _slot(lab: Lab) -> int:
    return int(lab.sandbox.slurm_conf.parent.name.partition("-")[0])


def _batch_processes(lab: Lab, job: int, task: int) -> list[Process]:
    """The task's processes that srun did not launch."""
    return [
        process
        for process, environ in lab.processes()
        if (environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")) == (str(job), str(task))
        and "SLURM_STEP_ID" not in environ
    ]


def _lasting_batch_processes(lab: Lab, job: int, task: int) -> list[Process]:
    """Without the short sleeps of the script's loop, which come and go."""
    first = _batch_processes(lab, job, task)
    assert lab.beats(task)
    assert lab.beats(task)
    later = {process.id for process in _batch_processes(lab, job, task)}
    return [process for process in first if process.id in later]
