"""Which rows of a queue reading are the chain's: beyond doubt, doubtful, or a stranger's in its way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from nvrx_chain.slurm import chain_queue
from nvrx_chain.slurm.identity import ChainIdentity, parse_comment
from nvrx_chain.slurm.model import QueuedTask, QueueReading
from nvrx_watch.model import Generation, Queue, Subject


def identity_of(subject: Subject, submitted_at: dict[int, datetime | None]) -> ChainIdentity | None:
    """By what the jobs of a chain of ours are known; None for a foreign chain."""
    if subject.chain_id is None or not subject.is_ours:
        return None
    return ChainIdentity(chain_id=subject.chain_id, job_name=subject.name, user=subject.user, submitted_at=submitted_at)


def sort_queue(
    reading: QueueReading,
    subject: Subject,
    generations: tuple[Generation, ...],
    open_stamps: Sequence[str],
    *,
    asked_job_id: int | None,
    watcher_uid: int,
) -> tuple[tuple[Generation, ...], Queue]:
    """The generations, those that only the queue knows included, and what the queue shows of them."""
    sees_user = watcher_uid in (0, subject.uid) or any(task.user == subject.user for task in reading.tasks)
    if subject.is_ours:
        generations = _with_adopted(reading, generations, open_stamps)
        return generations, _own_queue(reading, subject, generations, sees_user)
    generations = _with_foreign(reading, subject, generations, asked_job_id)
    arrays = {one.array_job_id: _named_rows(reading, subject, one.array_job_id) for one in generations}
    return generations, Queue(
        arrays={job: rows for job, rows in arrays.items() if rows}, sees_user=sees_user, read_at=reading.read_at
    )


def _own_queue(reading: QueueReading, subject: Subject, generations: tuple[Generation, ...], sees_user: bool) -> Queue:
    identity = identity_of(subject, {one.array_job_id: one.submitted_at for one in generations})
    assert identity is not None
    sorted_rows = chain_queue.sort_queue(reading, identity)
    return Queue(
        arrays=sorted_rows.arrays,
        doubtful=sorted_rows.doubtful,
        foreign=tuple(task for task in reading.tasks if _is_in_the_way(task, subject, identity)),
        sees_user=sees_user,
        read_at=reading.read_at,
    )


def _is_in_the_way(task: QueuedTask, subject: Subject, identity: ChainIdentity) -> bool:
    """A live job that singleton counts as one of the chain, or that carries its comment, and is not on record."""
    if task.state.is_terminal or task.user != subject.user or task.array_job_id in identity.submitted_at:
        return False
    stamp = parse_comment(task.comment)
    return task.name == subject.name or (stamp is not None and stamp[0] == subject.chain_id)


def _with_adopted(
    reading: QueueReading, generations: tuple[Generation, ...], open_stamps: Sequence[str]
) -> tuple[Generation, ...]:
    """And the jobs whose submission was recorded and whose id was not: sbatch's reply got lost."""
    known = {one.array_job_id for one in generations}
    stamps = set(open_stamps)
    found: dict[int, Generation] = {}
    for task in reading.tasks:
        if task.comment in stamps and task.array_job_id not in known:
            stamp = parse_comment(task.comment)
            sequence = stamp[1] if stamp is not None and stamp[1] is not None else len(generations) + 1
            found[task.array_job_id] = Generation(array_job_id=task.array_job_id, sequence=sequence)
    return tuple(sorted((*generations, *found.values()), key=lambda one: (one.sequence, one.array_job_id)))


def _with_foreign(
    reading: QueueReading, subject: Subject, generations: tuple[Generation, ...], asked_job_id: int | None
) -> tuple[Generation, ...]:
    """Array jobs of the same name and user are generations of one chain: that is what singleton makes of them."""
    known = {one.array_job_id: one for one in generations}
    ids = {task.array_job_id for task in reading.tasks if task.name == subject.name and task.user == subject.user}
    if asked_job_id is not None:
        ids.add(asked_job_id)
    for job in ids:
        if job not in known:
            known[job] = Generation(array_job_id=job, sequence=0)
    return tuple(
        Generation(
            array_job_id=one.array_job_id,
            sequence=at,
            submitted_at=one.submitted_at,
            has_directory=one.has_directory,
            cycles=one.cycles,
            unreadable_cycles=one.unreadable_cycles,
            log=one.log,
        )
        for at, (_, one) in enumerate(sorted(known.items()), start=1)
    )


def _named_rows(reading: QueueReading, subject: Subject, array_job_id: int) -> tuple[QueuedTask, ...]:
    rows = reading.of(array_job_id)
    if any(row.name != subject.name or row.user != subject.user for row in rows):
        return ()
    return rows
