"""Which logs a job has, where they lie and what they may cost. Touches: directories, which it looks at."""

from __future__ import annotations

import enum
import os.path
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import UsageError

MIB = 1 << 20
LAST_CYCLE = 10_000_000
"""A number above is no cycle of a job."""


class Kind(enum.IntEnum):
    """What a line belongs to. The number travels between nodes."""

    APP = 1
    """Output of the ranks: one file for each cycle."""
    LAUNCHER = 2
    """What the launchers themselves say: one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlaces:
    """Where the lines of a job go. The path follows from kind and cycle alone: nobody on a network names a file."""

    app_log: str | None = None
    """Pattern of the application logs: `/x/app.log` is `/x/app_cycle0.log` and so on."""
    launcher_log: str | None = None
    rotate_bytes: int | None = None
    """A file that would grow beyond becomes `.1`; None never rotates."""
    rotate_keep: int = 4
    """Files `.1`, `.2` and so on that are kept."""

    def path_of_app(self, cycle: int) -> str | None:
        """The file of the ranks in a cycle; None when there is none."""
        return self.path_of(Kind.APP, cycle)

    def path_of(self, kind: Kind, cycle: int) -> str | None:
        """The file of these lines; None when there is no such log."""
        if kind is Kind.LAUNCHER:
            return self.launcher_log
        return None if self.app_log is None else app_log_path(self.app_log, cycle)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """What lines that cannot be written yet may cost. Bytes and seconds."""

    memory_bytes: int = 64 * MIB
    spill_bytes: int = 1024 * MIB
    """Of the file on the node that takes over when the memory is full; 0 for none."""
    spill_directory: str = ""
    """Empty is the directory for temporary files."""
    stall_seconds: float = 60.0
    """How long workers are held up once that is full too; lines are dropped, counted and reported after that."""
    flush_seconds: float = 0.2
    """How long lines may be gathered before they are sent."""


def app_log_path(pattern: str, cycle: int) -> str:
    """`<pattern without extension>_cycle<N><extension or .log>`, as ft_launcher names it."""
    stem, extension = os.path.splitext(pattern)
    return f"{stem}_cycle{cycle}{extension or '.log'}"


def log_places(
    *, app_log: str | None, launcher_log: str | None, rotate_bytes: int | None = None, rotate_keep: int = 4
) -> LogPlaces:
    """The places that somebody asked for. Raises UsageError."""
    for name, path in (("the application log", app_log), ("the launcher log", launcher_log)):
        if path is None:
            continue
        if not os.path.isabs(path) or "\0" in path or path.endswith("/"):
            raise UsageError(f"reading where {name} goes", part=path, hint="give an absolute path of a file")
        if not Path(path).parent.is_dir():
            raise UsageError(f"reading where {name} goes", part=path, hint="its directory is not there")
    if app_log is not None and launcher_log is not None:
        stem, extension = os.path.splitext(app_log)
        if re.fullmatch(rf"{re.escape(stem)}_cycle\d+{re.escape(extension or '.log')}(\.\d+)?", launcher_log):
            raise UsageError("reading where the launcher log goes", part=launcher_log, hint="a cycle has this file")
    if rotate_bytes is not None and rotate_bytes < MIB:
        raise UsageError("reading the size at which logs rotate", part=str(rotate_bytes), hint="at least 1 MiB")
    if rotate_keep < 1:
        raise UsageError("reading how many rotated logs are kept", part=str(rotate_keep), hint="at least 1")
    return LogPlaces(app_log=app_log, launcher_log=launcher_log, rotate_bytes=rotate_bytes, rotate_keep=rotate_keep)


def log_limits(
    *, memory_bytes: int, spill_bytes: int, spill_directory: str = "", stall_seconds: float = 60.0
) -> LogLimits:
    """The limits that somebody asked for. Raises UsageError."""
    directory = spill_directory or tempfile.gettempdir()
    if memory_bytes < MIB:
        raise UsageError("reading the memory for log lines", part=str(memory_bytes), hint="at least 1 MiB")
    if spill_bytes < 0 or stall_seconds < 0:
        raise UsageError("reading the limits for log lines", hint="sizes and times are not negative")
    if spill_bytes and not os.access(directory, os.W_OK):
        raise UsageError("reading where log lines are spilled", part=directory, hint="it cannot be written to")
    return LogLimits(
        memory_bytes=memory_bytes, spill_bytes=spill_bytes, spill_directory=directory, stall_seconds=stall_seconds
    )


def leftovers_of(places: LogPlaces, node_id: str) -> LogPlaces:
    """Where one node puts what was not acknowledged: `app.unsent-<node>_cycle0.log` beside `app_cycle0.log`."""
    mark = ".unsent-" + re.sub(r"[^A-Za-z0-9_-]", "_", node_id)
    return LogPlaces(app_log=_marked(places.app_log, mark), launcher_log=_marked(places.launcher_log, mark))


def _marked(path: str | None, mark: str) -> str | None:
    if path is None:
        return None
    stem, extension = os.path.splitext(path)
    return f"{stem}{mark}{extension or '.log'}"
