"""sacct: the columns that are asked for, and its rows as accounted tasks. Pure.

What it says is weaker than it looks: 22.05 shows the tasks of an array seconds late, prints the cancelled rest of an
array under its first range or under the bare id, and cuts the highest bit off exit codes (so does 24.11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.slurm.model import AccountedTask
from nvrx_chain.slurm.parse.rows import split_rows
from nvrx_chain.slurm.parse.values import parse_exit, parse_number, parse_slurm_time, parse_text
from nvrx_chain.slurm.states import parse_job_state

# Column and field of `sacct --format`, free text last.
ACCOUNTING_COLUMNS = (
    ("id", "JobID"),
    ("raw_id", "JobIDRaw"),
    ("user", "User"),
    ("state", "State"),
    ("submitted", "Submit"),
    ("started", "Start"),
    ("ended", "End"),
    ("exit", "ExitCode"),
    ("nodelist", "NodeList"),
    ("work_dir", "WorkDir"),
    ("comment", "Comment"),
    ("name", "JobName"),
)
_NAMES = tuple(name for name, _field in ACCOUNTING_COLUMNS)
_ID = re.compile(r"(?P<job>\d{1,18})(?:\+\d+)?(?:_(?:(?P<task>\d{1,9})|\[.*))?(?:\.(?P<step>[^.\[\]]*))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAccounting:
    """The allocations with the codes of their steps, and the lines that are neither."""

    tasks: tuple[AccountedTask, ...]
    junk: tuple[str, ...]


def accounting_arguments(separator: str, array_job_ids: Sequence[int]) -> tuple[str, ...]:
    """Arguments for these array jobs with their steps, from any time.

    No time window: a generation that was cancelled while it waited is found by its id and by no window.
    """
    return (
        "--noheader",
        "--parsable2",
        f"--delimiter={separator}",
        "--jobs=" + ",".join(str(job) for job in array_job_ids),
        "--format=" + ",".join(field for _name, field in ACCOUNTING_COLUMNS),
    )


def parse_accounting(text: str, separator: str, columns: Sequence[str] = _NAMES) -> ParsedAccounting:
    """One task per allocation, with the exit codes of its numbered steps.

    `columns` names what stands where in a recording of another format; `id`, `state` and `exit` must be among them.
    A row for the rest of an array has array_task_id None and is never counted out into tasks. A bare id is a plain
    job (its own task 0) when it had nodes; without, it may be the rest of an array, and has None too.
    """
    rows = split_rows(text, columns, separator)
    junk = list(rows.junk)
    allocations: dict[str, tuple[re.Match[str], Mapping[str, str]]] = {}
    steps: dict[str, list[int]] = {}
    for record in rows.records:
        match = _ID.fullmatch(record["id"])
        if match is None:
            junk.append(separator.join(record.values()))
        elif match["step"] is None:
            allocations[record["id"]] = match, record
        elif match["step"].isdigit():
            code, _signal = parse_exit(record["exit"])
            # While a step runs, sacct prints 0:0 where its exit code will be.
            if code is not None and parse_job_state(record["state"]).state.is_terminal:
                steps.setdefault(record["id"].rpartition(".")[0], []).append(code)
    tasks = tuple(
        _allocation(match, record, tuple(steps.get(name, ()))) for name, (match, record) in allocations.items()
    )
    return ParsedAccounting(tasks=tasks, junk=tuple(junk))


def _allocation(match: re.Match[str], record: Mapping[str, str], step_exit_codes: tuple[int, ...]) -> AccountedTask:
    parsed = parse_job_state(record["state"])
    code, signal = parse_exit(record["exit"]) if parsed.state.is_terminal else (None, None)
    nodelist = parse_text(record.get("nodelist", ""))
    is_plain = "_" not in record["id"] and bool(nodelist)
    return AccountedTask(
        job_id=parse_number(record.get("raw_id", "")),
        array_job_id=int(match["job"]),
        array_task_id=0 if is_plain else parse_number(match["task"] or ""),
        state=parsed.state,
        raw_state=parsed.raw,
        cancelled_by=parsed.cancelled_by,
        exit_code=code,
        exit_signal=signal,
        step_exit_codes=step_exit_codes,
        submitted_at=parse_slurm_time(record.get("submitted", "")),
        started_at=parse_slurm_time(record.get("started", "")),
        ended_at=parse_slurm_time(record.get("ended", "")),
        nodelist=nodelist,
        user=parse_text(record.get("user", "")),
        name=record.get("name", ""),
        work_dir=parse_text(record.get("work_dir", "")),
        comment=parse_text(record.get("comment", "")),
    )
