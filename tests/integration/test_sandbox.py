"""The life of a sandbox on this machine: up, used, side by side, crashed at every stage, down without a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox import Sandbox, SandboxConfig, record
from nvrx_chain.sandbox.cluster import end_directory
from nvrx_chain.sandbox.procfs import list_processes, read_arguments
from nvrx_chain.sandbox.record import SandboxState, find_place, read_state
from tests.integration.sandbox_lab import CLOCK, PATIENCE, Lab, end_group, needs_cluster, running_lab, wait

pytestmark = [pytest.mark.integration, needs_cluster]

HOSTILE = "it's 100% a&b #1"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("life") / (HOSTILE * 8), nodes=3) as lab:
        yield lab
        lab.reset()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nvrx_chain", "sandbox", *arguments]


def _run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    return subprocess.run(
        _command(*arguments), env=given, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def _start_up(directory: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        _command("up", "--dir", str(directory), *options),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _daemons(directory: Path) -> list[str]:
    place = find_place(directory)
    state = read_state(place) if place else None
    return [daemon.name for daemon in state.daemons] if isinstance(state, SandboxState) else []


def _mentions(text: str) -> list[str]:
    """Commands of live processes that hold a text, without this test's own children of the same name."""
    commands = (" ".join(read_arguments(process.pid)) for process in list_processes())
    return [command for command in commands if text in command]


def test_nodes_have_names_and_addresses_of_their_own(lab: Lab) -> None:
    script = "hostname; hostname -f; getent ahostsv4 n1 | head -1; getent ahostsv4 $(hostname) | head -1"
    slot = lab.sandbox.slurm_conf.parent.name.partition("-")[0]
    for index, node in enumerate(lab.sandbox.node_names, start=1):
        words = lab.run("srun", "-w", node, "sh", "-c", script).split()
        assert words[:2] == [node, node]
        assert words[2] == f"127.0.{slot}.1"
        assert f"127.0.{slot}.{index}" in words[3:]
    assert os.uname().nodename not in lab.sandbox.node_names


def test_a_node_sees_its_own_processes_only(lab: Lab) -> None:
    seen = lab.run("srun", "-w", "n2", "ps", "-eo", "args")
    assert "node.sh n2" in seen.splitlines()[1]
    assert "slurmctld" not in seen
    assert "node.sh n1" not in seen


def test_gpus_are_counted_and_handed_out(lab: Lab) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
    assert lab.run("srun", "-N2", "--gpus-per-node=4", "sh", "-c", script).splitlines() == ["0,1,2,3 4"] * 2
    assert lab.run("srun", "-N1", "--gres=gpu:2", "sh", "-c", script) == "0,1 2"


def test_jobs_start_with_default_signals(lab: Lab) -> None:
    status = lab.run("srun", "grep", "-E", "SigIgn|SigBlk", "/proc/self/status").split()
    # 32 and 33 belong to the C library, which lets no program change how they were inherited.
    libc = 1 << 31 | 1 << 32
    assert [int(mask, 16) & ~libc for mask in status[1::2]] == [0, 0]


def test_an_array_that_is_singleton_follows_the_one_before(lab: Lab) -> None:
    script = '#!/bin/bash\nsrun hostname >> "$1.$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID"\n'
    options = ("--array=0-3%2", "-N1", "--exclusive", "--job-name=chain", "--dependency=singleton")
    first, second = (lab.submit(*options, script=script) for _ in range(2))
    wait(lambda: not lab.queue(), "both generations end")
    outputs = {job: [lab.directory / f"pulse.{job}.{task}" for task in range(4)] for job in (first, second)}
    assert all(path.read_text().strip() in lab.sandbox.node_names for paths in outputs.values() for path in paths)
    last_of_first = max(path.stat().st_mtime for path in outputs[first])
    assert min(path.stat().st_mtime for path in outputs[second]) >= last_of_first


