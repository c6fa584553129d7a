"""A private directory with a short path for unix sockets, and the end of those that killed launchers left behind.

Touches: the directory for temporary files (else /tmp, /dev/shm), locks on directories there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from nvrx_chain.errors import NvrxError

MAX_PATH = 107
"""Bytes of a socket's path: the kernel takes 108 with the final zero."""
LEFT_BEHIND_SECONDS = 60.0
"""A younger directory may not have its lock yet."""
_LONGEST_NAME = "9999.9999999999"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SocketDirectory:
    """Mode 700; ours while this process lives, which a lock on it shows."""

    def __init__(self, base: Path | None = None) -> None:
        self.path = _new(base)
        self._lock = os.open(self.path, _OPEN)
        with contextlib.suppress(OSError):  # a file system without locks: nobody will sweep there either
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove it and the sockets in it."""
        _remove(self.path, self._lock)
        os.close(self._lock)


def _new(base: Path | None) -> Path:
    prefix = _prefix()
    tried = []
    for parent in _parents(base):
        if len(os.fsencode(f"{parent}/{prefix}12345678/{_LONGEST_NAME}")) > MAX_PATH:
            tried.append(f"{parent} is too long")
            continue
        try:
            # Mode 700, and a name that nobody can have taken before.
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError as error:
            tried.append(f"{parent}: {error.strerror or error}")
            continue
        _sweep(parent, prefix)
        return path
    raise NvrxError("making a directory for the sockets of the ranks", hint="; ".join(tried))


def _parents(base: Path | None) -> Iterable[Path]:
    if base is not None:
        yield base
    yield from (Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm"))


def _prefix() -> str:
    # The name of the machine: on a shared file system a lock of another machine may not be seen.
    whose = f"{socket.gethostname()} {os.geteuid()}"
    return f"nvrx-{hashlib.sha256(whose.encode()).hexdigest()[:8]}-"


def _sweep(parent: Path, prefix: str) -> None:
    """Remove directories of launchers of ours that were killed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in [entry for entry in entries if entry.name.startswith(prefix)]:
            with contextlib.suppress(OSError):
                _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    directory = os.open(path, _OPEN)
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime < LEFT_BEHIND_SECONDS:
            return
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path, directory)
    finally:
        os.close(directory)


def _remove(path: Path, directory: int) -> None:
    """Sockets only: what else lies there is not ours, and then the directory stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if stat.S_ISSOCK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=directory)
        os.rmdir(path)
