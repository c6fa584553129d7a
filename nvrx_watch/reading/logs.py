"""Sizes and last lines of logs: the newest training iteration and its rate. Touches: log files, reads only.

A log that has not grown is not read again. Paths come from records that others may have written, so only regular files
are opened, no link is followed, and never more than the last 64 KiB of one is read.
"""

from __future__ import annotations

import math
import os
import re
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.layout import is_task_log
from nvrx_watch.model import LogActivity

TAIL_BYTES = 1 << 16
_LONGEST_LINE = 2000
_LONGEST_PATH = 4096
_PATTERN_CPU_SECONDS = 0.5
_MOST_REMEMBERED = 1000
_MEGATRON = re.compile(r"\biteration\s{1,20}(\d{1,15})\s{0,20}/\s{0,20}\d{1,15} \|", re.ASCII)
_MEGATRON_TIME = re.compile(r"elapsed time per iteration \(ms\): (\d{1,12}(?:\.\d{1,9})?)(?![\d.])", re.ASCII)
_EVENT = '{"event":'
_COUNTING_EVENTS = frozenset({"step", "fault", "signal", "end"})
"""Events of the mock training that say how far it is; a save may end long after the iteration that it saves."""
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CYCLE_LOG = re.compile(r".*_cycle(\d{1,9})\.log", re.ASCII)


class _Event(msgspec.Struct, frozen=True):
    event: str
    iteration: int
    step_seconds: float | None = None


_EVENT_DECODER = msgspec.json.Decoder(_Event)


class Progress(msgspec.Struct, frozen=True):
    """What the end of a log says; both None when it says nothing."""

    iteration: int | None = None
    iterations_per_second: float | None = None


class PatternTooSlow(Exception):
    """The user's expression took longer than all of a log's end may take."""


def parse_tail(text: str, pattern: re.Pattern[str] | None = None) -> Progress:
    """The last training iteration in some lines. `pattern` has one group, the iteration, and replaces our own formats.

    Raises PatternTooSlow for an expression that backtracks without end.
    """
    # Lines longer than any progress line: some dumps have megabytes in one.
    lines = [line[:_LONGEST_LINE] for line in text.splitlines()]
    if pattern is None:
        return next((found for line in reversed(lines) if (found := _parse_line(line)) is not None), Progress())
    with _cpu_limit(_PATTERN_CPU_SECONDS):
        for line in reversed(lines):
            match = pattern.search(line)
            iteration = _parse_number(match.group(1)) if match is not None and pattern.groups else None
            if iteration is not None:
                return Progress(iteration)
    return Progress()


def _parse_line(line: str) -> Progress | None:
    match = _MEGATRON.search(line)
    if match is not None:
        time = _MEGATRON_TIME.search(line)
        return Progress(int(match[1]), _rate(float(time[1]) / 1000) if time is not None else None)
    start = line.find(_EVENT)
    if start < 0:
        return None
    try:
        event = _EVENT_DECODER.decode(line[start:])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, ValueError):
        return None
    if event.event not in _COUNTING_EVENTS or not 0 <= event.iteration < 10**15:
        return None
    return Progress(event.iteration, _rate(event.step_seconds))


def _parse_number(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) <= 15 else None


