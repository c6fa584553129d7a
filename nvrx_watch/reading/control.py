"""The control files of one generation of ours. Touches: its `control/` directory and its `record.json`, reads only.

All are written by renaming or linking them into place, so an unchanged stamp of both directories means unchanged files.
"""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import (
    Closed,
    ControlRecord,
    GenerationRecord,
    Joined,
    Lease,
    Left,
    NoRestart,
    Rendezvous,
)
from nvrx_chain.records.layout import GenerationDirectory, parse_indexed_name
from nvrx_watch.reading.directory import DirectoryStamp, OpenDirectory, look_at_directory, open_directory
from nvrx_watch.reading.messages import ControlPart

R = TypeVar("R", bound=ControlRecord)

_INDEXED: dict[str, type[ControlRecord]] = {"lease": Lease, "joined": Joined, "left": Left}
_MOST_NOTES = 3


class SavedControl(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache file keeps of a generation that is over. Both stamps as (inode, ns), None for no directory."""

    part: ControlPart
    stamps: tuple[tuple[int, int] | None, tuple[int, int] | None]


class ControlFiles:
    """The control files of one generation; `read` tells what changed since the call before."""

    def __init__(self, directory: GenerationDirectory, chain_id: str, owner_uid: int) -> None:
        self.directory = directory
        self._chain_id = chain_id
        self._owner_uid = owner_uid
        self.part: ControlPart | None = None
        self._told: ControlPart | None = None
        self._paths = (str(directory.path), str(directory.control))
        self._stamps: tuple[DirectoryStamp | None, DirectoryStamp | None] | None = None
        self.has_unsaved = False

    def save(self) -> SavedControl | None:
        """For the cache file; None while the generation is not over or its files may yet change."""
        if self._stamps is None or self.part is None or not self._is_complete():
            return None
        first, second = self._stamps
        return SavedControl(part=self.part, stamps=(_as_pair(first), _as_pair(second)))

    def restore(self, saved: SavedControl) -> None:
        """Take over what an earlier process saved."""
        first, second = saved.stamps
        self.part, self._stamps = saved.part, (_as_stamp(first), _as_stamp(second))

    def read(self, *, is_recent: bool) -> ControlPart | None:
        """Look again; None when nothing changed since the last call.

        `is_recent`: files may change at any moment, and a stamp that an NFS client remembers is too old for that.
        """
        self._look(is_recent)
        if self.part == self._told:
            return None
        self._told = self.part
        return self.part

    def _look(self, is_recent: bool) -> None:
        is_steady = self._is_complete() or (self._is_clean() and not is_recent)
        if is_steady and self._stamps == tuple(look_at_directory(path) for path in self._paths):
            return
        own, control = (open_directory(path, self._owner_uid) for path in self._paths)
        opened = [directory for directory in (own, control) if isinstance(directory, OpenDirectory)]
        try:
            stamps = tuple(each.stamp() if isinstance(each, OpenDirectory) else None for each in (own, control))
            failed = any(isinstance(each, Unobserved) for each in (own, control))
            now = time.time()
            self.part = self._read(own, control)
            settled = not failed and all(stamp is None or stamp.is_settled(now) for stamp in stamps)
            self._stamps = (stamps[0], stamps[1]) if settled else None
            self.has_unsaved = self.save() is not None
        except OSError as error:
            self.part, self._stamps = _unobserved(f"reading {self.directory.path}: {error.strerror or error}"), None
        finally:
            for directory in opened:
                directory.close()

    def _is_clean(self) -> bool:
        return self.part is not None and not self.part.unobserved

    def _is_complete(self) -> bool:
        """Whether the generation has ended, by its own record. A secret that others may not read is no matter."""
        part = self.part
        if part is None or part.closed is None or part.record is None or not part.record.ended_at:
            return False
        return part.unobserved.keys() <= {"rendezvous"}

    def _read(self, own: OpenDirectory | Unobserved | None, control: OpenDirectory | Unobserved | None) -> ControlPart:
        if isinstance(own, Unobserved):
            return _unobserved(own.reason)
        reading = _Reading(self.directory.array_job_id)
        record = reading.take(own, "record", "record.json", GenerationRecord)
        if record is not None and record.chain_id != self._chain_id:
            record = None
        if isinstance(control, Unobserved):
            reading.unobserved.update(dict.fromkeys(("rendezvous", "closed", "no_restart"), control.reason))
            control = None
        rendezvous = reading.take(control, "rendezvous", "rendezvous.json", Rendezvous)
        tasks = reading.take_indexed(control)
        return ControlPart(
            # Its secret opens the launchers' store to whoever reads a report of the watcher.
            rendezvous=msgspec.structs.replace(rendezvous, secret="") if rendezvous is not None else None,
            closed=reading.take(control, "closed", "closed.json", Closed),
            record=record,
            no_restart=reading.take(control, "no_restart", "no_restart.json", NoRestart),
            leases=tuple(lease for lease in tasks["lease"] if isinstance(lease, Lease)),
            joined=tuple(each.array_task_id for each in tasks["joined"]),
            left=tuple(each.array_task_id for each in tasks["left"]),
            unobserved=reading.unobserved,
            newest_ns=reading.newest_ns,
            notes=tuple(reading.notes),
        )


class _Reading:
    """One look at the files of one generation: what could not be read, and the newest time of change."""

    def __init__(self, array_job_id: int) -> None:
        self._array_job_id = array_job_id
        self.unobserved: dict[str, str] = {}
        self.newest_ns: int | None = None
        self.notes: list[str] = []

    def take(self, opened: OpenDirectory | None, field: str, name: str, kind: type[R]) -> R | None:
        """A record of this generation. One that another generation stamped counts as absent."""
        found = opened.record(name, kind) if opened is not None else None
        if isinstance(found, Unobserved):
            self.unobserved[field] = found.reason
            return None
        if found is None or found[0].array_job_id != self._array_job_id:
            return None
        self.newest_ns = max(found[1], self.newest_ns or 0)
        return found[0]

    def take_indexed(self, opened: OpenDirectory | None) -> dict[str, list[ControlRecord]]:
        """The readable files of single tasks by kind, in the order of the tasks."""
        found: dict[str, list[ControlRecord]] = {kind: [] for kind in _INDEXED}
        names = [(parsed, name) for name in (opened.names() if opened else ()) if (parsed := parse_indexed_name(name))]
        failed: list[str] = []
        for (kind, array_task_id), name in sorted(names):
            if kind not in _INDEXED or name != f"{kind}.{array_task_id}.json" or opened is None:
                continue
            record = opened.record(name, _INDEXED[kind])
            if isinstance(record, Unobserved):
                failed.append(record.reason)
            elif record is not None and _is_of(record[0], self._array_job_id, array_task_id):
                found[kind].append(record[0])
                self.newest_ns = max(record[1], self.newest_ns or 0)
        self.notes += failed[:_MOST_NOTES]
        if len(failed) > _MOST_NOTES:
            self.notes.append(f"and {len(failed) - _MOST_NOTES} more control files of job {self._array_job_id}")
        return found


def _is_of(record: ControlRecord, array_job_id: int, array_task_id: int) -> bool:
    return record.array_job_id == array_job_id and record.array_task_id == array_task_id


def _unobserved(reason: str) -> ControlPart:
    return ControlPart(unobserved=dict.fromkeys(("rendezvous", "closed", "record", "no_restart"), reason))


def _as_pair(stamp: DirectoryStamp | None) -> tuple[int, int] | None:
    return (stamp.inode, stamp.changed_ns) if stamp is not None else None


def _as_stamp(pair: tuple[int, int] | None) -> DirectoryStamp | None:
    return DirectoryStamp(*pair) if pair is not None else None
