"""Reading and writing single files of a run directory on file systems that lag, stall and repeat themselves.

Writes are atomic: a temporary name in the same directory, size checked, fsync, then `rename(2)`, or `link(2)` where
the first writer must win. Reads open the file (a name test can be answered from a stale cache for a minute on NFS),
never follow a link, never block on a FIFO, and are capped in size. Touches: the file system.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from nvrx_chain.errors import RecordError, Unobserved

log = logging.getLogger(__name__)

MAX_RECORD_BYTES = 1 << 20
_STALE_RETRIES = 3

T = TypeVar("T")


def read_bytes(
    path: Path, *, max_bytes: int = MAX_RECORD_BYTES, owner_uid: int | None = None
) -> bytes | None | Unobserved:
    """The content of one regular file; None when it is not there; `Unobserved` when it cannot be trusted or read.

    `owner_uid` refuses a file of anybody but that user and root.
    """
    for _ in range(_STALE_RETRIES):
        try:
            return _read_once(path, max_bytes, owner_uid)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except OSError as error:
            # A rename on the server leaves an NFS client with a stale handle; the next open gets the new file.
            if error.errno == errno.ESTALE:
                continue
            if error.errno == errno.ELOOP:
                return Unobserved(f"{path} is a symbolic link")
            return Unobserved(f"reading {path}: {error.strerror or error}")
    return Unobserved(f"reading {path}: stale file handle, {_STALE_RETRIES} times")


def _read_once(path: Path, max_bytes: int, owner_uid: int | None) -> bytes | Unobserved:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    # closefd=False: a stream that cannot be made (of a directory) would leave the descriptor open, once a poll.
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Unobserved(f"{path} is not a regular file")
        if owner_uid is not None and status.st_uid not in (owner_uid, 0):
            return Unobserved(f"{path} belongs to uid {status.st_uid}, not to uid {owner_uid}")
        with open(descriptor, "rb", closefd=False) as stream:
            content = stream.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        return Unobserved(f"{path} is larger than {max_bytes} bytes")
    return content


def read_record(path: Path, kind: type[T], *, owner_uid: int | None = None) -> T | None | Unobserved:
    """One JSON record of a known kind; None when absent; `Unobserved` when unreadable, short or of another shape."""
    content = read_bytes(path, owner_uid=owner_uid)
    if content is None or isinstance(content, Unobserved):
        return content
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Unobserved(f"{path} is no {kind.__name__}: {error}")


def list_names(directory: Path) -> tuple[str, ...] | None | Unobserved:
    """The names in a directory, sorted; None when the directory is not there. Listing refreshes an NFS name cache."""
    try:
        return tuple(sorted(os.listdir(directory)))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Unobserved(f"listing {directory}: {error.strerror or error}")


def refresh_names(directory: Path) -> None:
    """Open a directory: without that an NFS client goes on for up to a minute that a name is not there."""
    # A directory that cannot be opened is found out by whoever reads a file in it.
    with contextlib.suppress(OSError):
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def is_there(path: Path) -> bool:
    """Whether a file is there that the workload may have made a moment ago on another node. False when unknown."""
    refresh_names(path.parent)
    try:
        return path.exists()
    except OSError as error:
        log.warning("cannot tell whether a file is there path=%s error=%s", path, error)
        return False


def encode_record(record: msgspec.Struct) -> bytes:
    """A record as indented JSON with a final newline: people read these files at night."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def write_atomic(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `content` in one step that survives a crash. Raises RecordError; the old file then stays."""
    temporary = _write_temporary(path, content, mode)
    try:
        os.replace(temporary, path)
    except OSError as error:
        raise RecordError(f"writing {path}: {error.strerror or error}", part=path.name) from error
    finally:
        _remove_quietly(temporary)
    sync_directory(path.parent)


def write_first(path: Path, content: bytes, *, mode: int = 0o644) -> bool:
    """Create `path` unless somebody did already. True when this call won, also when the server's reply was lost.

    Raises RecordError when it can be neither created nor shown to exist.
    """
    temporary = _write_temporary(path, content, mode)
    try:
        os.link(temporary, path)
    except OSError as error:
        # A server may have made the link and lost the reply: a second link on our own temporary is ours.
        if _has_second_link(temporary):
            return True
        if isinstance(error, FileExistsError):
            return False
        raise RecordError(
            f"creating {path}: {error.strerror or error}",
            part=path.name,
            hint="the run directory must be on a file system with hard links",
        ) from error
    finally:
        _remove_quietly(temporary)
    sync_directory(path.parent)
    return True


def _write_temporary(path: Path, content: bytes, mode: int) -> Path:
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with open(descriptor, "wb", closefd=True) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
            # A full file system can cut a write short and still let the rename through.
            if os.fstat(descriptor).st_size != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        _remove_quietly(temporary)
        raise RecordError(f"writing {path}: {error.strerror or error}", part=path.name) from error
    return temporary


def _has_second_link(temporary: Path) -> bool:
    try:
        return os.stat(temporary).st_nlink == 2
    except OSError as error:
        log.warning("cannot tell whether a link was made path=%s error=%s", temporary, error)
        return False


def sync_directory(directory: Path) -> None:
    """Make a new name survive a crash of the server. Everybody sees it already, so a failure undoes nothing."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # FUSE and CIFS mounts cannot sync a directory and say EINVAL.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            log.warning("a directory was not synced path=%s error=%s", directory, error)


def _remove_quietly(path: Path) -> None:
    # Renamed away already, or a server that does not answer: a left-over temporary name is ignored by every reader.
    with contextlib.suppress(OSError):
        path.unlink()
