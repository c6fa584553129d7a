"""A change in a directory wakes the loop; the kind of the file system decides how changes are seen."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from watchdog.observers.api import BaseObserver

from nvrx_watch.wake import FileWaker, _Poller, file_system_of, is_routine

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
    assert waker._watches == {}
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
    assert list(waker._watches) == [tmp_path / "b"]
    waker.close()
    assert waker._watches == {}


def directories(root: Path, count: int) -> list[Path]:
    found = [root / f"run {number} & #1" for number in range(count)]
    for path in found:
        path.mkdir()
    return found


def test_all_directories_share_one_observer(tmp_path: Path) -> None:
    woken = threading.Event()
    waker = FileWaker(woken.set)
    places = directories(tmp_path, 20)
    before = observers()
    waker.follow(places)
    try:
        assert len(waker._watches) == 20
        assert len(observers() - before) == 1
        (places[-1] / "closed.json").write_text("{}")
        assert woken.wait(20)
    finally:
        waker.close()
    assert observers() == before


def observers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if isinstance(thread, BaseObserver)}


def pollers() -> int:
    return sum(thread.name == "wake" for thread in threading.enumerate())


def test_network_file_systems_are_polled_by_one_thread_for_each_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvrx_watch.wake.LOCAL_FILE_SYSTEMS", frozenset())
    places = directories(tmp_path, 20)
    monkeypatch.setattr("nvrx_watch.wake.read_mount_points", lambda: (str(places[0]),))
    woken = threading.Event()
    waker = FileWaker(woken.set, poll_seconds=0.01)
    before = pollers()
    waker.follow(places)
    try:
        assert (waker._watches, pollers() - before) == ({}, 2)
        for place in (places[0], places[-1]):
            woken.clear()
            assert wakes(place, woken)
    finally:
        waker.close()


def wakes(place: Path, woken: threading.Event) -> bool:
    """Whether new names wake. The first listing wakes nobody, so that there is more than one."""
    for number in range(1000):
        (place / f"closed.{number}").write_text("{}")
        if woken.wait(0.02):
            return True
    return False


def test_routine_names_wake_no_poller(tmp_path: Path) -> None:
    poller = _Poller(lambda: None, 3600.0)
    poller.directories = (tmp_path, tmp_path / "nowhere")
    assert not poller._look()
    (tmp_path / "lease.0.json").write_text("{}")
    assert not poller._look()
    (tmp_path / "closed.json").write_text("{}")
    assert poller._look()
    assert not poller._look()
    poller.stop()


def test_what_is_too_much_for_inotify_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvrx_watch.wake.MOST_WATCHED", 2)
    woken = threading.Event()
    waker = FileWaker(woken.set, poll_seconds=0.01)
    places = directories(tmp_path, 5)
    waker.follow(places)
    try:
        assert list(waker._watches) == places[:2]
        assert wakes(places[4], woken)
    finally:
        waker.close()


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
