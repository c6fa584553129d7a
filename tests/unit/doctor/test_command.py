"""`nvrx-chain doctor` as it is typed: examined with a fake Slurm on PATH; lines, JSON, exit codes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nvrx_chain.cli import cli
from nvrx_chain.doctor.directory import SCRATCH_PREFIX
from nvrx_chain.doctor.model import Grade, Line, Report
from nvrx_chain.doctor.programs import NAMES
from nvrx_chain.doctor.show import render_report
from tests.unit.slurm.programs import FakePrograms

CONFIG = "\n".join(
    (
        "ClusterName = c1",
        "SLURM_VERSION = 24.11.5",
        "MaxArraySize = 1001",
        "MaxJobCount = 10000",
        "KillWait = 30 sec",
        "SlurmdTimeout = 300 sec",
        "MinJobAge = 300 sec",
        "PreemptMode = OFF",
        "AccountingStorageType = accounting_storage/none",
        "SelectType = select/cons_tres",
        "JobRequeue = 0",
        "ProctrackType = proctrack/cgroup",
        "PrivateData = none",
    )
)
PARTITION = "PartitionName=main Default=YES State=UP MaxTime=UNLIMITED TotalNodes=4 OverSubscribe=NO"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    """A healthy Slurm of programs, alone on PATH."""
    fake = FakePrograms(tmp_path / "bin")
    version = 'if [ "$1" = --version ]; then echo "slurm 24.11.5"; exit; fi'
    for name in NAMES:
        fake.put_plain(name, version)
    answer = f"""{version}
case "$*" in
"show config") cat <<'END'
{CONFIG}
END
;;
*partition*) echo '{PARTITION}' ;;
esac"""
    fake.put_plain("scontrol", answer)
    for name, value in fake.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


def doctor(*words: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", "--python", "/bin/false", *words])


def report(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(doctor("--json", *words).stdout)
    return found


def lines(found: dict[str, Any]) -> dict[str, str]:
    return {line["check"]: line["grade"] for line in found["lines"]}


def test_a_site_without_a_fault_ends_with_zero_and_leaves_nothing(fake: FakePrograms, tmp_path: Path) -> None:
    done = doctor("--json", "--run-root", "runs & #1")
    found = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    assert found["schema"] == 1
    assert found["run_directory"] == str(tmp_path / "runs & #1")
    assert lines(found)["controller"] == "ok"
    assert lines(found)["launcher"] == "unknown"
    assert found["counts"]["bad"] == 0
    assert sum(found["counts"].values()) == len(found["lines"])
    assert not list(tmp_path.glob(f"{SCRATCH_PREFIX}*"))


def test_something_bad_ends_with_one_and_the_output_says_how_to_mend_it(fake: FakePrograms) -> None:
    fake.path("scancel").unlink()
    done = doctor()
    assert done.exit_code == 1
    (at,) = [number for number, line in enumerate(done.output.splitlines()) if line.startswith("BAD")]
    assert "scancel: not on PATH" in done.output.splitlines()[at]
    assert "-> load the Slurm module" in done.output.splitlines()[at + 1]


def test_a_controller_that_hangs_costs_less_than_ten_seconds(fake: FakePrograms) -> None:
    for name in ("scontrol", "squeue", "sacct", "sinfo"):
        version = 'if [ "$1" = --version ]; then echo "slurm 24.11.5"; exit; fi'
        fake.put_plain(name, f"{version}\nexec sleep 60")
    began = time.monotonic()
    found = report("--on-node")
    assert found["seconds"] < 10
    assert time.monotonic() - began < 15
    assert lines(found)["controller"] == "bad"
    assert lines(found)["kill-wait"] == "unknown"
    # A job that nobody could cancel is not submitted.
    assert lines(found)["job"] == "unknown"


def test_two_places_to_examine_are_refused(fake: FakePrograms) -> None:
    done = doctor("--run-dir", "a", "--run-root", "b")
    assert "exclude each other" in str(done.exception)


def test_a_chain_that_cannot_be_read_is_bad(fake: FakePrograms, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "chain.json").write_text("{")
    assert lines(report("--run-dir", "run"))["chain"] == "bad"
    assert "chain" not in lines(report("--run-dir", "other"))


def test_the_lines_stand_in_columns_and_the_last_one_counts() -> None:
    made = (
        Line(check="controller", place="cluster", grade=Grade.OK, seen="answers"),
        Line(check="name", place="n7", grade=Grade.BAD, seen="127.0.1.1", mend="mend DNS"),
    )
    shown = render_report(
        Report(
            read_at="2026-01-01T00:00:00Z",
            host="login1",
            node="n7",
            run_directory="/scratch/a",
            grade=Grade.BAD,
            counts={"ok": 1, "unknown": 0, "warn": 0, "bad": 1},
            seconds=1.25,
            lines=made,
        )
    )
    assert shown == [
        (Grade.OK, "ok      controller  cluster  answers"),
        (Grade.BAD, "BAD     name        n7       127.0.1.1"),
        (Grade.BAD, "                             -> mend DNS"),
        (Grade.BAD, "1 ok, 0 unknown, 0 warn, 1 bad; /scratch/a; 1.2 s"),
    ]
