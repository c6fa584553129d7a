from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from nvrx_chain.commands import sandbox as commands
from nvrx_chain.errors import SandboxError, UsageError
from nvrx_chain.sandbox import FaultKind, FaultReport, Sandbox, SandboxConfig, record
from nvrx_chain.sandbox.config import default_directory
from nvrx_chain.sandbox.status import DaemonStatus, NodeStatus, ProcessState, SandboxStatus

REPORT = FaultReport(
    kind=FaultKind.KILL_NODE,
    target="n3",
    pids=(11, 12),
    hit_at=datetime(2026, 11, 30, 1, 2, 3, 456789, tzinfo=timezone.utc),
    verified="2 processes are dead",
)


@pytest.fixture(autouse=True)
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "REGISTER", tmp_path / "register")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(commands.sandbox, arguments)


def test_every_command_has_help_and_takes_a_directory() -> None:
    assert len(commands.sandbox.commands) == 19
    for name in commands.sandbox.commands:
        result = _run(name, "--help")
        assert result.exit_code == 0
        assert "--dir DIRECTORY" in result.output


def test_every_fault_is_a_command_of_the_same_name() -> None:
    assert {kind.value for kind in FaultKind} <= set(commands.sandbox.commands)


def test_nothing_runs_here_is_no_error_for_down_and_one_line_for_the_others(tmp_path: Path) -> None:
    result = _run("down", "--dir", str(tmp_path))
    assert (result.exit_code, result.output) == (0, f"no sandbox in {tmp_path}\n")
    for command in (["status"], ["env"], ["shell"], ["kill-node", "n1"], ["kill-rank", "7"], ["stop-controller"]):
        error = _run(*command, "--dir", str(tmp_path)).exception
        assert isinstance(error, SandboxError)
        assert str(error) == f"opening a sandbox: there is none: {tmp_path} (run `sandbox up` first)"


def test_up_refuses_a_value_out_of_range_as_bad_usage(tmp_path: Path) -> None:
    error = _run("up", "--dir", str(tmp_path / "x"), "--nodes", "0").exception
    assert isinstance(error, UsageError)
    assert str(error) == "configuring a sandbox: 0 is out of range: --nodes (1 to 250)"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("words", [[], ["n1", "--all"]])
def test_slow_disk_wants_one_node_or_all(words: list[str], tmp_path: Path) -> None:
    result = _run("slow-disk", *words, "--seconds", "1", "--dir", str(tmp_path))
    assert (result.exit_code, result.output.splitlines()[-1]) == (2, "Error: name one NODE, or --all")


def test_slow_disk_stalls_for_some_time(tmp_path: Path) -> None:
    assert _run("slow-disk", "n1", "--seconds", "0", "--dir", str(tmp_path)).exit_code == 2


def test_up_hands_every_option_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SandboxConfig] = []

    def up(config: SandboxConfig) -> Sandbox:
        seen.append(config)
        raise SandboxError("enough")

    monkeypatch.setattr(Sandbox, "up", up)
    words = "--nodes 3 --gpus-per-node 2 --cpus-per-node 1 --accounting --kill-wait 30 --slurmd-timeout 300"
    rest = "--max-array-size 9 --kill-on-bad-exit 1 --private-jobs --network"
    _run("up", "--dir", str(tmp_path), *words.split(), *rest.split())
    _run("up", "--dir", str(tmp_path))
    assert seen == [
        SandboxConfig(
            directory=tmp_path,
            nodes=3,
            gpus_per_node=2,
            cpus_per_node=1,
            accounting=True,
            kill_wait_seconds=30,
            slurmd_timeout_seconds=300,
            max_array_size=9,
            kill_on_bad_exit=1,
            private_jobs=True,
            network=True,
        ),
        SandboxConfig(directory=tmp_path),
    ]


def test_the_directory_comes_from_the_flag_the_environment_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NVRX_SANDBOX_DIR", "from environment")
    assert _run("down").output == f"no sandbox in {tmp_path / 'from environment'}\n"
    assert _run("down", "--dir", "from flag").output == f"no sandbox in {tmp_path / 'from flag'}\n"
    monkeypatch.delenv("NVRX_SANDBOX_DIR")
    assert _run("down").output == f"no sandbox in {default_directory(os.environ).resolve()}\n"


def test_an_ordinary_user_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    error = _run("up", "--dir", str(tmp_path / "x")).exception
    assert str(error) == "starting a sandbox: needs root, since nodes are namespaces of their own (run it with sudo)"
    assert not (tmp_path / "x").exists()


def test_a_fault_is_printed_as_a_line_or_as_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    commands._print(REPORT, False, commands._fault_text)
    commands._print(REPORT, True, commands._fault_text)
    line, data = capsys.readouterr().out.splitlines()
    assert line == "kill-node n3 at 01:02:03.456 UTC: 2 processes are dead"
    assert msgspec.json.decode(data) == {
        "schema": 1,
        "kind": "kill-node",
        "target": "n3",
        "pids": [11, 12],
        "hit_at": "2026-11-30T01:02:03.456789Z",
        "verified": "2 processes are dead",
    }


def test_status_tells_a_dead_node_from_what_slurm_still_believes() -> None:
    status = SandboxStatus(
        directory=Path("/d"),
        slurm_conf=Path("/run/nvrx-sandbox/10/slurm.conf"),
        logs=Path("/d/nvrx-sandbox/log"),
        ready=False,
        accounting=False,
        daemons=(DaemonStatus(name="slurmctld", pid=5, state=ProcessState.STOPPED),),
        nodes=(
            NodeStatus(
                name="n1",
                address="127.0.10.1",
                machine=ProcessState.DEAD,
                slurmd=ProcessState.DEAD,
                slurm_state="idle",
            ),
        ),
        no_answer=None,
    )
    assert commands._status_text(status).splitlines() == [
        "sandbox of /d: half-started (run `sandbox down`), 1 nodes",
        "  SLURM_CONF=/run/nvrx-sandbox/10/slurm.conf",
        "  slurmctld  stopped  pid 5",
        "  n1         dead     127.0.10.1     slurmd dead     Slurm: idle",
    ]
