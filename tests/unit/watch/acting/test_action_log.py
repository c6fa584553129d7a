"""Every action leaves one line; a log that cannot be written or read costs lines and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import Unobserved
from nvrx_watch.acting import action_log
from nvrx_watch.acting.action_log import ActionLine, append_action, read_actions
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.model import ActionKind, ActionRequest
from tests.unit.watch.acting.scene import Scene
from tests.unit.watch.build import NOW


def report(why: str = "why", number: int = 11) -> ActionReport:
    request = ActionRequest(kind=ActionKind.CANCEL_PENDING, array_job_id=number, why="", command="")
    return ActionReport(detector="d", request=request, state=ActionState.DONE, asked=("11_4",), gone=("11_4",), why=why)


def append(path: Path, **given: object) -> None:
    append_action(path, report(**given), chain="key", by="nvrx-watch on h", at=NOW)  # type: ignore[arg-type]


def read(path: Path, most: int = 10) -> tuple[ActionLine, ...]:
    found = read_actions(path, most)
    assert not isinstance(found, Unobserved), found
    return found


def test_lines_are_appended_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "actions & #.jsonl"
    assert read(path) == ()
    for number in (11, 12, 13):
        append(path, number=number)
    assert [line.array_job_id for line in read(path, 2)] == [12, 13]
    last = read(path)[-1]
    assert (last.action, last.state, last.asked, last.by) == ("cancel_pending", "done", ("11_4",), "nvrx-watch on h")


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(300):
        append(path, number=number, why="x" * 500)
    assert [line.array_job_id for line in read(path, 5)] == [295, 296, 297, 298, 299]


def test_a_log_that_grew_too_large_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_log, "MAX_BYTES", 1000)
    path = tmp_path / "log"
    for _ in range(40):
        append(path)
    assert path.with_name("log.1").stat().st_size <= 2000
    assert not path.exists() or path.stat().st_size <= 1000


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_what_is_no_file_is_neither_written_nor_read(
    tmp_path: Path, make: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    make(path)  # type: ignore[operator]
    append(path)
    assert "not logged" in caplog.text
    assert isinstance(read_actions(path, 5), Unobserved)


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    append(tmp_path / "none" / "log")
    lines = read_actions(tmp_path / "none" / "log", 5)
    assert isinstance(lines, tuple)
    assert len(lines) == 1


def test_a_directory_that_cannot_be_made_costs_the_line_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    append(tmp_path / "file" / "log")
    assert "not logged" in caplog.text


@given(st.binary(max_size=300))
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(junk + b"\n")
    append(path)
    assert read(path)[-1].why == "why"


def test_an_action_is_logged_and_what_was_only_observed_is_not(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "actions.jsonl"
    scene.orphan()
    seen = scene.snapshot()
    for rights in (scene.rights(act=False), scene.rights(dry_run=True), scene.rights()):
        scene.act(ActionKind.CANCEL_PENDING, 11, snapshot=seen, desk=scene.desk(rights=rights, action_log=path))
    (line,) = read(path)
    assert (line.state, line.chain, line.asked) == ("done", "key", ("11_4", "11_5", "11_6"))
