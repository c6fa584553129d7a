"""Marks of a recovery: what each launcher notes while its job gets back on its feet, one JSON line for each.

`timeline/marks.<agent>.jsonl`, one writer per file, each line written with one `write`, so that a kill leaves at most
the last line short. Touches: those files, reads only.
"""

from __future__ import annotations

import enum
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.files import list_names

MAX_LINE_BYTES = 4096
MAX_FILE_BYTES = 4 << 20
"""So much of the end of a file is read: the newest 20,000 marks or so of one launcher."""
_NAME = re.compile(r"marks\.[\w.-]{1,128}\.jsonl", re.ASCII)
_LAST_YEAR_SECONDS = 7_258_118_400.0


class MarkName(str, enum.Enum):
    """What happened, in the order of a recovery. The last three are said by the workload."""

    FAILURE_DETECTED = "failure_detected"
    """Or heard of: each launcher notes when it knew."""
    WORKERS_STOPPED = "workers_stopped"
    JOINED = "joined"
    ROUND_FILLED = "round_filled"
    WORKERS_STARTED = "workers_started"
    PROCESS_GROUP_READY = "process_group_ready"
    CHECKPOINT_RESTORED = "checkpoint_restored"
    FIRST_STEP = "first_step"
    """The first committed step: without it the job has not recovered."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. `cycle` is the one that the recovery leads to; 0 is the start of the job.

    `at`: seconds since the epoch on the clock of the node; `monotonic`: the same moment on its monotonic clock, which
    only compares within one `boot`.
    """

    cycle: int
    name: MarkName
    at: float
    monotonic: float
    boot: str
    node: str
    agent: str
    rank: int | None = None
    iteration: int | None = None
    detail: str | None = None

    def is_sane(self) -> bool:
        """Whether its numbers can be reckoned with."""
        return (
            0 <= self.cycle < 10**9
            and math.isfinite(self.monotonic)
            and math.isfinite(self.at)
            and 0 <= self.at < _LAST_YEAR_SECONDS
        )


_DECODER = msgspec.json.Decoder(Mark)


def encode_mark(mark: Mark) -> bytes:
    """The line, with its end."""
    return msgspec.json.encode(mark) + b"\n"


def parse_marks(content: bytes) -> Iterator[Mark]:
    """The marks of one file, without lines that are none, one that a kill cut short, and names of a later version."""
    for line in content.split(b"\n"):
        if not line or len(line) > MAX_LINE_BYTES:
            continue
        try:
            mark = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if mark.is_sane():
            yield mark


def marks_path(directory: Path, agent: str) -> Path:
    """The file of one launcher."""
    return directory / f"marks.{re.sub(r'[^A-Za-z0-9_-]', '_', agent)[:64] or '_'}.jsonl"


def is_marks_name(name: str) -> bool:
    """Whether a name in the directory is that of a launcher's marks."""
    return _NAME.fullmatch(name) is not None


def read_marks(directory: Path, *, owner_uid: int | None = None) -> tuple[tuple[Mark, ...], tuple[str, ...]] | None:
    """All marks in a directory, and what could not be read; None when the directory is not there."""
    names = list_names(directory)
    if names is None:
        return None
    if isinstance(names, Unobserved):
        return (), (names.reason,)
    marks: list[Mark] = []
    problems: list[str] = []
    for name in names:
        if is_marks_name(name):
            content = _read_end(directory / name, owner_uid)
            if isinstance(content, Unobserved):
                problems.append(content.reason)
            else:
                marks += parse_marks(content)
    return tuple(marks), tuple(problems)


def _read_end(path: Path, owner_uid: int | None) -> bytes | Unobserved:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return Unobserved(f"reading {path}: {error.strerror or error}")
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (owner_uid is not None and status.st_uid not in (owner_uid, 0)):
            return Unobserved(f"{path} is no regular file of the chain's user")
        start = max(0, status.st_size - MAX_FILE_BYTES)
        content = os.pread(descriptor, MAX_FILE_BYTES, start)
    except OSError as error:
        return Unobserved(f"reading {path}: {error.strerror or error}")
    finally:
        os.close(descriptor)
    # The first line of a part is one of which the beginning is missing.
    return content if start == 0 else content.partition(b"\n")[2]
