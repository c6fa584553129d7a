"""The control files of one generation, as far as a fence reads and writes them. Touches: the run directory.

Every look has a deadline. What does not belong to the chain's user or root is not believed, and nothing is written
through a link: whoever owns the directory could otherwise steer root's pen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.control import ChainOutcome, Closed, ControlRecord, Lease, Left
from nvrx_chain.records.files import encode_record, list_names, read_record, refresh_names, write_first
from nvrx_chain.records.layout import GenerationDirectory, RunDirectory, parse_indexed_name
from nvrx_watch.acting.bounded import Bounded
from nvrx_watch.model import Subject

NO_TASK = -1
"""The `array_task_id` in the stamp of a writer that is no task of the generation."""

R = TypeVar("R", bound=ControlRecord)
T = TypeVar("T")


class LeftTasks(msgspec.Struct, frozen=True, kw_only=True):
    """`named`: tasks of which a file says that they left; `proven`: those whose file can also be believed."""

    named: frozenset[int]
    proven: frozenset[int]


class ControlFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Reads and writes in `control/` of one generation."""

    directory: GenerationDirectory
    owner_uid: int
    bounded: Bounded

    def lease(self, array_task_id: int) -> Lease | Unobserved | None:
        """The lease of one task; None when it wrote none."""

        def look() -> Lease | Unobserved | None:
            # An NFS client goes on showing the file of before a rename for up to a minute: a lease that moves would
            # be seen to stand still.
            refresh_names(self.directory.control)
            return self._read(self.directory.lease(array_task_id), Lease)

        return self._call(look)

    def closed(self) -> Closed | Unobserved | None:
        """How the generation was closed; None while it was not."""

        def look() -> Closed | Unobserved | None:
            refresh_names(self.directory.control)
            return self._read(self.directory.closed, Closed)

        return self._call(look)

    def left(self) -> LeftTasks | Unobserved:
        """The tasks whose ranks are gone."""

        def look() -> LeftTasks | Unobserved:
            names = list_names(self.directory.control)
            if names is None or isinstance(names, Unobserved):
                return names or Unobserved(f"{self.directory.control} is not there")
            parsed = [parse_indexed_name(name) for name in names]
            named = frozenset(one[1] for one in parsed if one is not None and one[0] == "left")
            proven = frozenset(k for k in named if self._is_proven(self._read(self.directory.left(k), Left), k))
            return LeftTasks(named=named, proven=proven)

        return self._call(look)

    def close(self, record: Closed) -> bool | Unobserved:
        """Write `closed.json` unless it is there; True when this call won. Raises RecordError."""

        def write() -> bool:
            run, own = self.directory.path.parent.parent, self.directory
            names = (own.path.parent.name, own.path.name, own.control.name)
            with pinned(run, names, self.owner_uid) as control:
                return write_first(control / own.closed.name, encode_record(record))

        return self._call(write)

    def _read(self, path: Path, kind: type[R]) -> R | Unobserved | None:
        record = read_record(path, kind, owner_uid=self.owner_uid)
        if record is None or isinstance(record, Unobserved):
            return record
        if record.array_job_id != self.directory.array_job_id:
            return Unobserved(f"{path} is of job {record.array_job_id}")
        return record

    @staticmethod
    def _is_proven(record: Left | Unobserved | None, array_task_id: int) -> bool:
        return isinstance(record, Left) and record.array_task_id == array_task_id

    def _call(self, work: Callable[[], T]) -> T | Unobserved:
        return self.bounded.call(work)


def control_files(subject: Subject, array_job_id: int, bounded: Bounded) -> ControlFiles | Unobserved:
    """The control files of a generation of a chain of ours; `Unobserved` unless its directory is the one in use.

    In a copy every lease stands still for ever, while the job ids in it name the jobs of the original.
    """
    run, manifest = subject.run_directory, subject.manifest
    if run is None or manifest is None:
        return Unobserved("the chain has no run directory")
    found = bounded.call(lambda: _is_same_directory(run, Path(manifest.run_directory)))
    if isinstance(found, Unobserved):
        return found
    if not found:
        return Unobserved(f"{run} is not shown to be the run directory that the chain uses, {manifest.run_directory}")
    return ControlFiles(directory=RunDirectory(run).generation(array_job_id), owner_uid=manifest.uid, bounded=bounded)


def decide_chain(subject: Subject, outcome: ChainOutcome, bounded: Bounded) -> bool | Unobserved:
    """Write the chain's verdict unless there is one; True when this call won. Raises RecordError."""
    run, manifest = subject.run_directory, subject.manifest
    if run is None or manifest is None:
        return Unobserved("the chain has no run directory")

    def write() -> bool:
        if not _is_same_directory(run, Path(manifest.run_directory)):
            raise RecordError("writing the verdict", part=f"{run} is not shown to be the run directory in use")
        with pinned(run, (), manifest.uid) as held:
            return ChainFiles(RunDirectory(held), manifest.chain_id, manifest.uid).decide(outcome)

    return bounded.call(write)


class WriterStamp(msgspec.Struct, frozen=True, kw_only=True):
    """The stamp of this process, which is no task of any generation."""

    host: str
    boot_id: str
    pid: int
    pid_started_at: int


def read_writer_stamp(host: str) -> WriterStamp:
    """Who writes. Where /proc is not readable the boot is empty and the start 0."""
    return WriterStamp(
        host=host,
        boot_id=_read_proc("/proc/sys/kernel/random/boot_id").strip(),
        pid=os.getpid(),
        pid_started_at=_parse_start(_read_proc("/proc/self/stat")),
    )


def _parse_start(status: str) -> int:
    """proc(5): field 22 of stat, counted after the name in brackets, which may hold anything."""
    words = status.rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 and words[19].isdecimal() else 0


def _read_proc(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _is_same_directory(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def pinned(run: Path, names: Sequence[str], owner_uid: int) -> Iterator[Path]:
    """A directory below a run directory, held open: what is written goes there whatever becomes of its names.

    The run directory may be named through a link. Raises RecordError when one below it is one, or when any is no
    directory of the chain's user.
    """
    path, descriptor = run, -1
    try:
        descriptor = _step(run, None, owner_uid)
        for name in names:
            path, outer = path / name, descriptor
            try:
                descriptor = _step(name, outer, owner_uid)
            finally:
                if descriptor != outer:
                    os.close(outer)
        yield Path(f"/proc/self/fd/{descriptor}")
    except (OSError, ValueError) as error:
        raise RecordError(f"writing below {path}", part=str(error)) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _step(name: str | Path, outer: int | None, owner_uid: int) -> int:
    """One directory deeper. Raises OSError.

    Root's own are not taken either: links of a user lead there.
    """
    follow = 0 if outer is None else os.O_NOFOLLOW
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow, dir_fd=outer)
    if os.fstat(descriptor).st_uid == owner_uid:
        return descriptor
    os.close(descriptor)
    raise PermissionError(f"{name} is not a directory of the chain's user")
