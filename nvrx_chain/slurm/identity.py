"""Is a job in the queue really a job of this chain? Asked before any cancel, hold or fence. Pure.

An id from a file is a hint: Slurm gives ids out again after an unclean death of its controller, names are chosen by
people, and a comment can be copied. Only all of them together, in one reading of the queue, name our job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from nvrx_chain.errors import IdentityError
from nvrx_chain.slurm.model import QueuedTask, QueueReading

_COMMENT = re.compile(r"nvrx-chain:([A-Za-z0-9._-]{1,64})(?:/(\d{1,9}))?", re.ASCII)
_CHAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
# squeue shows whole seconds, and the manifest may hold the second before or after.
_SUBMIT_TIME_SLACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainIdentity:
    """By what a chain's jobs are known. `submitted_at` has every array job id; None where its time is not known."""

    chain_id: str
    job_name: str
    user: str
    submitted_at: Mapping[int, datetime | None]


def format_comment(chain_id: str, sequence: int | None = None) -> str:
    """The job comment of one submission: `nvrx-chain:<chain_id>/<sequence>`. Raises ValueError for a bad id."""
    if _CHAIN_ID.fullmatch(chain_id) is None or (sequence is not None and sequence < 0):
        raise ValueError(f"write the job comment: no chain id: {chain_id!r}/{sequence}")
    return f"nvrx-chain:{chain_id}" if sequence is None else f"nvrx-chain:{chain_id}/{sequence}"


def parse_comment(text: str) -> tuple[str, int | None] | None:
    """(chain_id, sequence) of a comment that is exactly one of ours; None for any other text."""
    match = _COMMENT.fullmatch(text)
    if match is None:
        return None
    return match[1], int(match[2]) if match[2] is not None else None


def verify_task(task: QueuedTask, identity: ChainIdentity) -> str | None:
    """None when the task is this chain's; else the reason why it is not, or cannot be shown to be."""
    if task.array_job_id not in identity.submitted_at:
        return f"job {task.array_job_id} is not in the manifest of chain {identity.chain_id}"
    if task.name != identity.job_name:
        return f"job {task.spec} has the name {task.name!r}, not {identity.job_name!r}"
    if task.user != identity.user:
        return f"job {task.spec} belongs to {task.user!r}, not {identity.user!r}"
    written = parse_comment(task.comment)
    if written is None or written[0] != identity.chain_id:
        return f"job {task.spec} has the comment {task.comment!r}, not that of chain {identity.chain_id}"
    return _verify_submit_time(task, identity.submitted_at[task.array_job_id])


def verify_array(reading: QueueReading, array_job_id: int, identity: ChainIdentity) -> tuple[QueuedTask, ...]:
    """The tasks of one array job of this chain; () when the reading has none, and then there is none to act on.

    Raises IdentityError when the id or any of its rows is not this chain's: then nothing of it may be touched.
    """
    if array_job_id not in identity.submitted_at:
        raise IdentityError(
            "act on a job",
            part=f"job {array_job_id} is not in the manifest of chain {identity.chain_id}",
            hint="nothing was done to it",
        )
    tasks = reading.of(array_job_id)
    for task in tasks:
        reason = verify_task(task, identity)
        if reason is not None:
            raise IdentityError("act on a job", part=reason, hint="nothing was done to it")
    return tasks


def _verify_submit_time(task: QueuedTask, expected: datetime | None) -> str | None:
    if expected is None:
        return None
    if task.submitted_at is None:
        return f"job {task.spec} shows no submit time"
    apart = abs((task.submitted_at - expected).total_seconds())
    if apart <= _SUBMIT_TIME_SLACK_SECONDS:
        return None
    return f"job {task.spec} was submitted {apart:.0f} s away from what the manifest says: its id was given out again"
