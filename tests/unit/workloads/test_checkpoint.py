"""What is on disk before, while and after a checkpoint is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import RecordError
from nvrx_chain.workloads.checkpoint import TRACKER_NAME, CheckpointMetadata, CheckpointStore, write_done_file
from nvrx_chain.workloads.options import ModelShape

FILES = {"model.pt": b"weights", "optimizer.pt": b"moments" * 100}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "check points & 100%"


@pytest.fixture
def store(directory: Path) -> CheckpointStore:
    return CheckpointStore(directory, keep=2, save_seconds=0, clock=SystemClock())


def metadata(iteration: int) -> CheckpointMetadata:
    return CheckpointMetadata(
        iteration=iteration,
        data_position=iteration,
        world_size=1,
        seed=1,
        model=ModelShape(),
        files={},
        written_at="2026-01-01T00:00:00Z",
        host="node-1",
    )


def save(store: CheckpointStore, *iterations: int) -> None:
    for iteration in iterations:
        store.write(metadata(iteration), FILES)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_checkpoint_reads_back_as_written(store: CheckpointStore) -> None:
    save(store, 100)
    checkpoint = store.read(100)
    assert checkpoint.files == FILES
    assert checkpoint.metadata.iteration == 100
    assert set(checkpoint.metadata.files) == set(FILES)
    assert store.tracked_iteration() == 100
    assert store.ignored_after(100) == ()


def test_nothing_yet_is_a_fresh_start(store: CheckpointStore, directory: Path) -> None:
    assert store.tracked_iteration() is None
    directory.mkdir()
    assert store.tracked_iteration() is None


def test_only_the_newest_are_kept(store: CheckpointStore, directory: Path) -> None:
    save(store, 10, 20, 30)
    assert names(directory) == ["iter_0000020", "iter_0000030", TRACKER_NAME]


def test_what_a_kill_left_behind_is_cleared_by_the_next_save(store: CheckpointStore, directory: Path) -> None:
    leftovers = [directory / ".tmp_iter_0000010.node-1.77.abcd", directory / ".old_iter_0000005.abcd"]
    for leftover in leftovers:
        leftover.mkdir(parents=True)
        (leftover / "model.pt").write_bytes(b"half")
    unrelated = directory / ".tmp_notes"
    unrelated.mkdir()
    save(store, 10)
    assert names(directory) == [".tmp_notes", "iter_0000010", TRACKER_NAME]


def test_a_checkpoint_that_was_never_announced_is_replaced(store: CheckpointStore, directory: Path) -> None:
    save(store, 10, 20)
    (directory / TRACKER_NAME).write_text("10\n")
    (directory / "iter_0000020" / "model.pt").write_bytes(b"of another time line")
    (ignored,) = store.ignored_after(10)
    assert ignored.iteration == 20
    assert "damaged" in ignored.reason
    save(store, 20)
    assert store.read(20).files == FILES


def test_a_whole_but_unannounced_checkpoint_is_told_from_a_damaged_one(store: CheckpointStore, directory: Path) -> None:
    save(store, 10, 20)
    (directory / TRACKER_NAME).write_text("10\n")
    (ignored,) = store.ignored_after(10)
    assert ignored.reason == "whole, but the tracker does not name it"


def test_the_checkpoint_that_the_tracker_names_is_never_written_over(store: CheckpointStore, directory: Path) -> None:
    save(store, 10)
    before = names(directory / "iter_0000010")
    with pytest.raises(RecordError, match=r"the tracker names it already.*another run"):
        save(store, 10)
    assert names(directory / "iter_0000010") == before
    assert store.read(10).files == FILES


def test_a_save_that_cannot_be_written_leaves_the_one_before(store: CheckpointStore, directory: Path) -> None:
    save(store, 10)
    with pytest.raises(RecordError, match=r"writing .*no such directory.*model\.pt"):
        store.write(metadata(20), {"no such directory/model.pt": b"x"})
    assert store.tracked_iteration() == 10
    assert store.read(10).files == FILES
    save(store, 20)
    assert store.tracked_iteration() == 20


def test_a_prune_after_a_roll_back_spares_the_checkpoint_just_written(store: CheckpointStore, directory: Path) -> None:
    save(store, 50, 100, 110)
    shutil.copytree(directory / "iter_0000100", directory / "iter_0000050")
    (directory / TRACKER_NAME).write_text("50")
    save(store, 60)
    assert store.tracked_iteration() == 60
    assert store.read(60).files == FILES


@pytest.mark.parametrize("text", ["100\n", " 100 ", "0000100"])
def test_a_tracker_with_one_number_is_read(store: CheckpointStore, directory: Path, text: str) -> None:
    directory.mkdir()
    (directory / TRACKER_NAME).write_text(text)
    assert store.tracked_iteration() == 100


@pytest.mark.parametrize("text", ["", "release", "100\n200", "1e3", "-5", "٣", "9" * 5000, "iter_0000100", "1 0"])
def test_a_tracker_that_is_no_number_is_never_taken_for_a_fresh_start(
    store: CheckpointStore, directory: Path, text: str
) -> None:
    save(store, 10)
    (directory / TRACKER_NAME).write_text(text)
    with pytest.raises(RecordError, match=r"not one iteration.*intact here: 10"):
        store.tracked_iteration()


def test_a_tracker_that_cannot_be_read_is_never_taken_for_a_fresh_start(
    store: CheckpointStore, directory: Path
) -> None:
    directory.mkdir()
    (directory / TRACKER_NAME).symlink_to("elsewhere")
    with pytest.raises(RecordError, match="symbolic link"):
        store.tracked_iteration()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def flip(path: Path) -> None:
    path.write_bytes(b"W" + path.read_bytes()[1:])


@pytest.mark.parametrize("damage", [cut, lengthen, flip, Path.unlink])
@pytest.mark.parametrize("name", ["model.pt", "metadata.json"])
def test_every_damage_is_found_and_an_intact_checkpoint_is_named(
    store: CheckpointStore, directory: Path, damage: object, name: str
) -> None:
    save(store, 10, 20)
    assert callable(damage)
    damage(directory / "iter_0000020" / name)
    with pytest.raises(RecordError, match=r"iter_0000020.*intact here: 10"):
        store.read(20)
    assert len(store.ignored_after(10)) == 1


def test_a_directory_under_the_name_of_another_iteration_is_refused(store: CheckpointStore, directory: Path) -> None:
    save(store, 10)
    (directory / "iter_0000010").rename(directory / "iter_0000011")
    with pytest.raises(RecordError, match="it is that of iteration 10"):
        store.read(11)


def test_a_missing_checkpoint_is_an_error_with_a_way_out(store: CheckpointStore) -> None:
    save(store, 10)
    with pytest.raises(RecordError) as caught:
        store.read(20)
    assert "iter_0000020: it is missing" in caught.value.message
    assert caught.value.hint == f"{TRACKER_NAME} names it; intact here: 10"


def test_the_done_file_is_one_number_and_its_directory_is_made(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "done"
    write_done_file(path, 12)
    assert path.read_text() == "12\n"
    write_done_file(None, 12)
