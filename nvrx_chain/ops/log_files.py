"""The logs of one generation: which files there are, their last lines, and what has come since. Touches: those files.

Names come from a directory that others may write to, so every part of a path is opened relative to the one before it,
no link is followed, and only regular files of the chain's user or root are read. Files are opened anew for each read:
a big array has more logs than a process may have open files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nvrx_chain.records.layout import RunDirectory

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,250}\.log", re.ASCII)
_OF_TASK = re.compile(r"(?:task|launcher|app)_(\d{1,9})(?:[._].*)?\.log", re.ASCII)
_BATCH_OUTPUT = re.compile(r"slurm-(\d{1,18})_(\d{1,9})\.log", re.ASCII)
_OF_CYCLE = re.compile(r"app(?:_.*)?_cycle(\d{1,9})(?:[._].*)?\.log", re.ASCII)
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BLOCK_BYTES = 1 << 16
_LONGEST_TAIL_BYTES = 1 << 22
_LONGEST_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One log as a listing of its directory showed it. `array_task_id` None: of no single task."""

    directory: tuple[str, ...]
    name: str
    array_job_id: int
    array_task_id: int | None
    size: int
    changed_at: float

    @property
    def cycle(self) -> int | None:
        """The restart cycle whose workload wrote it, None for a log of no single cycle."""
        match = _OF_CYCLE.fullmatch(self.name)
        return int(match[1]) if match else None

    @property
    def label(self) -> str:
        """What stands before its lines, e.g. `123/task_0`."""
        return f"{self.array_job_id}/{self.name.removesuffix('.log')}"


@dataclass(slots=True)
class Cursor:
    """How far a log has been read, in bytes, and the beginning of a line whose end has not come yet."""

    offset: int = 0
    partial: bytes = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now. Progress bars end theirs with a carriage return."""
        text = self.partial + data
        # The newline of a CRLF may come with the next read, and must not make an empty line of its own.
        kept = text[-1:] if text.endswith(b"\r") else b""
        *complete, rest = _LINE_END.split(text[: len(text) - len(kept)])
        self.partial = rest + kept
        if len(self.partial) > _LONGEST_LINE_BYTES:
            complete.append(self.take_partial())
        return [_decode(line) for line in complete]

    def take_partial(self) -> bytes:
        """The unfinished line, which is then forgotten."""
        partial, self.partial = self.partial, b""
        return partial.rstrip(b"\r")

    def finish(self) -> list[str]:
        """The last line of a log that ends without a line end."""
        partial = self.take_partial()
        return [_decode(partial)] if partial else []


class LogDirectory:
    """The logs in one run directory that belong to `owner_uid` or root."""

    def __init__(self, run: RunDirectory, owner_uid: int) -> None:
        self._run = run
        self._owners = (owner_uid, 0)

    def find(self, array_job_id: int, array_task_id: int | None = None) -> tuple[LogFile, ...]:
        """The logs of a generation (of one task of it), the one that was written to last at the end.

        What Slurm kept of a batch script is given only for a task whose run-task left no log: it holds the same lines.
        """
        own = [*self._list(self._run.generation(array_job_id).logs, array_job_id, _task_of_log)]
        batch = self._list(self._run.slurm_logs, array_job_id, lambda name: _task_of_batch(name, array_job_id))
        with_log = {file.array_task_id for file in own if file.name.startswith("task_")}
        files = [*own, *(file for file in batch if file.array_task_id not in with_log)]
        chosen = [file for file in files if array_task_id is None or file.array_task_id == array_task_id]
        return tuple(sorted(chosen, key=lambda file: (file.changed_at, file.label)))

    def read_tail(self, file: LogFile, lines: int) -> tuple[list[str], Cursor]:
        """The last complete lines, at most so many, and where they end."""
        with self._open(file) as stream:
            if stream is None:
                return [], Cursor()
            end = os.fstat(stream.fileno()).st_size
            data, start = b"", end
            while start > 0 and len(data) < _LONGEST_TAIL_BYTES and len(_LINE_END.findall(data)) <= lines:
                step = min(_BLOCK_BYTES, start)
                start -= step
                stream.seek(start)
                data = stream.read(step) + data
        cursor = Cursor(offset=start + len(data))
        found = cursor.feed(data)
        # What the first block cuts is not the beginning of a line.
        complete = found[1:] if start > 0 else found
        return complete[-lines:] if lines else [], cursor

    def read_new(self, file: LogFile, cursor: Cursor) -> Iterator[str]:
        """The lines that were completed since the cursor. A log that became shorter is read from its start."""
        with self._open(file) as stream:
            if stream is None:
                return
            if os.fstat(stream.fileno()).st_size < cursor.offset:
                cursor.offset, cursor.partial = 0, b""
            stream.seek(cursor.offset)
            while data := stream.read(_BLOCK_BYTES):
                cursor.offset += len(data)
                yield from cursor.feed(data)

    def _list(self, directory: Path, array_job_id: int, task_of: Callable[[str], int | None]) -> Iterator[LogFile]:
        parts = directory.relative_to(self._run.path).parts
        with self._open_directory(parts) as descriptor:
            for name in sorted(os.listdir(descriptor)) if descriptor is not None else ():
                if _NAME.fullmatch(name) is None:
                    continue
                try:
                    task = task_of(name)
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except (FileNotFoundError, ValueError):
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield LogFile(
                        directory=parts,
                        name=name,
                        array_job_id=array_job_id,
                        array_task_id=task,
                        size=status.st_size,
                        changed_at=status.st_mtime,
                    )

    @contextlib.contextmanager
    def _open_directory(self, parts: tuple[str, ...]) -> Iterator[int | None]:
        """A descriptor of a directory below the run directory; None when it is not there or behind a link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with contextlib.ExitStack() as stack:
            try:
                descriptor = os.open(self._run.path, flags)
                stack.callback(os.close, descriptor)
                for part in parts:
                    descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=descriptor)
                    stack.callback(os.close, descriptor)
            except OSError as error:
                log.debug("no directory of logs parts=%s error=%s", parts, error)
                yield None
                return
            yield descriptor

    @contextlib.contextmanager
    def _open(self, file: LogFile) -> Iterator[BinaryIO | None]:
        """The log, or None when it is gone, a link, no regular file, or somebody else's."""
        with self._open_directory(file.directory) as directory:
            if directory is None:
                yield None
                return
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(file.name, flags, dir_fd=directory)
            except OSError as error:
                log.debug("log not opened label=%s error=%s", file.label, error)
                yield None
                return
            with open(descriptor, "rb", closefd=True) as stream:
                status = os.fstat(descriptor)
                usable = stat.S_ISREG(status.st_mode) and status.st_uid in self._owners
                yield stream if usable else None


def _task_of_log(name: str) -> int | None:
    match = _OF_TASK.fullmatch(name)
    return int(match[1]) if match else None


def _task_of_batch(name: str, array_job_id: int) -> int | None:
    """The task of a batch script's output. Raises ValueError for the output of another job."""
    match = _BATCH_OUTPUT.fullmatch(name)
    if match is None or int(match[1]) != array_job_id:
        raise ValueError(f"reading logs: {name} is not of job {array_job_id}")
    return int(match[2])


def _decode(line: bytes) -> str:
    """A log may hold anything: bytes that are no UTF-8 are spelled out."""
    return line.decode("utf-8", errors="backslashreplace")
