"""The log of actions: one JSON line for each, kept across passes and watchers. Touches: that file."""

from __future__ import annotations

import logging
import os
import stat
from datetime import datetime
from pathlib import Path

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_watch.action_model import ActionReport, ActionState

log = logging.getLogger(__name__)

MAX_BYTES = 2 << 20
"""A watcher that is refused something every minute writes this in a month. Then the file moves to `<name>.1`."""

NOTHING_TRIED = frozenset({ActionState.OBSERVE_ONLY, ActionState.NOT_OWNER, ActionState.DRY_RUN})


class ActionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action. `at` is ISO-8601 in UTC; ids are task specs."""

    at: str
    chain: str
    by: str
    detector: str
    action: str
    array_job_id: int | None
    state: str
    asked: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    still_there: tuple[str, ...] = ()
    why: str = ""


def append_action(path: Path, report: ActionReport, *, chain: str, by: str, at: datetime) -> None:
    """Append one line in one write. A log that cannot be written costs the line and nothing else."""
    line = ActionLine(
        at=format_time(at),
        chain=chain,
        by=by,
        detector=report.detector,
        action=report.request.kind.value,
        array_job_id=report.request.array_job_id,
        state=report.state.value,
        asked=report.asked,
        gone=report.gone,
        still_there=report.still_there,
        why=report.why,
    )
    try:
        _append(path, msgspec.json.encode(line) + b"\n")
    except (OSError, ValueError) as error:
        log.warning("the action was not logged path=%s error=%s", path, error)


def read_actions(path: Path, most: int) -> tuple[ActionLine, ...] | Unobserved:
    """The last actions, the newest last; () when there is no log. Lines that are none are left out."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        return Unobserved(f"reading {path}: {error}")
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Unobserved(f"{path} is not a regular file")
        start = max(0, status.st_size - 512 * max(most, 1) * 8)
        content = os.pread(descriptor, MAX_BYTES, start)
    except OSError as error:
        return Unobserved(f"reading {path}: {error}")
    finally:
        os.close(descriptor)
    lines = content.split(b"\n")
    # A cut into the middle of a line at the beginning, a write that was cut short at the end.
    return (
        tuple(line for line in map(_parse, lines[1:] if start else lines) if line is not None)[-most:] if most else ()
    )


def _append(path: Path, line: bytes) -> None:
    # O_NONBLOCK: a FIFO in its place must not stop the watcher.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, flags, 0o644)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        # One write: lines of two watchers do not mix.
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
    if status.st_size + len(line) > MAX_BYTES:
        os.replace(path, path.with_name(path.name + ".1"))


def _parse(line: bytes) -> ActionLine | None:
    try:
        return msgspec.json.decode(line, type=ActionLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
