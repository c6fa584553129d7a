"""The verdict about a job: from the marker, from a file that somebody else wrote, and never from what is unreadable."""

from __future__ import annotations

import os
import queue
import time
from pathlib import Path

import pytest

from nvrx_chain.launcher import judge as judge_module
from nvrx_chain.launcher.events import Cause, Ended, JobState, Opened
from nvrx_chain.launcher.judge import JobJudge, VerdictFile, parse_verdict
from nvrx_chain.launcher.progress import ProgressSettings
from nvrx_chain.launcher.reasons import Reason
from nvrx_chain.launcher.verdict import Exclusion

EVERY_CYCLE = ProgressSettings(min_cycle_seconds=0.0)


def make(marker: Path | None, *, verdict: Path | None = None, settings: ProgressSettings = EVERY_CYCLE) -> JobJudge:
    return JobJudge(settings, by="0-host", no_restart_exit_code=93, marker_file=marker, verdict_file=verdict)


def fail(judge: JobJudge, cycle: int, agent: str = "", kind: str = "worker") -> Ended | Exclusion | None:
    judge.began(cycle)
    opened = Opened(round=cycle + 1, cause=Cause(kind=kind, agent_id=agent), at=0.0)
    return judge(opened, JobState(round=cycle + 1))


def test_no_progress_in_three_cycles_ends_the_job_with_the_no_restart_code_and_says_why(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.write_text("70\n")
    judge = make(marker)
    assert [fail(judge, 0), fail(judge, 1)] == [None, None]
    end = fail(judge, 2)
    assert isinstance(end, Ended)
    assert (end.reason, end.exit_code, end.by) == (Reason.NO_PROGRESS, 93, "0-host")
    assert "iteration 70" in end.detail
    assert str(marker) in end.detail


def test_whoever_failed_first_in_those_cycles_is_excluded_once_and_the_cycles_begin_anew(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.write_text("70")
    judge = make(marker)
    found = [fail(judge, cycle, agent="3-a") for cycle in range(6)]
    assert found[:2] + found[3:5] == [None] * 4
    assert isinstance(found[2], Exclusion)
    assert found[2].agent_ids == ("3-a",) * 3
    assert found[2].otherwise.reason is Reason.NO_PROGRESS
    assert isinstance(found[5], Ended)


def test_nobody_is_blamed_for_a_restart_that_a_person_asked_for(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.write_text("70")
    judge = make(marker)
    assert isinstance([fail(judge, cycle, agent="3-a", kind="manual") for cycle in range(3)][-1], Ended)


def test_a_round_that_was_never_filled_is_no_cycle(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.write_text("70")
    judge = make(marker)
    for number in range(9):
        assert judge(Opened(round=number + 1, cause=Cause(kind="worker"), at=0.0), JobState(round=number + 1)) is None


@pytest.mark.parametrize("content", ["", "release", "12 13", "-1", "\0", "1e3", "9" * 400])
def test_a_marker_that_is_no_number_ends_nothing(tmp_path: Path, content: str) -> None:
    marker = tmp_path / "marker"
    marker.write_text(content)
    judge = make(marker)
    assert [fail(judge, cycle) for cycle in range(9)] == [None] * 9


def test_without_a_marker_or_with_the_limit_off_only_the_order_from_outside_counts(tmp_path: Path) -> None:
    marker, order = tmp_path / "marker", tmp_path / "order"
    marker.write_text("1")
    for judge in (make(None, verdict=order), make(marker, verdict=order, settings=ProgressSettings(max_cycles=0))):
        assert [fail(judge, cycle) for cycle in range(5)] == [None] * 5
    order.write_text("the data set is broken\nsecond line\n")
    end = fail(judge, 5)
    assert isinstance(end, Ended)
    assert (end.reason, end.exit_code) == (Reason.EXTERNAL_STOP, 93)
    assert end.detail == f"the data set is broken ({order})"


def test_a_marker_that_does_not_answer_holds_up_one_restart_for_the_limit_and_the_next_ones_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    marker.write_text("1")
    judge = make(marker)
    release = queue.Queue[None]()
    monkeypatch.setattr(judge_module, "READ_SECONDS", 0.2)
    # Only the file system call itself can hang, so that is what is replaced.
    monkeypatch.setattr(judge_module, "read_iteration", lambda path: release.get(timeout=30))
    began = time.monotonic()
    assert fail(judge, 0) is None
    assert 0.2 <= time.monotonic() - began < 2
    began = time.monotonic()
    assert [fail(judge, cycle) for cycle in range(1, 9)] == [None] * 8
    assert time.monotonic() - began < 0.2
    assert judge.progress.count == 0
    release.put(None)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"reason": "loss is NaN", "detail": "seen by eve"}', "loss is NaN: seen by eve"),
        (b'{"other": 1}', "no reason given"),
        (b"stop it\r\n", "stop it"),
        (b'{"reason": ', '{"reason":'),
        (b"[1, 2]", "[1, 2]"),
        (b"\xff\x1b[31mred", "� [31mred"),
        (b"", "no reason given"),
        (b"x" * 4000, "x" * 500),
        (b"[" * 4000, "[" * 500),
    ],
)
def test_whatever_the_order_holds_its_reason_is_one_harmless_line(content: bytes, why: str) -> None:
    assert parse_verdict(content) == why


def test_an_empty_order_counts_at_the_second_look(tmp_path: Path) -> None:
    order = tmp_path / "order"
    file = VerdictFile(order)
    assert file.look() is None
    order.touch()
    assert file.look() is None
    assert file.look() == f"no reason given ({order})"


def test_what_is_no_regular_file_is_no_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    for name in ("fifo", "link", "directory"):
        file = VerdictFile(tmp_path / name)
        assert [file.look(), file.look()] == [None, None]


def test_an_order_is_seen_while_the_job_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "LOOK_SECONDS", 0.02)
    order = tmp_path / "order"
    posted: queue.Queue[tuple[Reason, str]] = queue.Queue()
    judge = make(None, verdict=order)
    judge.watch(lambda reason, detail: posted.put((reason, detail)))
    with pytest.raises(queue.Empty):
        posted.get(timeout=0.1)
    order.write_text('{"reason": "enough"}')
    assert posted.get(timeout=10) == (Reason.EXTERNAL_STOP, f"enough ({order})")


def test_how_often_the_marker_changes_is_learnt_while_the_job_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(judge_module, "MARKER_LOOK_SECONDS", 0.01)
    marker = tmp_path / "marker"
    marker.write_text("1")
    judge = make(marker, settings=ProgressSettings())
    judge.began(0)
    judge.watch(lambda reason, detail: None)
    deadline = time.monotonic() + 10
    value = 1
    while judge.observed_interval is None:
        assert time.monotonic() < deadline
        value += 1
        marker.write_text(str(value))
        time.sleep(0.03)
    judge.close()
    assert 0.01 < judge.observed_interval < 5
