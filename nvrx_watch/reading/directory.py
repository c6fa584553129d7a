"""One directory, opened once, and small files in it. Touches: those files, reads only.

A path is walked once per directory instead of once per file: a chain has tens of thousands of them. The rules are those
of records/files.py: no link is followed, no FIFO blocks, nobody else's file is believed, sizes are capped.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.files import MAX_RECORD_BYTES

T = TypeVar("T")

SETTLED_SECONDS = 2.0
"""A directory that changed less than this before it was listed may change again without showing it: time stamps of
file systems have up to this granularity."""

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
_STALE_RETRIES = 3


class DirectoryStamp(msgspec.Struct, frozen=True):
    """By what a change of the names in a directory shows: another inode or another time of change."""

    inode: int
    changed_ns: int

    def is_settled(self, now: float) -> bool:
        """Whether no name can have come, at the wall clock time `now`, without another stamp."""
        return now - self.changed_ns / 1e9 > SETTLED_SECONDS


class OpenDirectory:
    """A directory to list and to read from. Use as a context manager. `owner_uid` None: files of anybody."""

    def __init__(self, path: str | Path, owner_uid: int | None) -> None:
        """Raises OSError, also ValueError for a path with a NUL byte."""
        self.path = str(path)
        self._owners = None if owner_uid is None else (owner_uid, 0)
        self._descriptor = os.open(self.path, _DIRECTORY_FLAGS)

    def __enter__(self) -> OpenDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; nothing can be read afterwards."""
        os.close(self._descriptor)

    def stamp(self) -> DirectoryStamp:
        """The stamp now; take it before the listing that it stands for. Raises OSError."""
        status = os.fstat(self._descriptor)
        return DirectoryStamp(status.st_ino, status.st_mtime_ns)

    def names(self) -> list[str]:
        """The names in it, in no order. Raises OSError."""
        return os.listdir(self._descriptor)

    def read(self, name: str, max_bytes: int = MAX_RECORD_BYTES) -> tuple[bytes, int] | Unobserved | None:
        """The content of a regular file and its time of change in ns; None when it is not there."""
        for _ in range(_STALE_RETRIES):
            try:
                return self._read_once(name, max_bytes)
            except FileNotFoundError:
                return None
            except OSError as error:
                # A rename on the server leaves an NFS client with a stale handle; the next open gets the new file.
                if error.errno == errno.ESTALE:
                    continue
                reason = "a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
                return Unobserved(f"reading {self.path}/{name}: {reason}")
        return Unobserved(f"reading {self.path}/{name}: stale file handle, {_STALE_RETRIES} times")

    def _read_once(self, name: str, max_bytes: int) -> tuple[bytes, int] | Unobserved:
        descriptor = os.open(name, _FILE_FLAGS, dir_fd=self._descriptor)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return Unobserved(f"{self.path}/{name} is not a regular file")
            if self._owners is not None and status.st_uid not in self._owners:
                return Unobserved(f"{self.path}/{name} belongs to uid {status.st_uid}, not to uid {self._owners[0]}")
            if status.st_size > max_bytes:
                return Unobserved(f"{self.path}/{name} is larger than {max_bytes} bytes")
            # One more than the size: a file that grows meanwhile is seen to be longer, and read again in the next pass.
            content = os.read(descriptor, status.st_size + 1)
            # A signal or a busy server may give less than was asked for.
            while 0 < len(content) < status.st_size and (more := os.read(descriptor, status.st_size - len(content))):
                content += more
            return content, status.st_mtime_ns
        finally:
            os.close(descriptor)

    def record(self, name: str, kind: type[T]) -> tuple[T, int] | Unobserved | None:
        """One JSON record of a known kind and its time of change in ns; None when it is not there."""
        found = self.read(name)
        if found is None or isinstance(found, Unobserved):
            return found
        try:
            record = msgspec.json.decode(found[0], type=kind)
            # A number of more than 64 bits can be neither cached nor anything of ours.
            msgspec.msgpack.encode(record)
            return record, found[1]
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, ValueError) as error:
            return Unobserved(f"{self.path}/{name} is no {kind.__name__}: {error}")


def open_directory(path: str | Path, owner_uid: int | None) -> OpenDirectory | Unobserved | None:
    """A directory to read from; None when there is none."""
    try:
        return OpenDirectory(path, owner_uid)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Unobserved(f"opening {path}: {error.strerror or error}")
    except ValueError as error:
        return Unobserved(f"opening {str(path)!r}: {error}")


def look_at_directory(path: str) -> DirectoryStamp | Unobserved | None:
    """The stamp of a directory without opening it, which an NFS client may answer from memory; None for none."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        return Unobserved(f"looking at {path[:200]!r}: {error}")
    return DirectoryStamp(status.st_ino, status.st_mtime_ns)


def list_directory(path: str | Path) -> list[str] | Unobserved | None:
    """The names in a directory; None when there is none."""
    opened = open_directory(path, None)
    if opened is None or isinstance(opened, Unobserved):
        return opened
    with opened:
        try:
            return opened.names()
        except OSError as error:
            return Unobserved(f"listing {path}: {error.strerror or error}")


def job_id_of(name: str) -> int | None:
    """The array job id that a directory name states; None for a name that is none (`007`, a hundred digits)."""
    if not (name.isascii() and name.isdigit() and len(name) <= 18 and name[0] != "0"):
        return None
    return int(name)
