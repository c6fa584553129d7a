"""Wakes the loop when a file of a run directory changes. An event only wakes: the pass reads everything anyway.

inotify sees no write of another node, so on network file systems the directories are listed now and then instead, by
one thread for each mount: one that hangs keeps only its own from being seen. Touches: watches on directories, threads.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvrx_watch.reading.mounts import mount_of, read_mount_points

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent

log = logging.getLogger(__name__)

POLL_SECONDS = 10.0
LOCAL_FILE_SYSTEMS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""Where inotify sees every write. Any other kind is polled."""

_MOUNTS = Path("/proc/self/mounts")

MOST_WATCHED = 64
"""Directories with inotify: watchdog keeps a thread for each. What is over that is polled too."""


class FileWaker:
    """Calls `wake` when a name in one of the directories changes."""

    def __init__(self, wake: Callable[[], None], *, poll_seconds: float = POLL_SECONDS) -> None:
        self._wake = wake
        self._poll_seconds = poll_seconds
        self._observer: Any = None
        self._watches: dict[Path, Any] = {}
        self._pollers: dict[str | None, _Poller] = {}

    def follow(self, directories: Iterable[Path]) -> None:
        """Watch these directories and no other, nothing below them. What cannot be watched is left to the interval."""
        wanted = sorted(set(directories))
        table = _read_table(_MOUNTS)
        local = [path for path in wanted if _kind_of(path, table) in LOCAL_FILE_SYSTEMS]
        watched = local[:MOST_WATCHED]
        for path in [path for path in self._watches if path not in watched]:
            self._end(path)
        for path in watched:
            if path not in self._watches:
                self._begin(path)
        self._poll([path for path in wanted if path not in watched])

    def close(self) -> None:
        """End every watch; threads are waited for briefly."""
        self._poll([])
        self._watches.clear()
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(timeout=1.0)
            self._observer = None

    def _begin(self, path: Path) -> None:
        # inotify watches are few (of a user, of a machine); what cannot be watched is left to the interval.
        try:
            if self._observer is None:
                self._observer = _start_observer()
            self._watches[path] = self._observer.schedule(_handler(self._wake), str(path), recursive=False)
        except OSError as error:
            log.info("a directory is not watched for changes path=%s error=%s", path, error)

    def _end(self, path: Path) -> None:
        try:
            self._observer.unschedule(self._watches.pop(path))
        except (KeyError, OSError) as error:
            log.info("a watch was gone already path=%s error=%s", path, error)

    def _poll(self, directories: Collection[Path]) -> None:
        points = read_mount_points() if directories else ()
        by_mount: dict[str | None, list[Path]] = {}
        for path in directories:
            by_mount.setdefault(mount_of(str(path), points), []).append(path)
        for mount in [mount for mount in self._pollers if mount not in by_mount]:
            self._pollers.pop(mount).stop()
        for mount, paths in by_mount.items():
            if mount not in self._pollers:
                self._pollers[mount] = _Poller(self._wake, self._poll_seconds)
            self._pollers[mount].directories = tuple(paths)


class _Poller:
    """A thread that lists the directories of one mount now and then. It may hang in a listing, and is never joined."""

    def __init__(self, wake: Callable[[], None], seconds: float) -> None:
        self._wake = wake
        self._seconds = seconds
        self._stopped = threading.Event()
        self._names: dict[Path, frozenset[str]] = {}
        self.directories: tuple[Path, ...] = ()
        threading.Thread(target=self._run, name="wake", daemon=True).start()

    def stop(self) -> None:
        """End after the present listing."""
        self._stopped.set()

    def _run(self) -> None:
        # Without a deadline: it ends with `stop` or with the process.
        while not self._stopped.wait(self._seconds):
            if self._look() and not self._stopped.is_set():
                self._wake()

    def _look(self) -> bool:
        directories = self.directories
        self._names = {path: names for path, names in self._names.items() if path in directories}
        changed = False
        for path in directories:
            try:
                names = frozenset(name for name in os.listdir(path) if not is_routine(name))
            except OSError as error:
                log.debug("a directory is not listed path=%s error=%s", path, error)
                continue
            before = self._names.get(path)
            self._names[path] = names
            changed = changed or (before is not None and before != names)
        return changed


def _start_observer() -> Any:
    from watchdog.observers import Observer

    observer = Observer()
    # It calls it an error, and says so on standard error, when its thread is told to end while it reads.
    logging.getLogger("watchdog.observers.inotify").setLevel(logging.CRITICAL)
    observer.start()
    return observer


def _handler(wake: Callable[[], None]) -> Any:
    from watchdog.events import FileSystemEventHandler

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            # Our own reads open and close files too: only what changes a directory's content counts.
            if event.event_type in ("created", "moved", "deleted") and not is_routine(str(event.src_path)):
                wake()

    return Handler()


def is_routine(path: str) -> bool:
    """Whether a name changes all the time by itself: leases, temporary names, a spare that comes to the gate."""
    return os.path.basename(path).startswith((".", "lease.", "joined.", "inquiry."))


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """The kind of file system below which `path` lies, from the mount table alone: nothing of the path is touched."""
    return _kind_of(path, _read_table(mounts))


def _read_table(mounts: Path) -> list[tuple[str, str]]:
    """Each mount point, without a slash at its end, and its kind. Empty when the table cannot be read."""
    try:
        text = mounts.read_text(errors="replace")
    except OSError as error:
        log.info("the mount table cannot be read error=%s", error)
        return []
    lines = [fields for line in text.splitlines() if len(fields := line.split(" ")) >= 3]
    return [(each[1].encode().decode("unicode_escape", errors="replace").rstrip("/"), each[2]) for each in lines]


def _kind_of(path: Path, table: list[tuple[str, str]]) -> str | None:
    best, kind = -1, None
    text = str(path)
    for point, each in table:
        # Of two mounts on one point the later one covers the earlier.
        if (text == point or text.startswith(point + "/")) and len(point) >= best:
            best, kind = len(point), each
    return kind
