"""Which file system a path is on, and whether other nodes can see it. Touches: /proc/self/mountinfo (proc(5))."""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nvrx_chain.errors import Unobserved

_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "overlay", "aufs", "squashfs", "iso9660"})
_LOCAL_DISK = frozenset(
    {
        "bcachefs",
        "btrfs",
        "exfat",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "ntfs3",
        "reiserfs",
        "ufs",
        "vfat",
        "xfs",
        "zfs",
    }
)
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/var/run")


class Reach(enum.Enum):
    """Who sees what is written there. SHARED is also said of types that we do not list."""

    SHARED = "shared"
    LOCAL_DISK = "local disk"
    TEMPORARY = "local and temporary"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """The mount that holds a path."""

    mount_point: str
    kind: str
    reach: Reach


def read_file_system(path: Path) -> FileSystem | Unobserved:
    """The file system of `path`, or of its nearest parent that exists."""
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        return Unobserved(f"reading /proc/self/mountinfo: {error.strerror}")
    found = find_mount(table, os.path.realpath(path))
    return found or Unobserved(f"no mount of /proc/self/mountinfo holds {path}")


def find_mount(table: str, real_path: str) -> FileSystem | None:
    """The mount of mountinfo text whose mount point holds the path; of several the longest, of equals the last."""
    best: tuple[str, str] | None = None
    for line in table.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(), right.split()[:1]
        if not separator or len(fields) < 5 or not kind:
            continue
        point = _unescape(fields[4])
        if _holds(point, real_path) and (best is None or len(point) >= len(best[0])):
            best = (point, kind[0])
    if best is None:
        return None
    return FileSystem(mount_point=best[0], kind=best[1], reach=_reach(best[1], real_path))


def _reach(kind: str, path: str) -> Reach:
    if kind in _MEMORY:
        return Reach.TEMPORARY
    if kind not in _LOCAL_DISK:
        return Reach.SHARED
    return Reach.TEMPORARY if any(_holds(place, path) for place in _TEMPORARY) else Reach.LOCAL_DISK


def _holds(directory: str, path: str) -> bool:
    return PurePosixPath(path).is_relative_to(directory)


def _unescape(text: str) -> str:
    # The kernel writes space, tab, newline and backslash in a mount point as octal numbers.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
