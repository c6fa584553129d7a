"""One JSON line for each thing that a rank did, for people, tests and the demo: docs/workloads.md lists the fields.

Touches: the rank's event file (appended, one `write` per line, so a reader never sees two lines mixed and a kill never
leaves more than the last line short) and, for rank 0, standard output.
"""

from __future__ import annotations

import enum
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import RecordError, UsageError
from nvrx_chain.workloads.placement import Placement

RANK_FIELD = "{rank}"


class EventKind(str, enum.Enum):
    """What happened."""

    START = "start"
    STEP = "step"
    SAVE_STARTED = "save_started"
    SAVE_FINISHED = "save_finished"
    CHECKPOINT_IGNORED = "checkpoint_ignored"
    FAULT = "fault"
    SIGNAL = "signal"
    END = "end"


class Ending(str, enum.Enum):
    """How a life of a rank ended, in its `end` event. A rank that was killed has none."""

    TARGET = "target"
    SIGNAL = "signal"
    FAILED = "failed"


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. Who and when are always there; the fields with a default only where they say something.

    `iteration` is the number of iterations that were complete, for a save the one that is saved. `step_seconds` is the
    mean over the `steps` of the line. `at` and `unix` are the node's wall clock, `monotonic` its monotonic clock:
    compare that one within one boot of one node.
    """

    event: EventKind
    at: str
    unix: float
    monotonic: float
    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: int
    array_job_id: int | None
    array_task_id: int | None
    restart_count: int | None
    iteration: int
    loss: float | None = None
    loss_hex: str | None = None
    step_seconds: float | None = None
    steps: int | None = None
    save_seconds: float | None = None
    save_bytes: int | None = None
    since_process_start_seconds: float | None = None
    since_main_seconds: float | None = None
    target_iteration: int | None = None
    fault: str | None = None
    signal: str | None = None
    outcome: Ending | None = None
    detail: str | None = None


class EventLog:
    """Appends a rank's events. Safe to call from the thread that writes checkpoints."""

    def __init__(self, path: Path | None, placement: Placement, clock: Clock) -> None:
        """`path` may hold `{rank}`, and must when there are several ranks: one writer per file.

        Raises UsageError for a shared file, RecordError when it cannot be opened.
        """
        self._placement = placement
        self._clock = clock
        self._descriptors: list[int] = []
        if path is not None:
            self._descriptors.append(_open_append(_path_of_rank(path, placement)))
        if placement.rank == 0:
            self._descriptors.append(sys.stdout.fileno())

    def emit(self, kind: EventKind, *, iteration: int, **fields: Any) -> None:
        """Write one line. `fields` are those of Event that have a default. Raises RecordError when it is not taken."""
        now = self._clock.now()
        event = Event(
            event=kind,
            at=format_time(now),
            unix=now.timestamp(),
            monotonic=self._clock.monotonic(),
            rank=self._placement.rank,
            local_rank=self._placement.local_rank,
            world_size=self._placement.world_size,
            host=self._placement.host,
            pid=os.getpid(),
            array_job_id=self._placement.array_job_id,
            array_task_id=self._placement.array_task_id,
            restart_count=self._placement.restart_count,
            iteration=iteration,
            **fields,
        )
        line = msgspec.json.encode(event) + b"\n"
        for descriptor in self._descriptors:
            _write_line(descriptor, line)


def read_events(path: Path) -> Iterator[Event]:
    """The events of one file in order; a last line that a kill cut short is left out.

    Raises RecordError for any other line that is no event, OSError when the file cannot be read.
    """
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            yield msgspec.json.decode(line, type=Event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordError(
                f"reading {path}: line {number} is no event: {error}",
                part=path.name,
                hint="remove the line, or the file",
            ) from error


def process_age_seconds() -> float:
    """Seconds since this process became this rank: since the kernel started it (proc(5), `starttime` of stat, in clock
    ticks since boot), or since the launcher made a rank of an interpreter that it had parked.
    """
    became_rank_at = os.environ.get("NVRX_CHAIN_RANK_STARTED_AT", "")
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", became_rank_at, re.ASCII):
        return max(0.0, time.time() - float(became_rank_at))
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _path_of_rank(path: Path, placement: Placement) -> Path:
    if RANK_FIELD not in str(path) and placement.world_size > 1:
        raise UsageError(
            f"opening the event file {path}: {placement.world_size} ranks would share it",
            part="--event-file",
            hint=f"put {RANK_FIELD} into the name",
        )
    return Path(str(path).replace(RANK_FIELD, str(placement.rank)))


def _open_append(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RecordError(
            f"opening the event file {path}: {error.strerror}",
            part="--event-file",
            hint="name a file that the user of the job may write",
        ) from error


def _write_line(descriptor: int, line: bytes) -> None:
    try:
        written = os.write(descriptor, line)
    except OSError as error:
        raise RecordError(
            f"writing an event: {error.strerror}", hint="look for a full or read-only file system"
        ) from error
    if written != len(line):
        raise RecordError(f"writing an event: {written} of {len(line)} bytes were taken", hint="is the disk full?")
