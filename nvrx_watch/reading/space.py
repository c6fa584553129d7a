"""Whether a run directory can be written to, and how much space it has. Touches: the directory, reads only."""

from __future__ import annotations

import os
from pathlib import Path


def can_create(directory: Path, owner_uid: int | None) -> bool | None:
    """Whether its owner can create a file in a directory. None for anybody but the owner."""
    if owner_uid is None or owner_uid != os.geteuid():
        return None
    try:
        is_read_only = bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
        return not is_read_only and os.access(directory, os.W_OK | os.X_OK)
    except (OSError, ValueError):
        return None


def free_bytes(directory: Path) -> int | None:
    """What a user may still write; None when it cannot be told."""
    try:
        status = os.statvfs(directory)
    except (OSError, ValueError):
        return None
    return status.f_bavail * status.f_frsize
