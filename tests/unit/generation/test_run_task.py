"""The wiring of run-task and run-launcher, and the signals of the process that runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from nvrx_chain.errors import ExitCode, RecordError, Unobserved, UsageError
from nvrx_chain.generation import rendezvous
from nvrx_chain.generation.identity import read_boot_id, read_identity, read_process_start
from nvrx_chain.generation.run_launcher import await_rendezvous
from nvrx_chain.generation.run_task import build_context
from nvrx_chain.generation.signals import SignalFlags
from nvrx_chain.records.files import encode_record, list_names, write_atomic
from nvrx_chain.records.outcome import Outcome
from tests.fakes.generation_lab import Lab, shape

PATIENCE_SECONDS = 60.0
ROOT = Path(__file__).parents[3]
ALLOCATION = {
    "SLURM_JOB_ID": "12",
    "SLURM_ARRAY_JOB_ID": "10",
    "SLURM_ARRAY_TASK_ID": "2",
    "SLURM_JOB_NODELIST": "n[3-5]",
    "SLURMD_NODENAME": "n4",
}


# Who this is


def test_the_identity_comes_from_the_allocation() -> None:
    identity = read_identity(ALLOCATION)
    assert (identity.array_job_id, identity.array_task_id, identity.restart_count) == (10, 2, 0)
    assert identity.spec == "10_2"
    assert identity.nodes == ("n4", "n3", "n5")
    assert identity.boot_id == read_boot_id()
    assert identity.pid_started_at == read_process_start(os.getpid())


def test_a_job_that_is_no_array_is_its_own_task_zero() -> None:
    identity = read_identity({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2"})
    assert (identity.spec, identity.restart_count) == ("12_0", 2)


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "x"}, {**ALLOCATION, "SLURM_ARRAY_TASK_ID": "a"}])
def test_outside_of_an_allocation_there_is_no_identity(environ: Mapping[str, str]) -> None:
    with pytest.raises(UsageError, match="run-task"):
        read_identity(environ)


def test_a_process_is_told_from_its_namesake_by_its_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert read_process_start(child.pid) >= read_process_start(os.getpid())
        child.communicate(b"\n", timeout=PATIENCE_SECONDS)


# The context


def test_a_small_array_watches_every_lease_and_a_peer_of_a_big_one_only_task_zero_s(tmp_path: Path) -> None:
    for total, task, seen in ((4, 1, {0, 1}), (100, 1, {0}), (100, 0, {0, 1})):
        lab = Lab(tmp_path / f"{total}-{task}", shape=shape(train=total, hot=0, cold=0))
        environ = {"SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": str(task)}
        context = build_context(lab.run.path, environ, lab.clock, lab.slurm, SignalFlags())
        for index in (0, 1):
            (lab.directory(10).lease(index)).write_bytes(_lease(index))
        assert set(context.watcher.read().leases) == seen


def test_a_manifest_that_names_another_user_is_not_run(lab: Lab) -> None:
    write_atomic(lab.run.manifest, encode_record(structs.replace(lab.manifest, uid=4242)))
    with pytest.raises(RecordError, match="that of uid 4242, and this job runs as uid"):
        build_context(lab.run.path, ALLOCATION, lab.clock, lab.slurm, SignalFlags())


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
def test_a_manifest_that_somebody_else_put_there_is_not_run(lab: Lab) -> None:
    os.chown(lab.run.manifest, 4242, 4242)
    with pytest.raises(RecordError, match="belongs to uid 4242"):
        build_context(lab.run.path, ALLOCATION, lab.clock, lab.slurm, SignalFlags())
    assert not lab.directory(10).control.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
def test_no_file_of_somebody_else_in_the_run_directory_is_believed(lab: Lab) -> None:
    context = build_context(lab.run.path, ALLOCATION, lab.clock, lab.slurm, SignalFlags())
    zero = replace(context.identity, array_task_id=0)
    assert replace(context.board, identity=zero).close(Outcome.FAILED, exit_code=1, evidence=(), leases={})
    lab.record(4, 10)
    assert 10 in {known.array_job_id for known in context.chain.generations()}
    assert context.watcher.read().closed is not None
    for path in (lab.directory(10).closed, lab.run.submission_id(4)):
        os.chown(path, 4242, 4242)
    assert isinstance(context.board.closed(), Unobserved)
    assert 10 not in {known.array_job_id for known in context.chain.generations()}


def _lease(task: int) -> bytes:
    return (
        f'{{"array_job_id":10,"array_task_id":{task},"restart_count":0,"host":"n1","boot_id":"b","pid":1,'
        f'"pid_started_at":1,"counter":1,"interval_seconds":5.0,"phase":"x"}}'
    ).encode()


# The rendezvous, as the wrapper on another node sees it


def test_the_wrapper_waits_until_it_sees_the_start_that_run_task_saw(lab: Lab) -> None:
    zero, peer = lab.arrive(1, 0), lab.arrive(1, 1)
    rendezvous.publish(zero, started=False, members=(), present=())
    lab.clock.after(20, lambda: rendezvous.publish(zero, started=True, members=(0, 2), present=(0,)))
    lab.clock.after(40, lambda: rendezvous.publish(zero, started=True, members=(0, 1), present=(0, 1)))
    found = await_rendezvous(peer.board, lab.clock)
    assert found.members == (0, 1)
    assert 40 <= lab.clock.monotonic() <= 41


def test_a_start_that_is_never_seen_is_an_error_within_a_bounded_time(lab: Lab) -> None:
    peer = lab.arrive(1, 1)
    with pytest.raises(RecordError, match="no started rendezvous"):
        await_rendezvous(peer.board, lab.clock)
    assert 60 < lab.clock.monotonic() <= 95


# The process


def run_task(lab: Lab, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nvrx_chain", "run-task", "--run-dir", str(lab.run.path)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_a_restarted_peer_leaves_at_once_and_moves_no_lease_of_its_first_start(lab: Lab) -> None:
    done = run_task(lab, {**ALLOCATION, "SLURM_RESTART_COUNT": "1"})
    assert done.returncode == ExitCode.REFUSED
    assert list_names(lab.directory(10).control) == ()
    text = lab.directory(10).task_log(2).read_text()
    assert "refusing to run" in text
    assert "run-task ends code=76" in text


def test_a_directory_without_a_chain_is_one_line_with_a_hint(lab: Lab) -> None:
    lab.run.manifest.unlink()
    done = run_task(lab, ALLOCATION)
    assert done.returncode == ExitCode.FAILED
    assert "no chain was submitted into this directory" in done.stderr
    assert "Traceback" not in done.stderr


SIGNALS = """
import sys, threading
from nvrx_chain.generation.signals import SignalFlags
flags = SignalFlags()
flags.install()
print("ready", flush=True)
assert flags.wake.wait(60)
print(flags.terminated, flags.walltime_warned, flags.parent_died, flush=True)
"""


def start_with_signals() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNALS],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGTERM, "True False False"),
        (signal.SIGINT, "True False False"),
        (signal.SIGUSR1, "False True False"),
    ],
)
def test_a_signal_is_a_flag_that_wakes_the_loop(number: signal.Signals, said: str) -> None:
    process = start_with_signals()
    process.send_signal(number)
    assert process.communicate(timeout=PATIENCE_SECONDS)[0].strip() == said
    assert process.returncode == 0


def test_the_death_of_the_batch_shell_is_a_term_that_says_so(tmp_path: Path) -> None:
    out = tmp_path / "said"
    shell = subprocess.Popen(
        ["bash", "-c", 'echo $$; "$0" -c "$1" > "$2" & wait', sys.executable, SIGNALS, str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert shell.stdout is not None
    assert int(shell.stdout.readline()) == shell.pid
    child = _only_child(shell.pid, out)
    shell.kill()
    assert shell.wait(PATIENCE_SECONDS) == -9
    shell.stdout.close()
    gone, _ = psutil.wait_procs([child], timeout=PATIENCE_SECONDS)
    assert gone
    assert out.read_text().split("\n")[1] == "True False True"


def _only_child(pid: int, out: Path) -> psutil.Process:
    """The process below the shell, once it is ready."""
    parent = psutil.Process(pid)
    for _ in range(int(PATIENCE_SECONDS / 0.02)):
        children = parent.children()
        if children and out.exists() and "ready" in out.read_text():
            return children[0]
        parent.status()
        signal.sigtimedwait([], 0.02)
    raise AssertionError("the child was never ready")
