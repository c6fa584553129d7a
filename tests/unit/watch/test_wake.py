"""A change in a directory wakes the loop; the kind of the file system decides how changes are seen."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nvrx_watch.wake import FileWaker, file_system_of, is_routine

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/scratch /scratch nfs4 rw 0 0
tmpfs /scratch/fast tmpfs rw 0 0
lustre@tcp:/w /work\\040dir lustre rw 0 0
"""


def test_a_new_file_wakes(tmp_path: Path) -> None:
    woken = threading.Event()
    waker = FileWaker(woken.set)
    waker.follow([tmp_path])
    try:
        (tmp_path / "closed.json").write_text("{}")
        assert woken.wait(20)
    finally:
        waker.close()


def test_what_changes_all_the_time_wakes_nobody(tmp_path: Path) -> None:
    woken = threading.Event()
    waker = FileWaker(woken.set)
    waker.follow([tmp_path])
    try:
        for name in ("lease.0.json", ".closed.json.1.tmp", "joined.3.json", "inquiry.json"):
            (tmp_path / name).write_text("{}")
            assert is_routine(str(tmp_path / name))
        (tmp_path / "closed.json").write_text("{}")
        assert woken.wait(20)
    finally:
        waker.close()
    assert not is_routine(str(tmp_path / "closed.json"))
    assert not is_routine(str(tmp_path / "cycle_info.11.0.3"))


def test_a_site_that_is_out_of_watches_is_left_to_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoWatchesLeft:
        def __init__(self) -> None:
            raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.Observer", NoWatchesLeft)
    waker = FileWaker(lambda: None)
    waker.follow([tmp_path])
    assert waker._observers == {}
    waker.close()


def test_a_directory_that_is_not_there_is_left_to_the_interval(tmp_path: Path) -> None:
    waker = FileWaker(lambda: None)
    waker.follow([tmp_path / "nowhere"])
    waker.close()


def test_directories_that_are_no_longer_wanted_are_let_go(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    waker = FileWaker(lambda: None)
    waker.follow([tmp_path / "a", tmp_path / "b"])
    waker.follow([tmp_path / "b"])
    assert list(waker._observers) == [tmp_path / "b"]
    waker.close()
    assert waker._observers == {}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/scratch/run", "nfs4"),
        ("/scratch/fast/run", "tmpfs"),
        ("/scratchy", "ext4"),
        ("/work dir/run", "lustre"),
    ],
)
def test_the_longest_mount_point_decides(path: str, kind: str, tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert file_system_of(Path(path), table) == kind


def test_a_mount_table_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert file_system_of(Path("/x"), tmp_path / "none") is None
