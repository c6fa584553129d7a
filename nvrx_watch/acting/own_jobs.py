"""Which rows of a new reading of the queue are the watched chain's, asked before anything is done to them. Pure.

An id is a hint. A job of ours must show the chain's id in its comment besides name, user and submit time; a job of a
foreign chain its name, its user and the submit time that the pass saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from nvrx_chain.errors import IdentityError, Unobserved
from nvrx_chain.slurm.identity import ChainIdentity, verify_array
from nvrx_chain.slurm.model import AccountedTask, QueuedTask, QueueReading
from nvrx_watch.acting.deed import plain
from nvrx_watch.model import Queue, Snapshot, Subject

# squeue shows whole seconds.
_SUBMIT_TIME_SLACK_SECONDS = 2.0


class KnownJobs(msgspec.Struct, frozen=True, kw_only=True):
    """By what the jobs of a chain are known, as a pass saw them. `submitted_at` has every array job of the chain."""

    subject: Subject
    submitted_at: Mapping[int, datetime | None]

    def rows(self, reading: QueueReading, array_job_id: int) -> tuple[QueuedTask, ...]:
        """The rows of one array job; () when the reading has none. Raises IdentityError when any is not the chain's."""
        manifest = self.subject.manifest
        if manifest is None:
            return self._foreign_rows(reading, array_job_id)
        identity = ChainIdentity(
            chain_id=manifest.chain_id,
            job_name=manifest.job_name,
            user=manifest.user,
            submitted_at=self.submitted_at,
        )
        return verify_array(reading, array_job_id, identity)

    def _foreign_rows(self, reading: QueueReading, array_job_id: int) -> tuple[QueuedTask, ...]:
        expected = self.submitted_at.get(array_job_id)
        rows = reading.of(array_job_id)
        if rows and expected is None:
            raise _not_ours(f"this pass did not see when job {array_job_id} was submitted")
        for row in rows:
            if (row.name, row.user) != (self.subject.name, self.subject.user):
                raise _not_ours(f"job {row.spec} is {plain(row.name)!r} of {plain(row.user)}")
            if not is_same_time(row.submitted_at, expected):
                raise _not_ours(f"job {row.spec} was submitted at another time: its id was given out again")
        return rows

    def accounted(self, tasks: Sequence[AccountedTask], array_job_id: int) -> tuple[AccountedTask, ...]:
        """The accounting rows of one array job that are the chain's."""
        expected = self.submitted_at.get(array_job_id)
        return tuple(
            task
            for task in tasks
            if task.array_job_id == array_job_id
            and (task.name, task.user) == (self.subject.name, self.subject.user)
            and is_same_time(task.submitted_at, expected)
        )


def known_jobs(snapshot: Snapshot) -> KnownJobs:
    """What a snapshot knows of the chain's jobs. Without a submit time on record, that of the rows it saw counts."""
    seen: Mapping[int, tuple[QueuedTask, ...]] = {}
    if isinstance(snapshot.queue, Queue):
        seen = snapshot.queue.arrays
    submitted = {one.array_job_id: one.submitted_at for one in snapshot.generations}
    if not snapshot.subject.is_ours:
        submitted |= {job: submitted.get(job) for job in seen}
    for job, at in submitted.items():
        rows = seen.get(job, ())
        if at is None and rows:
            submitted[job] = rows[0].submitted_at
    return KnownJobs(subject=snapshot.subject, submitted_at=submitted)


def is_same_time(shown: datetime | None, expected: datetime | None) -> bool:
    """Whether a submit time is the expected one. One that is not shown is not; one that was never known is."""
    if expected is None:
        return True
    return shown is not None and abs((shown - expected).total_seconds()) <= _SUBMIT_TIME_SLACK_SECONDS


def doubt_about_end(
    array_job_id: int, rows: Sequence[QueuedTask], accounted: Sequence[AccountedTask] | Unobserved
) -> str | None:
    """Why task 0 of an array job may not have ended; None when it has. Both must be the chain's own rows.

    Slurm forgets an ended task after MinJobAge; then accounting must show the end, and no row may hide the task.
    """
    of_zero = [row for row in rows if row.array_task_id == 0]
    alive = next((row for row in of_zero if not row.state.is_terminal), None)
    if alive is not None:
        return f"task 0 of job {array_job_id} is {plain(alive.raw_state)}"
    if of_zero:
        return None
    if any(row.array_task_id is None and not row.state.is_terminal for row in rows):
        return f"Slurm cut its list of job {array_job_id} short: task 0 may be in it"
    if isinstance(accounted, Unobserved):
        return f"Slurm no longer lists task 0 of job {array_job_id}, and accounting: {accounted.reason}"
    ends = [task for task in accounted if task.array_task_id == 0]
    if not ends or not all(task.state.is_terminal for task in ends):
        return f"Slurm no longer lists task 0 of job {array_job_id}, and accounting does not show its end"
    return None


def waits_by_own_id(row: QueuedTask) -> bool:
    """Whether this row is one waiting array task that can be named by itself.

    A row without an index stands for several, and the id of a job that is no array names all of it.
    """
    return row.state.is_pending and row.is_array and row.array_task_id is not None


def is_unnamed(row: QueuedTask) -> bool:
    """Whether a live row stands for tasks that could not be told apart."""
    return row.array_task_id is None and not row.state.is_terminal


def _not_ours(what: str) -> IdentityError:
    return IdentityError("act on a job", part=what, hint="nothing was done to it")
