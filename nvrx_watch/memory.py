"""What earlier passes saw of a chain: for how long each observed value has been the same, by this watcher's own clock.

A wall clock of another node is never compared with ours: a lease, a log or an iteration counts as moving when *we* see
its value change. Pure; state_store.py keeps it on disk between passes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from nvrx_chain.clock import format_time, parse_time

Value = int | str | None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One observed value, since when it has been the same, and when it was last looked at (ISO-8601, UTC).

    `changes`: how often it was another one than before; `looks`: how many passes in a row saw it as it is.
    """

    value: Value
    since: str
    looked_at: str
    changes: int = 0
    looks: int = 1


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Values by name, as `observe` left them. The names are made by the functions below."""

    seen: dict[str, Seen] = {}

    def value(self, name: str) -> Value:
        """The last value, None when there is none."""
        entry = self.seen.get(name)
        return entry.value if entry is not None else None

    def steady_seconds(self, name: str, now: datetime) -> float | None:
        """For how long the value has been the same at `now`; None when it was never seen. Never negative."""
        entry = self.seen.get(name)
        since = parse_time(entry.since) if entry is not None else None
        return max(0.0, (now - since).total_seconds()) if since is not None else None

    def changes(self, name: str) -> int:
        """How often the value was seen to change."""
        entry = self.seen.get(name)
        return entry.changes if entry is not None else 0

    def looks(self, name: str) -> int:
        """How many passes in a row saw the value as it is."""
        entry = self.seen.get(name)
        return entry.looks if entry is not None else 0


def observe(memory: Memory, values: Mapping[str, Value], now: datetime) -> Memory:
    """Take in what a pass saw. Names that it did not see are kept: not looked at is not gone.

    A clock that was set back makes no value old: `since` in the future becomes `now`.
    """
    stamp = format_time(now)
    seen = dict(memory.seen)
    for name, value in values.items():
        entry = seen.get(name)
        since = parse_time(entry.since) if entry is not None else None
        if entry is None or since is None or entry.value != value:
            changes = entry.changes + 1 if entry is not None else 0
            seen[name] = Seen(value=value, since=stamp, looked_at=stamp, changes=changes)
        else:
            kept = entry.since if since <= now else stamp
            seen[name] = Seen(value=value, since=kept, looked_at=stamp, changes=entry.changes, looks=entry.looks + 1)
    return Memory(seen=seen)


def forget(memory: Memory, prefixes: tuple[str, ...]) -> Memory:
    """Drop every name that begins with one of the prefixes: generations that are over for good."""
    return Memory(seen={name: entry for name, entry in memory.seen.items() if not name.startswith(prefixes)})


_OF_A_JOB = re.compile(r"job/(\d{1,18})/", re.ASCII)


def remembered_jobs(memory: Memory) -> frozenset[int]:
    """The array jobs of which values are kept. A name of another form, from a damaged file, is of no job."""
    found = (_OF_A_JOB.match(name) for name in memory.seen)
    return frozenset(int(match[1]) for match in found if match is not None)


def lease_name(array_job_id: int, array_task_id: int) -> str:
    """The lease counter of a task."""
    return f"job/{array_job_id}/lease/{array_task_id}"


def log_name(array_job_id: int) -> str:
    """How many bytes a generation has logged."""
    return f"job/{array_job_id}/log"


def task_zero_name(array_job_id: int) -> str:
    """What Slurm calls task 0: its raw state, or `absent`."""
    return f"job/{array_job_id}/task0"


def waiting_name(array_job_id: int) -> str:
    """Why a queued generation waits: its pending reasons."""
    return f"job/{array_job_id}/waiting"


def completing_name(array_job_id: int) -> str:
    """How many tasks of the generation are COMPLETING."""
    return f"job/{array_job_id}/completing"


ITERATION_NAME = "iteration"
"""The checkpoint iteration, None when there is no checkpoint. Not observed while it cannot be read."""

BEST_ITERATION_NAME = "best_iteration"
"""The largest checkpoint iteration that was ever seen."""

QUEUE_EMPTY_NAME = "queue_empty"
"""`yes` while Slurm answers and lists no live job of the chain, else `no`."""

LIVE_GENERATION_NAME = "live_generation"
"""The array job id of the newest generation with a running task, None when there is none."""
