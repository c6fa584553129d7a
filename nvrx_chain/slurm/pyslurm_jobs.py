"""PySlurm's job records as tasks and job details. Pure; tests/fixtures/pyslurm has what PySlurm really shows.

PySlurm takes 0 for "not set", so array task 0 has no index, like the waiting rest of its array and like the rest that
was cancelled before it started. Which of them a record is follows from nodes and start time, else it is unknown: a row
that stands for the wrong task 0 would pass for its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvrx_chain.slurm.array import NO_ARRAY_TASK, parse_array_spec
from nvrx_chain.slurm.model import JobDetail, QueuedTask
from nvrx_chain.slurm.pyslurm_fields import Record, name_of, number_of, text_of, time_of, user_of
from nvrx_chain.slurm.states import JobState, parse_job_state

NOT_SHOWN = "(not shown)"
"""A dependency, or a part of one, that PySlurm does not tell: it says that nothing is a singleton."""

_DEPENDENCY_KINDS = ("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedQueue:
    """The tasks, and what is wrong with the records of which not even the job is known."""

    tasks: tuple[QueuedTask, ...]
    junk: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Which tasks of which array job a record is. An index of None stands for tasks that cannot be told apart.

    `is_inferred`: it is task 0 only because it looks like one.
    """

    job_id: int
    array_job_id: int
    is_array: bool
    indices: tuple[int | None, ...]
    is_inferred: bool = False


def convert_queue(records: Sequence[object]) -> ConvertedQueue:
    """Records as tasks; one that stands for several waiting tasks becomes one task for each index."""
    rows: list[tuple[QueuedTask, bool]] = []
    junk: list[str] = []
    for shown in records:
        try:
            place, record = _place_record(shown)
        except ValueError as error:
            junk.append(str(error))
            continue
        rows += [(_task(record, place, index), place.is_inferred) for index in place.indices]
    claims = Counter((row.array_job_id, row.array_task_id) for row, _ in rows)
    tasks = tuple(
        replace(row, array_task_id=None) if is_inferred and claims[row.array_job_id, row.array_task_id] > 1 else row
        for row, is_inferred in rows
    )
    return ConvertedQueue(tasks=tasks, junk=tuple(junk))


def convert_details(records: Sequence[object]) -> tuple[JobDetail, ...]:
    """Records as `scontrol show job` tells them apart. Raises ValueError for one of which not even the job is known."""
    placed = [_place_record(record) for record in records]
    inferred = Counter(place.array_job_id for place, _ in placed if place.is_inferred)
    return tuple(_detail(record, place, is_sure=inferred[place.array_job_id] < 2) for place, record in placed)


def _place_record(record: object) -> tuple[_Place, Record]:
    if not isinstance(record, dict):
        raise ValueError(f"PySlurm showed no record but {str(record)[:80]!r}")
    job_id = number_of(record, "id")
    array_job_id = number_of(record, "array_id")
    if not job_id:
        raise ValueError(f"PySlurm showed a job without an id: {str(record.get('id'))[:80]!r}")
    if array_job_id is None and ("array_id" not in record or record["array_id"] is not None):
        raise ValueError(f"PySlurm did not show of which array job {job_id} is")
    if not array_job_id:
        return _plain(record, job_id), record
    index = number_of(record, "array_task_id")
    if index is not None:
        place = _Place(job_id=job_id, array_job_id=array_job_id, is_array=True, indices=(_index(index),))
    else:
        place = _without_index(record, job_id, array_job_id)
    return place, record


def _index(number: int) -> int | None:
    return None if number >= NO_ARRAY_TASK else number


def _plain(record: Record, job_id: int) -> _Place:
    """A job that is no array is its own task 0, unless it has what only an array has."""
    is_array = record.get("array_task_id") is not None or record.get("array_tasks_waiting") is not None
    return _Place(job_id=job_id, array_job_id=job_id, is_array=is_array, indices=(None if is_array else 0,))


