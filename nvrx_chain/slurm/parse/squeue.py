"""squeue: the columns that are asked for, and its rows as tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.slurm.array import parse_array_spec
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.parse.rows import split_rows
from nvrx_chain.slurm.parse.values import parse_number, parse_slurm_time, parse_text
from nvrx_chain.slurm.states import parse_job_state

# Column and code of `squeue --format`, free text last. The argument builder and the parser share this one list.
QUEUE_COLUMNS = (
    ("job_id", "%A"),
    ("array_job_id", "%F"),
    ("array_task", "%K"),
    ("state", "%T"),
    ("reason", "%r"),
    ("nodelist", "%N"),
    ("partition", "%P"),
    ("dependency", "%E"),
    ("user", "%u"),
    ("submitted", "%V"),
    ("started", "%S"),
    ("work_dir", "%Z"),
    ("comment", "%k"),
    ("name", "%j"),
)
_NAMES = tuple(name for name, _code in QUEUE_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQueue:
    """The tasks, and the lines that are none."""

    tasks: tuple[QueuedTask, ...]
    junk: tuple[str, ...]


def queue_arguments(separator: str, user: str | None) -> tuple[str, ...]:
    """Arguments for every task in every state, hidden partitions too. User None: everybody's.

    Never filtered by name: `squeue --name` ignores case and splits at commas. Never `--array`: 22.05 leaves out the
    last task of a list with a step (of `0-38:2` it shows none after 36), so the parser counts the lists out itself.
    """
    wanted = separator.join(code for _name, code in QUEUE_COLUMNS)
    arguments = ("--noheader", "--all", "--states=all", f"--format={wanted}")
    return arguments if user is None else (*arguments, f"--user={user}")


def parse_queue(text: str, separator: str, columns: Sequence[str] = _NAMES) -> ParsedQueue:
    """Rows as tasks; a row that stands for several pending tasks becomes one task for each index.

    `columns` names what stands where in a recording of another format; `array_job_id`, `array_task` and `state`
    must be among them. A list of indices that Slurm cut short gives the tasks that it shows and one with index None;
    so does the rest of an array that was cancelled before it started, of which Slurm no longer says what it was.
    """
    rows = split_rows(text, columns, separator)
    tasks: list[QueuedTask] = []
    junk = list(rows.junk)
    for record in rows.records:
        if record.get("job_id") == "JOBID" or record["array_job_id"] == "ARRAY_JOB_ID":
            continue
        found = _tasks(record)
        tasks += found
        if not found:
            junk.append(separator.join(record.values()))
    return ParsedQueue(tasks=tuple(tasks), junk=tuple(junk))


def _tasks(record: Mapping[str, str]) -> list[QueuedTask]:
    array_job_id = parse_number(record["array_job_id"])
    job_id = parse_number(record["job_id"]) if "job_id" in record else array_job_id
    if array_job_id is None or job_id is None:
        return []
    spec = parse_array_spec(record["array_task"])
    if spec is None:
        if parse_job_state(record["state"]).state.is_terminal and not parse_text(record.get("nodelist", "")):
            # The cancelled rest of an array is printed like a plain job; as task 0 it would be a bogus ending.
            return [_task(record, job_id, array_job_id, None, is_array=True)]
        return [_task(record, job_id, array_job_id, 0, is_array=False)]
    indices: list[int | None] = list(spec.indices)
    if not spec.complete:
        indices.append(None)
    return [_task(record, job_id, array_job_id, index, is_array=True) for index in indices]


def _task(
    record: Mapping[str, str], job_id: int, array_job_id: int, index: int | None, *, is_array: bool
) -> QueuedTask:
    parsed = parse_job_state(record["state"])
    return QueuedTask(
        job_id=job_id,
        array_job_id=array_job_id,
        array_task_id=index,
        is_array=is_array,
        state=parsed.state,
        raw_state=parsed.raw,
        reason=parse_text(record.get("reason", "")),
        nodelist=parse_text(record.get("nodelist", "")),
        partition=parse_text(record.get("partition", "")),
        dependency=parse_text(record.get("dependency", "")),
        user=parse_text(record.get("user", "")),
        submitted_at=parse_slurm_time(record.get("submitted", "")),
        # Of a pending task squeue prints when it might start.
        started_at=None if parsed.state.is_pending else parse_slurm_time(record.get("started", "")),
        comment=parse_text(record.get("comment", "")),
        work_dir=parse_text(record.get("work_dir", "")),
        name=record.get("name", ""),
    )
