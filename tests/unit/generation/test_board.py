"""What a task writes into the control directory, and what it believes of the others' files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvrx_chain.errors import RecordError, Unobserved, UsageError
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.hooks import VARIABLE, Hook, switched_off
from nvrx_chain.records.control import Closed, Joined, Lease, LeaseSeen, Left, Walltime
from nvrx_chain.records.outcome import Outcome
from tests.fakes.generation_lab import Lab, read


@pytest.fixture
def context(lab: Lab) -> TaskContext:
    return lab.context(1, 2)


def test_every_file_carries_the_stamp_of_its_writer(lab: Lab, context: TaskContext) -> None:
    board, directory = context.board, lab.directory(1)
    board.join()
    board.write_lease(3, 5.0, "running")
    board.leave("done")
    board.warn_of_walltime()
    files = [
        read(directory.joined(2), Joined),
        read(directory.lease(2), Lease),
        read(directory.left(2), Left),
        read(directory.walltime, Walltime),
    ]
    for record in files:
        assert {name: getattr(record, name) for name in context.identity.stamp()} == context.identity.stamp()
    assert read(directory.lease(2), Lease).counter == 3
    assert read(directory.joined(2), Joined).nodes == ("n3",)


def test_the_first_to_close_wins_and_the_others_are_told(lab: Lab, context: TaskContext) -> None:
    seen = LeaseSeen(counter=7, still_seconds=40.0, interval_seconds=5.0)
    assert context.board.close(Outcome.LEASE_LOST, exit_code=None, evidence=("dead",), leases={0: seen, 10: seen})
    other = lab.context(1, 1)
    assert not other.board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={})
    closed = read(lab.directory(1).closed, Closed)
    assert (closed.outcome, closed.array_task_id, closed.evidence) == (Outcome.LEASE_LOST, 2, ("dead",))
    assert closed.leases == {"0": seen, "10": seen}
    assert other.board.closed() == closed


def test_a_later_generation_that_closes_an_earlier_one_stamps_it_with_that_one(lab: Lab) -> None:
    successor = lab.context(5, 0)
    board = Board(lab.directory(1), successor.identity, lab.clock)
    board.prepare()
    assert board.close(Outcome.SUPERSEDED, exit_code=None, evidence=(), leases={})
    closed = read(lab.directory(1).closed, Closed)
    assert closed.array_job_id == 1
    assert "5_0" in closed.closed_by
    assert lab.closed(1) == closed


def test_a_damaged_closed_file_is_neither_open_nor_closed(lab: Lab, context: TaskContext) -> None:
    assert context.board.closed() is None
    lab.directory(1).closed.write_text("{")
    assert isinstance(context.board.closed(), Unobserved)


def test_a_file_of_another_generation_counts_as_absent(lab: Lab, context: TaskContext) -> None:
    other = lab.context(5, 0)
    other.board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={})
    lab.directory(1).closed.write_bytes(lab.directory(5).closed.read_bytes())
    assert context.board.closed() is None


def test_a_lease_that_cannot_be_read_is_told_from_one_that_was_never_written(lab: Lab, context: TaskContext) -> None:
    assert context.board.look_for_lease(0) is None
    lab.directory(1).lease(0).write_text("")
    assert isinstance(context.board.look_for_lease(0), Unobserved)
    assert context.board.lease(0) is None
    assert context.board.leases((0, 1)) == {}


def test_an_owner_that_is_not_the_job_s_is_not_believed(lab: Lab, context: TaskContext) -> None:
    context.board.write_lease(1, 5.0, "x")
    owner = lab.directory(1).lease(2).stat().st_uid
    if owner == 0:
        os.chown(lab.directory(1).lease(2), 12345, -1)
        owner = 12345
    assert replace(context.board, owner_uid=owner).lease(2) is not None
    assert replace(context.board, owner_uid=owner + 1).lease(2) is None


def test_directories_are_made_once_by_whoever_comes_first(lab: Lab) -> None:
    first, second = lab.context(6, 0), lab.context(6, 1)
    first.board.prepare()
    second.board.prepare()
    assert lab.directory(6).control.is_dir()
    assert lab.directory(6).logs.is_dir()
    assert lab.directory(6).cycle_infos.is_dir()


def test_a_directory_that_cannot_be_made_is_an_error_with_its_path(lab: Lab, context: TaskContext) -> None:
    path = lab.run.generations / "9"
    path.write_text("")
    board = Board(lab.directory(9), context.identity, lab.clock)
    with pytest.raises(RecordError, match="making"):
        board.prepare()


@pytest.mark.parametrize("name", ["", "control", "logs", "cycle_infos"])
def test_a_link_in_place_of_a_directory_is_not_written_through(
    lab: Lab, context: TaskContext, tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = lab.run.generations / "9" / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(elsewhere)
    board = Board(lab.directory(9), context.identity, lab.clock)
    with pytest.raises(RecordError, match="no directory of ours"):
        board.prepare()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="gives a directory away")
def test_a_directory_of_somebody_else_is_not_used(lab: Lab, context: TaskContext) -> None:
    lab.directory(9).control.mkdir(parents=True)
    os.chown(lab.directory(9).control, 12345, -1)
    board = Board(lab.directory(9), context.identity, lab.clock, os.geteuid())
    with pytest.raises(RecordError, match="no directory of ours"):
        board.prepare()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_nobody_else_may_write_what_a_task_writes(lab: Lab, context: TaskContext, umask: int) -> None:
    board = Board(lab.directory(9), replace(context.identity, array_job_id=9), lab.clock)
    before = os.umask(umask)
    try:
        board.prepare()
        board.join()
        board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={})
    finally:
        os.umask(before)
    made = [lab.run.generations / "9", *(lab.run.generations / "9").rglob("*")]
    assert len(made) >= 6
    assert not [path for path in made if path.stat().st_mode & 0o022]


# The switches of the tests


def test_nothing_is_switched_off_by_itself() -> None:
    assert not any(switched_off(hook) for hook in Hook)


def test_only_what_is_named_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-fence,no-resume")
    assert [hook for hook in Hook if switched_off(hook)] == [Hook.NO_FENCE, Hook.NO_RESUME]


def test_a_word_that_is_no_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-fence,no-brake")
    with pytest.raises(UsageError, match="no-brake"):
        switched_off(Hook.NO_FENCE)
