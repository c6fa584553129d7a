"""Clearing a run directory: whatever an interrupted call left is moved by the next, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_chain.errors import RecordError
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.submit.rundir import make_directories, move_submissions, move_to_history
from tests.unit.submit.chains import NASTY

RECORDS = ("chain.json", "chain_outcome.json", "hold.json")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "not" / "there" / NASTY)
    make_directories(run, os.getuid())
    return run


def fill(run: RunDirectory) -> None:
    for name in RECORDS:
        (run.path / name).write_text(name)
    run.submissions.mkdir(exist_ok=True)
    run.intent(1).write_text("intent")


def test_a_fresh_directory_has_nothing_to_move(run: RunDirectory) -> None:
    assert move_to_history(run, "old") is None
    assert list(run.history.iterdir()) == []


def test_the_records_of_a_chain_move_together(run: RunDirectory) -> None:
    fill(run)
    target = move_to_history(run, "old")
    assert target == run.history / "old"
    assert {path.name for path in target.iterdir()} == {*RECORDS, "submissions"}
    assert not run.manifest.exists()


@pytest.mark.parametrize("moved", range(4))
def test_a_move_that_was_interrupted_is_finished_by_the_next(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    fill(run)
    rename, count = os.rename, [0]

    def interrupted(source: Path, target: Path) -> None:
        if count[0] == moved:
            raise KeyboardInterrupt
        count[0] += 1
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            move_to_history(run, "old")
    # chain.json goes first: without it the rest belongs to no chain.
    assert run.manifest.exists() is (moved == 0)
    move_to_history(run, "old")
    kept = {path.name for place in run.history.iterdir() for path in place.iterdir()}
    assert kept == {*RECORDS, "submissions"}
    assert not any((run.path / name).exists() for name in RECORDS)


def test_an_older_history_of_that_name_is_kept(run: RunDirectory) -> None:
    for _ in range(3):
        fill(run)
        move_to_history(run, "old")
    assert sorted(path.name for path in run.history.iterdir()) == ["old", "old.2", "old.3"]


def test_single_submissions_are_taken_off_the_record(run: RunDirectory) -> None:
    for sequence in (1, 2):
        run.intent(sequence).write_text("intent")
        run.submission_id(sequence).write_text("id")
    move_submissions(run, [2], "back")
    assert sorted(path.name for path in run.submissions.iterdir()) == ["0001.id.json", "0001.json"]
    assert sorted(path.name for path in (run.history / "back").iterdir()) == ["0002.id.json", "0002.json"]


def test_taking_off_nothing_makes_no_history(run: RunDirectory) -> None:
    move_submissions(run, [], "back")
    assert list(run.history.iterdir()) == []


def test_a_directory_of_somebody_else_is_refused(run: RunDirectory) -> None:
    with pytest.raises(RecordError, match="no directory of ours"):
        make_directories(run, os.getuid() + 1)


def test_a_directory_that_cannot_be_made_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"making .*file: File exists"):
        make_directories(RunDirectory(tmp_path / "file" / "run"), os.getuid())
