"""What is asked of PySlurm's objects, by attribute, and how a value of one is read. Pure.

A record is what pyslurm_worker.py sends of one object: attribute -> value as JSON carries it. An attribute that PySlurm
could not compute is absent. Nothing in a record is believed to have its type: what is not as it should be is "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from nvrx_chain.slurm.parse.values import parse_number, parse_text

Record = Mapping[str, object]

JOB_FIELDS = (
    "id",
    "array_id",
    "array_task_id",
    "array_tasks_waiting",
    "array_tasks_parallel",
    "name",
    "user_id",
    "user_name",
    "state",
    "state_reason",
    "dependencies",
    "allocated_nodes",
    "batch_host",
    "partition",
    "comment",
    "working_directory",
    "command",
    "time_limit",
    "submit_time",
    "start_time",
    "end_time",
    "exit_code",
    "exit_code_signal",
    "is_requeueable",
    "requeue_count",
)
NODE_FIELDS = ("name", "state", "reason")
ACCOUNTED_FIELDS = (
    "id",
    "array_id",
    "array_task_id",
    "name",
    "user_id",
    "user_name",
    "cancelled_by",
    "state",
    "nodelist",
    "comment",
    "working_directory",
    "submit_time",
    "start_time",
    "end_time",
    "exit_code",
    "exit_code_signal",
)
STEP_FIELDS = ("id", "state", "exit_code")


def text_of(record: Record, field: str) -> str:
    """The text, empty where there is none or it is no text."""
    value = record.get(field)
    return parse_text(value) if isinstance(value, str) else ""


def number_of(record: Record, field: str) -> int | None:
    """The whole number, at least 0 and of at most 18 digits, else None."""
    value = record.get(field)
    # True is an int.
    return parse_number(str(value)) if isinstance(value, int) and not isinstance(value, bool) else None


def time_of(record: Record, field: str) -> datetime | None:
    """The instant of an epoch in seconds, else None."""
    seconds = number_of(record, field)
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None


def name_of(record: Record) -> str:
    """The job name, blanks and all: it is compared with what was asked for."""
    value = record.get("name")
    return value if isinstance(value, str) else ""


def user_of(record: Record) -> str:
    """The user's name; his number where this machine does not know him, as squeue prints it; empty when not shown."""
    number = number_of(record, "user_id")
    return text_of(record, "user_name") or ("" if number is None else str(number))
