"""The control directory of one generation: what this task writes there and what it believes of the others' files.

A file that is absent, unreadable or of another generation is no statement. Touches: the run directory.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.generation.identity import TaskIdentity
from nvrx_chain.records import control
from nvrx_chain.records.files import encode_record, list_names, read_bytes, read_record, write_atomic, write_first
from nvrx_chain.records.layout import GenerationDirectory, parse_indexed_name, parse_segment_health_name
from nvrx_chain.records.outcome import Outcome

log = logging.getLogger(__name__)

R = TypeVar("R", bound=control.ControlRecord)

DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Board:
    """Reads and writes the control files of `directory` on behalf of `identity`.

    `owner_uid`: files and directories of anybody but that user and root are not believed; None where nobody asks.
    """

    directory: GenerationDirectory
    identity: TaskIdentity
    clock: Clock
    owner_uid: int | None = field(default=None)

    def prepare(self) -> None:
        """Make the directories of the generation. Every task does; the first one wins.

        Raises RecordError, also for one that is a link or somebody else's: what is written would land elsewhere.
        """
        own = self.directory
        for path in (own.path.parent, own.path, own.control, own.logs, own.cycle_infos, own.timeline):
            try:
                path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
                status = path.lstat()
            except OSError as error:
                raise RecordError(f"making {path}: {error.strerror or error}", part=path.name) from error
            if not stat.S_ISDIR(status.st_mode) or self.owner_uid not in (None, status.st_uid):
                raise RecordError(f"making {path}: it is there and is no directory of ours", part=path.name)

    # Reading

    def read(self, path: Path, kind: type[R]) -> R | Unobserved | None:
        """One control file of this generation; a file stamped by another generation counts as absent."""
        record = read_record(path, kind, owner_uid=self.owner_uid)
        if record is None or isinstance(record, Unobserved):
            return record
        if record.array_job_id != self.directory.array_job_id:
            log.warning("ignoring a file of another generation path=%s array_job_id=%s", path, record.array_job_id)
            return None
        return record

    def closed(self) -> control.Closed | Unobserved | None:
        """Whether the generation is over. A damaged `closed.json` is `Unobserved`: look again."""
        return self.read(self.directory.closed, control.Closed)

    def rendezvous(self) -> control.Rendezvous | None:
        """The published rendezvous, None while there is none that can be believed."""
        return _believed(self.read(self.directory.rendezvous, control.Rendezvous))

    def indexed(self, prefix: str) -> tuple[int, ...] | Unobserved:
        """The tasks that wrote `<prefix>.<k>.json`. Lists the directory, which also refreshes an NFS name cache."""
        names = list_names(self.directory.control)
        if names is None:
            return ()
        if isinstance(names, Unobserved):
            return names
        found = (parse_indexed_name(name) for name in names)
        return tuple(sorted(item[1] for item in found if item is not None and item[0] == prefix))

    def leases(self, tasks: tuple[int, ...]) -> dict[int, tuple[int, float]]:
        """Counter and interval (seconds) of the lease of each task that has a readable one."""
        found = {}
        for task in tasks:
            lease = self.lease(task)
            if lease is not None:
                found[task] = (lease.counter, lease.interval_seconds)
        return found

    def lease(self, task: int) -> control.Lease | None:
        """The lease of one task, None while there is none that can be read."""
        return _believed(self.look_for_lease(task))

    def look_for_lease(self, task: int) -> control.Lease | Unobserved | None:
        """The lease of one task; None when it wrote none, which is not the same as one that cannot be read."""
        return self.read(self.directory.lease(task), control.Lease)

    def launcher_exit(self, name: str) -> control.LauncherExit | None:
        """The launcher exit in the file of this name. One of an earlier start of this very task is none."""
        record = _believed(self.read(self.directory.control / name, control.LauncherExit))
        if record is None or record.array_task_id != self.identity.array_task_id:
            return record
        return record if record.restart_count == self.identity.restart_count else None

    def joined_nodes(self, task: int) -> tuple[str, ...]:
        """The nodes of a task that is at the gate; () while it is not known to be."""
        joined = _believed(self.read(self.directory.joined(task), control.Joined))
        return joined.nodes if joined is not None else ()

    def look_for_drain(self, task: int) -> control.Drained | Unobserved | None:
        """What task 0 published about the nodes of a task; a marker of another generation is `Unobserved`."""
        path = self.directory.drained(task)
        found = read_record(path, control.Drained, owner_uid=self.owner_uid)
        if isinstance(found, control.Drained) and found.array_job_id != self.directory.array_job_id:
            return Unobserved(f"{path} is of generation {found.array_job_id}")
        return found

    def excluded_tasks(self) -> tuple[int, ...]:
        """The tasks that launchers with NVRx's segment health check keep out."""
        names = list_names(self.directory.control)
        if isinstance(names, Unobserved):
            log.warning("exclusions cannot be listed reason=%s", names.reason)
            return ()
        found = (parse_segment_health_name(name) for name in names or ())
        tasks = [task for job, task in filter(None, found) if job == self.directory.array_job_id]
        said = {
            task: read_bytes(self.directory.segment_health(task), owner_uid=self.owner_uid) for task in sorted(tasks)
        }
        return tuple(task for task, content in said.items() if isinstance(content, bytes) and content)

    def silence(self, task: int) -> control.Silence | None:
        """What a task last wrote about whether task 0 answers it, None while there is nothing that can be read."""
        return _believed(self.read(self.directory.silence(task), control.Silence))

    def no_restart(self) -> control.NoRestart | None:
        """The no-restart verdict of any node of any task."""
        return _believed(self.read(self.directory.no_restart, control.NoRestart))

    def walltime(self) -> bool:
        """Whether Slurm warned any task of the time limit."""
        return _believed(self.read(self.directory.walltime, control.Walltime)) is not None

    def inquiry(self) -> control.Inquiry | None:
        """The last inquiry at Slurm."""
        return _believed(self.read(self.directory.inquiry, control.Inquiry))

    # Writing

    def publish(self, rendezvous: control.Rendezvous) -> None:
        """Publish or renew the rendezvous; readable by the owner only, for its secret."""
        write_atomic(self.directory.rendezvous, encode_record(rendezvous), mode=0o600)

    def join(self) -> None:
        """Say that this task is at the gate."""
        record = control.Joined(nodes=self.identity.nodes, joined_at=self._now(), **self.identity.stamp())
        write_atomic(self.directory.joined(self.identity.array_task_id), encode_record(record))

    def write_lease(self, counter: int, interval_seconds: float, phase: str) -> None:
        """Write this task's lease."""
        record = control.Lease(counter=counter, interval_seconds=interval_seconds, phase=phase, **self.identity.stamp())
        write_atomic(self.directory.lease(self.identity.array_task_id), encode_record(record))

    def leave(self, evidence: str) -> None:
        """Say that no rank of this task lives any more."""
        record = control.Left(left_at=self._now(), evidence=evidence, **self.identity.stamp())
        write_atomic(self.directory.left(self.identity.array_task_id), encode_record(record))

    def write_drained(self, record: control.Drained) -> None:
        """Say that nodes of a task are drained, or that they are not any more."""
        write_atomic(self.directory.drained(record.task), encode_record(record))

    def exclude(self, task: int, nodes: tuple[str, ...]) -> None:
        """Keep a task out of the launchers' next rendezvous because of these nodes; no nodes let it in again."""
        write_atomic(self.directory.segment_health(task), ",".join(nodes).encode())

    def say_silent(self, silent: bool, seconds: float) -> None:
        """Say whether task 0 answers this task over the link."""
        record = control.Silence(silent=silent, seconds=seconds, written_at=self._now(), **self.identity.stamp())
        write_atomic(self.directory.silence(self.identity.array_task_id), encode_record(record))

    def warn_of_walltime(self) -> None:
        """Say that Slurm announced the time limit."""
        record = control.Walltime(warned_at=self._now(), **self.identity.stamp())
        write_first(self.directory.walltime, encode_record(record))

    def clear(self, evidence: str, leases: Mapping[int, control.LeaseSeen]) -> None:
        """Say that nothing of the closed generation is left in the queue."""
        record = control.Cleared(
            cleared_at=self._now(), evidence=evidence, leases=_by_task(leases), **self.identity.stamp()
        )
        write_first(self.directory.cleared, encode_record(record))

    def cleared(self) -> control.Cleared | None:
        """Who verified that nothing of the closed generation is left in the queue, None while nobody did."""
        return _believed(self.read(self.directory.cleared, control.Cleared))

    def note_inquiry(self, about: int, answer: str, evidence: str) -> None:
        """Say that this task asks Slurm about `about`, or what it answered, so that the others hold back.

        A courtesy: where it cannot be written the question is asked all the same.
        """
        record = control.Inquiry(
            about=about, answer=answer, evidence=evidence, asked_at=self._now(), **self.identity.stamp()
        )
        try:
            write_atomic(self.directory.inquiry, encode_record(record))
        except RecordError as error:
            log.warning("the inquiry was not noted error=%s", error)

    def close(
        self,
        outcome: Outcome,
        *,
        exit_code: int | None,
        evidence: tuple[str, ...],
        leases: Mapping[int, control.LeaseSeen],
    ) -> bool:
        """Close the generation unless somebody did; True when this call won.

        The stamp names the generation that is closed; `closed_by` names the writer, which may be of a later one.
        """
        stamp = self.identity.stamp()
        stamp["array_job_id"] = self.directory.array_job_id
        record = control.Closed(
            outcome=outcome,
            exit_code=exit_code,
            closed_by=f"{self.identity.spec} on {self.identity.host}",
            closed_at=self._now(),
            evidence=evidence,
            leases=_by_task(leases),
            **stamp,
        )
        won = write_first(self.directory.closed, encode_record(record))
        if won:
            log.info("closed generation=%s outcome=%s", self.directory.array_job_id, outcome.value)
        return won

    def _now(self) -> str:
        return format_time(self.clock.now())


def _by_task(leases: Mapping[int, control.LeaseSeen]) -> dict[str, control.LeaseSeen]:
    return {str(task): seen for task, seen in sorted(leases.items())}


def _believed(record: R | Unobserved | None) -> R | None:
    if isinstance(record, Unobserved):
        log.warning("ignoring an unreadable file reason=%s", record.reason)
        return None
    return record
