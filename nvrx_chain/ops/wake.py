"""Waking a reader when a file below a directory changes. Only a convenience: who is woken must also come by himself.

Touches: inotify, through watchdog and its threads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

log = logging.getLogger(__name__)

_END_SECONDS = 5.0


class _Waker(FileSystemEventHandler):
    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in ("created", "modified", "moved"):
            self._wake.set()


@contextlib.contextmanager
def wake_on_change(directory: Path, wake: threading.Event, *, recursive: bool = True) -> Iterator[None]:
    """Set `wake` when something below `directory` is written on this node. Without inotify nothing is ever set."""
    observer = Observer()
    # It calls it an error, and says so on standard error, when its thread is told to end while it reads.
    logging.getLogger("watchdog.observers.inotify").setLevel(logging.CRITICAL)
    try:
        observer.schedule(_Waker(wake), str(directory), recursive=recursive)
        observer.start()
    except OSError as error:
        # Not there yet, or the user's inotify watches are used up.
        log.debug("no wake-ups directory=%s error=%s", directory, error)
        yield
        return
    try:
        yield
    finally:
        observer.stop()
        observer.join(_END_SECONDS)