def _rate(seconds: float | None) -> float | None:
    if seconds is None or not math.isfinite(seconds) or not 1e-6 < seconds < 1e6:
        return None
    return 1 / seconds


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """End the block by PatternTooSlow after so much processor time; the matcher looks for signals as it goes."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise PatternTooSlow(f"the iteration pattern took more than {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class _Tail(msgspec.Struct, frozen=True):
    size: int
    changed_ns: int
    progress: Progress


class LogReader:
    """Reads logs, each again only when it changed. `notes` collects what a person should know, once each."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self._pattern = pattern
        self._tails: dict[str, _Tail] = {}
        self._old_sizes: dict[str, int] = {}
        self.notes: list[str] = []

    def directory(self, path: str, owner_uid: int | None, recent_cycles: int) -> LogActivity | Unobserved | None:
        """The activity in all logs of one directory; None when there is no log.

        The logs of cycles before the `recent_cycles` newest are looked at once: a long generation has hundreds.
        """
        try:
            names = [name for name in os.listdir(path) if name.endswith(".log")]
        except FileNotFoundError:
            return None
        except OSError as error:
            return Unobserved(f"listing {path}: {error.strerror or error}")
        numbers = {name: int(match[1]) for name in names if (match := _CYCLE_LOG.fullmatch(name))}
        recent = sorted(set(numbers.values()))[-recent_cycles:] if numbers else []
        oldest = recent[0] if recent else 0
        files, old_bytes = [], 0
        for name in names:
            file = os.path.join(path, name)
            if numbers.get(name, oldest) >= oldest:
                files.append(file)
                continue
            if file not in self._old_sizes:
                status = _look_at(file, owner_uid)
                self._old_sizes[file] = status.st_size if status is not None else 0
            old_bytes += self._old_sizes[file]
        return self._activity(files, owner_uid, old_bytes)

    def files(self, paths: Iterable[str], owner_uid: int | None) -> LogActivity | Unobserved | None:
        """The activity in these logs; None when none of them is there."""
        return self._activity([path for path in dict.fromkeys(paths) if _is_sane(path)], owner_uid, 0)

    def last_iteration(self, path: str, owner_uid: int | None) -> int | None:
        """The last training iteration in a log; None when it cannot be read or shows none."""
        status = _look_at(path, owner_uid) if _is_sane(path) else None
        return self._progress(path, status, owner_uid).iteration if status is not None else None

    def _activity(self, files: list[str], owner_uid: int | None, old_bytes: int) -> LogActivity | None:
        found = [(path, status) for path in files if (status := _look_at(path, owner_uid)) is not None]
        if not found:
            return None
        newest = max(found, key=lambda each: (each[1].st_mtime_ns, each[0]))
        trained = [each for each in found if _shows_training(each[0])]
        path, status = max(trained or [newest], key=lambda each: (each[1].st_mtime_ns, each[0]))
        progress = self._progress(path, status, owner_uid)
        return LogActivity(
            bytes=old_bytes + sum(each[1].st_size for each in found),
            newest=newest[0],
            iteration=progress.iteration,
            iterations_per_second=progress.iterations_per_second,
        )

    def _progress(self, path: str, status: os.stat_result, owner_uid: int | None) -> Progress:
        tail = self._tails.get(path)
        if tail is not None and (tail.size, tail.changed_ns) == (status.st_size, status.st_mtime_ns):
            return tail.progress
        if len(self._tails) >= _MOST_REMEMBERED:
            self._tails.clear()
        text = _read_tail(path, owner_uid)
        try:
            progress = parse_tail(text, self._pattern)
        except PatternTooSlow as error:
            progress = Progress()
            if str(error) not in self.notes:
                self.notes.append(str(error))
        self._tails[path] = _Tail(status.st_size, status.st_mtime_ns, progress)
        return progress


def _is_sane(path: str) -> bool:
    return path.startswith("/") and len(path) <= _LONGEST_PATH and "\0" not in path and path.isprintable()


def _shows_training(path: str) -> bool:
    """Whether ranks write into this log: not run-task's own, and not the log server's."""
    name = os.path.basename(path)
    return not is_task_log(name) and "_grpc_" not in name


def _look_at(path: str, owner_uid: int | None) -> os.stat_result | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except (OSError, ValueError):
        # A log that was rotated away or that we may not see says nothing, and is no fault of the chain.
        return None
    return status if _is_trusted(status, owner_uid) else None


def _is_trusted(status: os.stat_result, owner_uid: int | None) -> bool:
    return stat.S_ISREG(status.st_mode) and (owner_uid is None or status.st_uid in (owner_uid, 0))


def _read_tail(path: str, owner_uid: int | None) -> str:
    try:
        descriptor = os.open(path, _FILE_FLAGS)
    except (OSError, ValueError):
        return ""
    try:
        status = os.fstat(descriptor)
        if not _is_trusted(status, owner_uid):
            return ""
        start = max(0, status.st_size - TAIL_BYTES)
        content = os.pread(descriptor, min(TAIL_BYTES, status.st_size), start)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    # The first line of a part of a file has no beginning: `iteration 1234` may have been cut to `iteration 34`.
    if start > 0:
        content = content.partition(b"\n")[2]
    return content.decode("utf-8", "replace")
