"""What resolving gives, and what the command line may say about a chain that is not ours. Pure vocabulary."""

from __future__ import annotations

import glob
import pwd
from collections.abc import Callable
from pathlib import Path

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_watch.layout import Layout
from nvrx_watch.model import Subject
from nvrx_watch.plain_text import plain

NVRX_CYCLES = "nvrx/*/cycle_infos/cycle_info.*"
"""Cycle records below the work directory of NVRx's own example; `*` is the array job id."""

NVRX_ITERATION = "checkpoints/latest_checkpointed_iteration.txt"
"""The checkpoint iteration below it."""


ReadScript = Callable[[int], str | Unobserved | None]
"""The batch script that Slurm keeps of a job; None when it has none."""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to watch and where its files are. `asked_job_id` is the array job that was named, None without one."""

    subject: Subject
    layout: Layout
    asked_job_id: int | None


class ForeignHints(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says of a chain that nvrx-chain did not submit; None where nothing was said."""

    work_directory: Path | None = None
    cycle_info_glob: str | None = None
    iteration_file: Path | None = None
    job_name: str | None = None
    user: str | None = None
    max_restarts: int | None = None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A user of this machine."""

    uid: int
    home: str


def cycles_below(work_directory: str) -> str:
    """The cycle records below a work directory of NVRx's layout, as a glob."""
    return f"{glob.escape(work_directory)}/{NVRX_CYCLES}"


def find_account(user: str) -> Account | None:
    """The account of a user, None when this machine knows no such user."""
    try:
        entry = pwd.getpwnam(user)
    except (KeyError, ValueError, UnicodeEncodeError):
        return None
    return Account(uid=entry.pw_uid, home=entry.pw_dir)


def shown(text: str, limit: int = 120) -> str:
    """Text of somebody else's as an error may print it."""
    return plain(text, limit)
