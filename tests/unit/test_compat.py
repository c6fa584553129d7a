"""`make compat`: which mirror is taken, what is removed, and what is written of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nvrx_chain.demo.expectations import Expectation, RowState
from nvrx_chain.demo.repairs import Repair
from nvrx_chain.demo.scenario import DemoReport, ScenarioName
from tests import compat


def report(*, ok: bool, state: RowState = RowState.OK) -> DemoReport:
    return DemoReport(
        ok=ok,
        scenario=ScenarioName.HAND_OFF,
        launcher="ft_launcher",
        seconds=183.6,
        repairs=(Repair(fault="a rank killed (rank 1 on n2)", repaired_by="a cycle", seconds=9.84, steps_lost=6),),
        expectations=(Expectation(name="every node is free", state=state, detail="6 of 6"),),
        kept=None,
    )


def outcome(suite: str, slurm: str, found: DemoReport | None) -> compat.Outcome:
    return compat.Outcome(suite=suite, slurm=slurm, commit="abc1234", report=found)


def test_a_row_has_version_verdict_repairs_and_seconds_and_each_expectation_a_column() -> None:
    text = compat.render(
        [
            outcome("trixie", "24.11.5", report(ok=True)),
            outcome("sid", "26.05.5", report(ok=False, state=RowState.FAILED)),
        ]
    )
    course = "a rank killed: a cycle, 9.8 s, 6 steps lost"
    assert f"| 24.11.5 | trixie | abc1234 | ft_launcher | ok | {course} | 184 |" in text
    assert f"| 26.05.5 | sid | abc1234 | ft_launcher | FAILED | {course} | 184 |" in text
    assert "| every node is free | ok | FAILED |" in text


def test_a_demo_that_said_nothing_has_failed() -> None:
    silent = outcome("sid", "26.05.5", None)
    assert "| 26.05.5 | sid | abc1234 | - | FAILED | - | - |" in compat.render([silent])
    assert not compat.is_good(silent)
    assert not compat.is_good(outcome("sid", "26.05.5", report(ok=False)))


def said(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], 0, text, "")


def test_the_mirror_is_apts_own_and_neither_its_security_updates_nor_a_foreign_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = "Other|Other|http://a/x/\nDebian|Debian-Security|http://b/security/\nDebian|Debian|http://c/debian/\n"
    monkeypatch.setattr(compat, "run", lambda *_: said(lines))
    assert compat.find_mirror() == "http://c/debian/"
    monkeypatch.setattr(compat, "run", lambda *_: said(""))
    with pytest.raises(SystemExit, match="no mirror"):
        compat.find_mirror()


def test_nothing_with_a_mount_in_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was removed"))
    # Every process has /proc.
    for path in (Path("/proc"), Path("/")):
        with pytest.raises(SystemExit, match="is mounted"):
            compat.remove_tree(path)


def test_a_tree_that_an_interrupted_call_left_is_made_anew_and_a_complete_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "PLACE", tmp_path)
    monkeypatch.setattr(compat, "find_mirror", lambda: "http://c/debian/")
    calls: list[list[str]] = []

    def debootstrap(argv: list[str], _seconds: float) -> subprocess.CompletedProcess[str]:
        calls.append(argv)
        (tmp_path / "sid").mkdir()
        return said("")

    monkeypatch.setattr(compat, "run", debootstrap)
    (tmp_path / "sid").mkdir()
    (tmp_path / "sid" / "half").touch()
    assert compat.make_tree("sid") == tmp_path / "sid"
    assert not (tmp_path / "sid" / "half").exists()
    assert compat.make_tree("sid") == tmp_path / "sid"
    assert len(calls) == 1
    assert "--no-check-gpg" not in calls[0]
