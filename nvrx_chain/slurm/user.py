"""Whose jobs a process submits, as Slurm names its users. Touches: the user database."""

from __future__ import annotations

import os
import pwd


def user_name(uid: int) -> str:
    """The user's name, or the number where there is none, as squeue prints it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def current_user() -> tuple[str, int]:
    """Name and uid as Slurm sees them: of the process, not of USER, which cron and sudo leave behind."""
    uid = os.getuid()
    return user_name(uid), uid
