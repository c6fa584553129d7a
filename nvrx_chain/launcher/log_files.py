"""The log files of a job, written by one process: opened by kind and cycle, appended to, turned by size.

Touches: the files that `LogPlaces` names, and nothing else.
"""

from __future__ import annotations

import collections
import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.log_settings import Kind, LogPlaces

OPEN_FILES = 8
"""Files that stay open; lines of an older cycle come rarely."""
BUFFERS_AT_ONCE = 512
"""Of one writev(2), which takes 1024."""


class NotALog(NvrxError):
    """What stands under the name of a log is no file that may be written to."""


@dataclass(slots=True, kw_only=True)
class LogFile:
    """One open file, as it was when it was asked for: the next byte goes to `offset`."""

    descriptor: int
    inode: int
    offset: int


class LogFiles:
    """Every log of a job. For one thread of one process."""

    def __init__(self, places: LogPlaces) -> None:
        self._places = places
        self._open: collections.OrderedDict[str, int] = collections.OrderedDict()

    def has(self, kind: Kind) -> bool:
        """Whether there is such a log."""
        return self._places.path_of(kind, 0) is not None

    def is_too_long(self, length: int) -> bool:
        """Whether a file of so many bytes is turned."""
        limit = self._places.rotate_bytes
        return limit is not None and length > limit

    def open(self, kind: Kind, cycle: int, coming: int | None = None) -> LogFile:
        """The file; turned first when so many bytes that are coming would make it too long. Raises OSError, NotALog."""
        path = self._places.path_of(kind, cycle)
        if path is None:
            raise NotALog(f"writing to the {kind.name.lower()} log", hint="there is none")
        found = self._current(path)
        if coming is not None and found.offset and self.is_too_long(found.offset + coming):
            self._turn(path)
            found = self._current(path)
        return found

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _current(self, path: str) -> LogFile:
        descriptor = self._open.pop(path, None)
        if descriptor is not None and os.fstat(descriptor).st_nlink == 0:
            # Somebody removed it: lines that go on into a file without a name are lost.
            os.close(descriptor)
            descriptor = None
        if descriptor is None:
            descriptor = _open_log(path)
        self._open[path] = descriptor
        while len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        status = os.fstat(descriptor)
        return LogFile(descriptor=descriptor, inode=status.st_ino, offset=status.st_size)

    def _turn(self, path: str) -> None:
        os.close(self._open.pop(path))
        for number in range(self._places.rotate_keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}.{number}", f"{path}.{number + 1}")
        os.replace(path, f"{path}.1")


class Appending:
    """Some bytes on their way into a file. `go` may fail and be called again: it goes on where it stopped."""

    def __init__(self, descriptor: int, buffers: Sequence[bytes]) -> None:
        self._descriptor = descriptor
        self.has_begun = False
        """Whether a part is in the file."""
        self._left = list(buffers)

    def go(self) -> None:
        """Write all that is left. Raises OSError."""
        while self._left:
            done = os.writev(self._descriptor, self._left[:BUFFERS_AT_ONCE])
            self.has_begun = True
            self._left = _after(self._left, done)


def _after(buffers: Sequence[bytes], done: int) -> list[bytes]:
    for index, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:] if done else buffer, *buffers[index + 1 :]]
        done -= len(buffer)
    return []


def _open_log(path: str) -> int:
    # Without O_NONBLOCK the open of a FIFO under this name would wait for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotALog("opening a log", part=path, hint="it is not a regular file")
    return descriptor