def _without_index(record: Record, job_id: int, array_job_id: int) -> _Place:
    state = parse_job_state(text_of(record, "state")).state
    waiting = record.get("array_tasks_waiting")
    has_nodes = bool(text_of(record, "allocated_nodes"))
    unknown = _Place(job_id=job_id, array_job_id=array_job_id, is_array=True, indices=(None,))
    if record.get("array_task_id") is not None:
        return unknown
    if waiting is None:
        if has_nodes and not state.is_pending and time_of(record, "start_time") is not None:
            return replace(unknown, indices=(0,), is_inferred=True)
        # Ended without nodes: cancelled before it started. Anything else without nodes: nobody knows.
        return unknown
    spec = parse_array_spec(waiting) if isinstance(waiting, str) else None
    if spec is None or has_nodes or not (state.is_pending or state is JobState.CANCELLED):
        return unknown
    return replace(unknown, indices=(*spec.indices, *(() if spec.complete and spec.indices else (None,))))


def _task(record: Record, place: _Place, index: int | None) -> QueuedTask:
    parsed = parse_job_state(text_of(record, "state"))
    nodelist = text_of(record, "allocated_nodes")
    return QueuedTask(
        job_id=place.job_id,
        array_job_id=place.array_job_id,
        array_task_id=index,
        is_array=place.is_array,
        state=parsed.state,
        raw_state=parsed.raw,
        reason=text_of(record, "state_reason"),
        nodelist=nodelist,
        partition=text_of(record, "partition"),
        dependency=_dependency(record),
        user=user_of(record),
        submitted_at=time_of(record, "submit_time"),
        # Of a pending task it is when it might start; of the cancelled rest of an array it is when that was cancelled.
        started_at=time_of(record, "start_time") if nodelist and not parsed.state.is_pending else None,
        comment=text_of(record, "comment"),
        name=name_of(record),
        work_dir=text_of(record, "working_directory"),
    )


def _dependency(record: Record) -> str:
    """In Slurm's words, with NOT_SHOWN for what PySlurm may have left out; empty when there is none."""
    shown = record.get("dependencies", NOT_SHOWN)
    if shown is None:
        return ""
    parts: list[str] = []
    is_whole = isinstance(shown, dict) and shown.get("singleton") is True
    if isinstance(shown, dict):
        parts += ["singleton"] if is_whole else []
        for kind in _DEPENDENCY_KINDS:
            jobs = shown.get(kind)
            numbers = [job for job in jobs if isinstance(job, int)] if isinstance(jobs, list) else []
            parts += [f"{kind}:{job}" for job in numbers]
            is_whole = is_whole and numbers == jobs
    return ",".join(parts if is_whole else [*parts, NOT_SHOWN])


def _detail(record: Record, place: _Place, *, is_sure: bool) -> JobDetail:
    state = parse_job_state(text_of(record, "state")).state
    waiting = text_of(record, "array_tasks_waiting")
    index = None if waiting or (place.is_inferred and not is_sure) else place.indices[0]
    nodelist, requeue = text_of(record, "allocated_nodes"), record.get("is_requeueable")
    minutes = number_of(record, "time_limit")
    return JobDetail(
        job_id=place.job_id,
        array_job_id=place.array_job_id,
        array_task_id=index,
        name=name_of(record),
        user=user_of(record),
        state=state,
        reason=text_of(record, "state_reason"),
        dependency=_dependency(record),
        requeue=requeue if isinstance(requeue, bool) else None,
        restarts=number_of(record, "requeue_count") or 0,
        exit_code=number_of(record, "exit_code") if state.is_terminal else None,
        exit_signal=number_of(record, "exit_code_signal") if state.is_terminal else None,
        array_task_throttle=number_of(record, "array_tasks_parallel") or None,
        nodelist=nodelist,
        batch_host=text_of(record, "batch_host"),
        comment=text_of(record, "comment"),
        work_dir=text_of(record, "working_directory"),
        command=text_of(record, "command"),
        partition=text_of(record, "partition"),
        time_limit_seconds=None if minutes is None else minutes * 60,
        submitted_at=time_of(record, "submit_time"),
        started_at=time_of(record, "start_time") if nodelist and not state.is_pending else None,
        # Of a running job it is when its time will be up.
        ended_at=time_of(record, "end_time") if state.is_terminal or state is JobState.COMPLETING else None,
        fields={"ArrayTaskId": waiting} if waiting else {},
    )