def test_another_user_of_this_machine_can_run_jobs(lab: Lab, tmp_path: Path) -> None:
    open_directory = Path("/tmp") / f"nvrx-sandbox-test-{lab.token}"
    open_directory.mkdir()
    try:
        open_directory.chmod(0o1777)
        words = ["sbatch", "--parsable", "--wait", "-o", str(open_directory / "out"), "--wrap", "id -un; srun id -un"]
        done = subprocess.run(
            words,
            env={"SLURM_CONF": str(lab.sandbox.slurm_conf), "PATH": lab.sandbox.environ["PATH"]},
            cwd=open_directory,
            user="nobody",
            group="nogroup",
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (open_directory / "out").read_text().split() == ["nobody", "nobody"]
    finally:
        for path in open_directory.iterdir():
            path.unlink()
        open_directory.rmdir()


def test_secrets_are_roots_alone(lab: Lab) -> None:
    runtime = lab.sandbox.slurm_conf.parent
    assert (runtime / "private").stat().st_mode & 0o777 == 0o700
    assert (runtime / "private" / "munge.key").stat().st_mode & 0o777 == 0o400


def test_up_is_refused_where_one_is_up_and_leaves_it_alone(lab: Lab) -> None:
    with pytest.raises(SandboxError, match="there is one already"):
        Sandbox.up(SandboxConfig(directory=lab.sandbox.directory))
    assert lab.run("sinfo", "-h", "-o", "%D") == "3"


def test_the_commands_work_from_a_shell(lab: Lab) -> None:
    directory = str(lab.sandbox.directory)
    lines = _run("env", NVRX_SANDBOX_DIR=directory).stdout
    assert lines.startswith(f"export SLURM_CONF={lab.sandbox.slurm_conf}\n")
    hostname = subprocess.run(
        ["bash", "-c", f"{lines}srun -w n3 hostname"], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert hostname.stdout == "n3\n"
    assert _run("shell", "--dir", directory, "--", "srun", "-w", "n1", "hostname").stdout == "n1\n"
    assert _run("shell", "--dir", directory, "false").returncode == 1
    status = json.loads(_run("status", "--json", "--dir", directory).stdout)
    assert [node["slurm_state"] for node in status["nodes"]] == ["idle"] * 3
    fault = json.loads(_run("freeze-slurmd", "n2", "--json", "--dir", directory).stdout)
    assert (fault["kind"], fault["target"], len(fault["pids"])) == ("freeze-slurmd", "n2", 1)
    assert "n2         running" in _run("status", "--dir", directory).stdout
    assert _run("thaw-node", "n2", "--dir", directory).stdout.startswith("thaw-node n2 at ")
    wrong = _run("kill-node", "n4", "--dir", directory)
    assert (wrong.returncode, wrong.stderr) == (1, "nvrx-chain: looking for a node: no 'n4' here (n1 to n3)\n")


def test_down_inside_a_node_is_refused(lab: Lab) -> None:
    words = [*_command("down", "--dir", str(lab.sandbox.directory))]
    environ = {**os.environ, **lab.sandbox.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["srun", *words], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert "this is one of its nodes" in done.stderr
    assert lab.run("sinfo", "-h", "-o", "%D") == "3"


def test_two_sandboxes_side_by_side_do_not_touch_each_other(tmp_path: Path, lab: Lab) -> None:
    with running_lab(tmp_path / "b", nodes=2) as other:
        mine, theirs = lab.running_array(tasks=1), other.running_array(tasks=1)
        victim = other.sandbox.kill_node(other.node_of(f"{theirs}_0"))
        assert not other.processes()
        assert not {process.pid for process, _ in lab.processes()} & set(victim.pids)
        assert lab.beats(0)
        assert lab.run("sinfo", "-h", "-o", "%D") == "3"
    assert lab.beats(0)
    assert lab.queue()[f"{mine}_0"][0] == "RUNNING"
    lab.reset()


def test_the_same_job_id_and_rank_in_two_sandboxes_is_not_confused(tmp_path: Path) -> None:
    with running_lab(tmp_path / "a", nodes=1) as one, running_lab(tmp_path / "b", nodes=1) as two:
        job = one.running_array(tasks=1)
        assert two.running_array(tasks=1) == job
        one.sandbox.kill_rank(job, 0)
        one.sandbox.kill_task_0(job)
        assert len(two.ranks(job, 0)) == 2
        assert two.beats(0)


def test_accounting_answers_and_goes_with_the_rest(tmp_path: Path) -> None:
    with running_lab(tmp_path / HOSTILE, nodes=2, accounting=True) as lab:
        job = lab.submit("--array=0-1", "--wait", script="#!/bin/bash\nexit 0\n")
        wanted = {f"{job}_{task}|COMPLETED|0:0" for task in range(2)}
        words = ("sacct", "-X", "-n", "-P", "-o", "JobID,State,ExitCode", "-j", str(job))
        wait(lambda: set(lab.run(*words).split()) == wanted, "sacct knows both tasks")
        assert [daemon.state.value for daemon in lab.sandbox.status().daemons] == ["running"] * 4
        database = lab.sandbox.slurm_conf.parent / "private" / "mariadb.sock"
        assert database.is_socket()


STAGES = ["munged", "slurmctld", "node.n1"]


@pytest.mark.parametrize("stage", [*STAGES, "mariadbd", "slurmdbd"])
def test_down_ends_what_an_up_that_was_killed_had_started(tmp_path: Path, stage: str) -> None:
    directory = tmp_path / HOSTILE
    options = ["--nodes", "4", *([] if stage in STAGES else ["--accounting"])]
    process = _start_up(directory, *options)
    try:
        wait(lambda: stage in _daemons(directory), f"{stage} is on record")
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    finally:
        end_group(process)
    place = find_place(directory)
    assert place is not None
    report = end_directory(directory, CLOCK)
    assert report.was_there
    assert _mentions(f"{place.runtime}/") == []
    assert not place.runtime.exists()
    assert not directory.exists()
    with running_lab(tmp_path / "again", nodes=1):
        pass


def test_an_up_that_is_interrupted_cleans_up_itself(tmp_path: Path) -> None:
    process = _start_up(tmp_path / "x", "--nodes", "4", "--accounting")
    try:
        wait(lambda: "munged" in _daemons(tmp_path / "x"), "munged is on record")
        place = find_place(tmp_path / "x")
        assert place is not None
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) != 0
    finally:
        end_group(process)
    assert _mentions(f"{place.runtime}/") == []
    assert not place.runtime.exists()


def test_a_cluster_outlives_the_shell_that_started_it(tmp_path: Path) -> None:
    directory = tmp_path / "x"
    process = _start_up(directory, "--nodes", "2")
    try:
        assert process.wait(PATIENCE) == 0, process.communicate()
        with pytest.raises(ProcessLookupError):
            # Nothing of the cluster stayed in its process group, where a Ctrl-C or a closed terminal would end it.
            os.killpg(process.pid, signal.SIGHUP)
        sandbox = Sandbox.open(directory)
        sandbox.wait_idle(PATIENCE)
        # No pipe to the starter was kept open either: its reader sees the end.
        assert json.loads(_run("status", "--json", "--dir", str(directory)).stdout)["ready"] is True
        assert process.communicate(timeout=PATIENCE)[1] == ""
    finally:
        end_group(process)
        end_directory(directory, CLOCK)


def _kill_controller(lab: Lab) -> None:
    lab.sandbox.stop_controller(kill=True)


def _kill_munge(lab: Lab) -> None:
    pid = next(daemon.pid for daemon in lab.sandbox.status().daemons if daemon.name == "munged")
    assert read_arguments(pid)[0].endswith("munged")
    os.kill(pid, signal.SIGKILL)


def _ignore_terms(lab: Lab) -> None:
    lab.submit(script="#!/bin/bash\ntrap '' TERM\nsetsid sh -c 'trap \"\" TERM; sleep 3600; :' &\nsleep 3600\n")
    wait(lambda: len([row for row in lab.queue().values() if row[0] == "RUNNING"]) == 2, "the stubborn job runs")


BREAKERS: dict[str, Callable[[Lab], object]] = {
    "controller killed": _kill_controller,
    "controller stopped": lambda lab: lab.sandbox.stop_controller(),
    "node killed": lambda lab: lab.sandbox.kill_node("n1"),
    "node frozen": lambda lab: lab.sandbox.freeze_node("n1"),
    "slurmd frozen": lambda lab: lab.sandbox.freeze_slurmd("n1"),
    "munge killed": _kill_munge,
    "jobs that ignore TERM": _ignore_terms,
}


@pytest.mark.parametrize("broken", sorted(BREAKERS))
def test_down_ends_a_broken_cluster_with_its_jobs(tmp_path: Path, broken: str) -> None:
    with running_lab(tmp_path / "x", nodes=2) as lab:
        lab.running_array(tasks=1)
        BREAKERS[broken](lab)
        before = CLOCK.monotonic()
        report = lab.sandbox.down(grace_seconds=1.0)
        assert CLOCK.monotonic() - before < 40
        assert report.processes_ended > 0
        assert lab.traces() == []
        assert lab.processes() == []


def test_down_lets_a_job_end_in_its_own_time(tmp_path: Path) -> None:
    with running_lab(tmp_path / "x", nodes=1, kill_wait_seconds=30) as lab:
        script = '#!/bin/bash\ntrap \'sleep 1; touch "$1.ended"; exit\' TERM\ntouch "$1.ready"\nsleep 3600 & wait\n'
        lab.submit(script=script)
        wait((lab.directory / "pulse.ready").exists, "the job has its trap")
        report = lab.sandbox.down(grace_seconds=30)
        assert (lab.directory / "pulse.ended").exists()
        assert report.jobs_killed == ()


def test_down_keeps_the_logs_when_asked_and_a_users_files_always(tmp_path: Path) -> None:
    directory = tmp_path / "x"
    sandbox = Sandbox.up(SandboxConfig(directory=directory, nodes=1))
    (directory / "mine").write_text("precious")
    sandbox.down(keep_logs=True)
    assert "slurmctld version" in (directory / "nvrx-sandbox" / "log" / "slurmctld.log").read_text()
    assert [path.name for path in (directory / "nvrx-sandbox").iterdir()] == ["log"]
    assert (directory / "mine").read_text() == "precious"
    Sandbox.up(SandboxConfig(directory=directory, nodes=1)).down()
    assert [path.name for path in directory.iterdir()] == ["mine"]


def test_two_downs_at_once_both_succeed(tmp_path: Path) -> None:
    sandbox = Sandbox.up(SandboxConfig(directory=tmp_path / "x", nodes=2))
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(sandbox.down())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(report.was_there for report in reports) == [False, False, False, True]
    assert _mentions(f"{sandbox.slurm_conf.parent}/") == []
    with pytest.raises(SandboxError, match="gone"):
        sandbox.wait_idle(1)


def test_down_of_an_old_handle_spares_the_sandbox_that_took_its_place(tmp_path: Path) -> None:
    config = SandboxConfig(directory=tmp_path / "x", nodes=1)
    old = Sandbox.up(config)
    old.down()
    new = Sandbox.up(config)
    try:
        assert old.down().was_there is False
        new.wait_idle(PATIENCE)
        with pytest.raises(SandboxError, match="gone"):
            old.kill_node("n1")
    finally:
        assert new.down().was_there is True


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "slurmctld").write_text("#!/bin/sh\necho 'fatal: the moon is full' >&2\nexit 1\n")
    (fake / "slurmctld").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"^starting a sandbox: slurmctld ended: fatal: the moon is full \("):
        Sandbox.up(SandboxConfig(directory=tmp_path / "x", nodes=1))
    assert find_place(tmp_path / "x") is None
    assert not (tmp_path / "x").exists()
    assert _mentions(str(record.REGISTER / "x")) == []


def test_a_claim_that_was_killed_before_its_first_record_is_removed(tmp_path: Path) -> None:
    with record.claim(SandboxConfig(directory=tmp_path / "x", nodes=1), CLOCK, "0" * 32) as (place, _):
        place.state_file.unlink()
    assert end_directory(tmp_path / "x", CLOCK).was_there
    assert not place.runtime.exists()
    assert (tmp_path / "x").is_dir(), "nothing says that the directory was made by the claim"
    assert not end_directory(tmp_path / "x", CLOCK).was_there
