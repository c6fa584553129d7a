"""Files for captured stacks: `<directory>/<cycle>/<rank>.<tool>.txt`, whole or not there, never through a link.

Touches: the directory that the caller names.
"""

from __future__ import annotations

import os
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_stacks(directory: Path, cycle: int, name: str, content: bytes) -> Path:
    """Write one file; an older one of that name is replaced. Raises OSError.

    The directory itself is the caller's and may be a link; what lies in it may have been put there by anybody.
    """
    base = os.open(directory, _DIRECTORY)
    try:
        _make_directory(str(cycle), base)
        place = os.open(str(cycle), _DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
    finally:
        os.close(base)
    try:
        _write(place, name, content)
    finally:
        os.close(place)
    return directory / str(cycle) / name


def _make_directory(name: str, base: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=base)
    except FileExistsError:
        return


def _write(place: int, name: str, content: bytes) -> None:
    temporary = f".{name}.{os.getpid()}"
    file = os.open(temporary, _NEW, 0o644, dir_fd=place)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
        finally:
            os.close(file)
        # A link of this name is replaced, not followed.
        os.rename(temporary, name, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        os.unlink(temporary, dir_fd=place)
        raise
