"""What a host keeps of its job: each cycle before it trains, why it ended, who was kept out, and the end itself."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.launcher import keeping
from nvrx_chain.launcher.events import Cause, Ended, Filled, JobState, Opened
from nvrx_chain.launcher.judge import JobJudge
from nvrx_chain.launcher.keeping import JobRecords
from nvrx_chain.launcher.members import Member
from nvrx_chain.launcher.progress import ProgressSettings
from nvrx_chain.launcher.reasons import Reason
from nvrx_chain.launcher.verdict import Attendance, ExcludedTask
from nvrx_chain.records.cycle_info import CycleDirectory, CycleFacts, open_cycle_directory


def attendance(*nodes: str, excluded: tuple[ExcludedTask, ...] = ()) -> Attendance:
    members = {
        f"{index}-a": Member(agent_id=f"{index}-a", infra_rank=index, group=f"t{index}", address=node)
        for index, node in enumerate(nodes)
    }
    return Attendance(members=members, excluded=excluded)


def place_in(path: Path) -> CycleDirectory:
    return open_cycle_directory(path, "8", 0)


def facts(path: Path, cycle: int) -> CycleFacts:
    return msgspec.json.decode(place_in(path).facts(cycle).read_bytes(), type=CycleFacts)


def run_cycle(records: JobRecords, cycle: int, here: Attendance, active: tuple[str, ...] = ("0-a", "1-a")) -> None:
    cause = Cause(kind="start") if cycle == 0 else Cause(kind="worker", rank=1, exit_code=-9, node="n2", agent_id="1-a")
    records.heard(Opened(round=cycle, cause=cause, at=0.0))
    filled = Filled(round=cycle, active=active, at=0.0)
    records.before(filled, here)
    assert records._files is not None
    assert records._files.place.record(cycle).exists()
    records.heard(filled)


def test_each_cycle_is_on_disk_before_its_workers_can_start_with_who_trains_and_who_waits(tmp_path: Path) -> None:
    records = JobRecords(place_in(tmp_path), run_id="r", log_file_of=lambda cycle: f"/logs/app_cycle{cycle}.log")
    records.prepare()
    run_cycle(records, 0, attendance("n1", "n2", "n3"))
    out = ExcludedTask(group="t1", nodes=("n2",), why="it flaps")
    run_cycle(records, 1, attendance("n1", "n2", "n3", excluded=(out,)), active=("0-a", "2-a"))
    assert records.close()
    first, second = (json.loads(place_in(tmp_path).record(cycle).read_text()) for cycle in (0, 1))
    assert (first["active_nodes"], first["standby_nodes"], first["cycle_log_file"]) == (
        "n[1-2]",
        "n3",
        "/logs/app_cycle0.log",
    )
    assert first["cycle_end_time"] <= second["cycle_start_time"] <= second["cycle_end_time"]
    assert second["active_nodes"] == "n[1,3]"
    end = facts(tmp_path, 0).end
    assert end is not None
    assert (end.reason, end.rank, end.node, end.signal, end.exit_code) == ("worker", 1, "n2", "SIGKILL", None)
    assert [(group.group, group.nodes, group.why) for group in facts(tmp_path, 1).excluded] == [
        ("t1", ("n2",), "it flaps")
    ]
    assert facts(tmp_path, 1).active == ("0-a", "2-a")
    assert (facts(tmp_path, 0).run_seconds or -1) >= 0
    assert (facts(tmp_path, 1).fill_seconds or -1) >= 0


def test_two_launchers_of_one_node_are_one_node_that_does_not_wait_for_itself(tmp_path: Path) -> None:
    records = JobRecords(place_in(tmp_path), run_id="r")
    records.prepare()
    run_cycle(records, 0, attendance("n1", "n1", "n1", "n2"))
    record = json.loads(place_in(tmp_path).record(0).read_text())
    assert (record["active_nodes"], record["active_ranks"], record["standby_nodes"]) == ("n1", "0-1", "n2")


@pytest.mark.parametrize(("code", "named"), [(-9, "SIGKILL"), (-99, "signal 99"), (17, ""), (None, "")])
def test_a_signal_is_told_by_its_name_and_an_exit_code_by_its_number(
    tmp_path: Path, code: int | None, named: str
) -> None:
    records = JobRecords(place_in(tmp_path), run_id="r")
    records.prepare()
    run_cycle(records, 0, attendance("n1", "n2"))
    cause = Cause(kind="hang", rank=0, exit_code=code, section="step", error_file="/tmp/error.json")
    records.heard(Opened(round=1, cause=cause, at=0.0))
    assert records.close()
    end = facts(tmp_path, 0).end
    assert end is not None
    assert (end.signal, end.exit_code, end.section, end.error_file) == (
        named,
        code if code == 17 else None,
        "step",
        "/tmp/error.json",
    )


def test_the_end_is_on_disk_before_it_is_told_and_ends_the_running_cycle(tmp_path: Path) -> None:
    records = JobRecords(place_in(tmp_path), run_id="r")
    records.prepare()
    run_cycle(records, 0, attendance("n1", "n2"))
    end = Ended(reason=Reason.NO_PROGRESS, exit_code=93, by="0-a", detail="stuck at 70", at=12.5)
    records.before(end, attendance("n1", "n2"))
    outcome = json.loads(place_in(tmp_path).outcome.read_text())
    assert outcome == {
        "schema": 1,
        "run_id": "r",
        "reason": "no_progress",
        "exit_code": 93,
        "by": "0-a",
        "cycle": 0,
        "detail": "stuck at 70",
        "at": 12.5,
    }
    records.heard(end)
    assert records.close()
    assert json.loads(place_in(tmp_path).record(0).read_text())["cycle_end_time"] != ""
    found = facts(tmp_path, 0).end
    assert found is not None
    assert (found.reason, found.detail) == ("no_progress", "stuck at 70")


def test_a_file_system_that_hangs_holds_up_neither_a_cycle_nor_the_end_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records = JobRecords(place_in(tmp_path), run_id="r")
    records.prepare()
    monkeypatch.setattr(keeping, "RECORD_SECONDS", 0.1)
    monkeypatch.setattr(keeping, "OUTCOME_SECONDS", 0.1)
    answers = threading.Event()
    files = records._files
    assert files is not None
    files.do("a write that hangs", lambda: answers.wait(30.0) and None)
    began = time.monotonic()
    records.before(Filled(round=0, active=("0-a",), at=0.0), attendance("n1"))
    records.before(Ended(reason=Reason.SUCCESS, exit_code=0, by="0-a"), attendance("n1"))
    assert time.monotonic() - began < 2
    assert "starts before its record" in caplog.text
    assert "without its outcome" in caplog.text
    answers.set()


def test_without_a_directory_the_judge_still_learns_when_a_cycle_begins(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.write_text("5")
    settings = ProgressSettings(max_cycles=1, min_cycle_seconds=0.0)
    judge = JobJudge(settings, by="0-a", no_restart_exit_code=93, marker_file=marker)
    records = JobRecords(None, run_id="r", judge=judge)
    records.prepare()
    filled = Filled(round=0, active=("0-a",), at=0.0)
    records.before(filled, attendance("n1"))
    records.heard(filled)
    assert records.close()
    assert judge.progress.count == 0
    assert judge(Opened(round=1, cause=Cause(kind="worker"), at=0.0), JobState(round=1)) is not None
