"""Wakes the loop when a file of a run directory changes. An event only wakes: the pass reads everything anyway.

inotify sees no write of another node, so on network file systems the directories are polled instead. Touches: watches
on directories, threads.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent

log = logging.getLogger(__name__)

POLL_SECONDS = 10.0
LOCAL_FILE_SYSTEMS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""Where inotify sees every write. Any other kind is polled."""


class FileWaker:
    """Calls `wake` when a name in one of the directories changes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._observers: dict[Path, Any] = {}

    def follow(self, directories: Iterable[Path]) -> None:
        """Watch these directories and no other, nothing below them. What cannot be watched is left to the interval."""
        wanted = set(directories)
        for path in [path for path in self._observers if path not in wanted]:
            self._end(path)
        for path in sorted(wanted - set(self._observers)):
            self._begin(path)

    def close(self) -> None:
        """End every watch; threads are waited for briefly."""
        for path in list(self._observers):
            self._end(path)

    def _begin(self, path: Path) -> None:
        from watchdog.events import FileSystemEventHandler
        from watchdog.observers import Observer
        from watchdog.observers.polling import PollingObserver

        wake = self._wake

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                # Our own reads open and close files too: only what changes a directory's content counts.
                if event.event_type in ("created", "moved", "deleted") and not is_routine(str(event.src_path)):
                    wake()

        is_local = file_system_of(path) in LOCAL_FILE_SYSTEMS

        def start() -> None:
            # inotify instances are few (128 a user); what cannot be watched is left to the interval.
            try:
                observer: Any = Observer() if is_local else PollingObserver(timeout=POLL_SECONDS)
                observer.schedule(Handler(), str(path), recursive=False)
                observer.start()
            except OSError as error:
                log.info("a directory is not watched for changes path=%s error=%s", path, error)
                return
            self._observers[path] = observer

        if is_local:
            start()
        else:
            # Polling looks at the directory before it returns, and a dead mount must not hold up the passes.
            self._observers[path] = None
            threading.Thread(target=start, name="wake", daemon=True).start()

    def _end(self, path: Path) -> None:
        observer = self._observers.pop(path)
        if observer is None:
            return
        observer.stop()
        # A polling thread may sit in a hung mount: it is a daemon thread and is left behind.
        observer.join(timeout=1.0)


def is_routine(path: str) -> bool:
    """Whether a name changes all the time by itself: leases, temporary names, a spare that comes to the gate."""
    return os.path.basename(path).startswith((".", "lease.", "joined.", "inquiry."))


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The kind of file system below which `path` lies, from the mount table alone: nothing of the path is touched."""
    best, kind = -1, None
    text = str(path)
    try:
        table = mounts.read_text(errors="replace")
    except OSError as error:
        log.info("the mount table cannot be read error=%s", error)
        return None
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape", errors="replace").rstrip("/")
        if (text == point or text.startswith(point + "/")) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind
