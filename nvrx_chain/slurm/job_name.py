"""A job id in any of the forms in which Slurm prints it and people type it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_JOB = re.compile(r"(\d{1,18})(?:_(?:(\d{1,9})|\[[\d,:%-]{1,1000}\]))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName:
    """A job id as somebody wrote it; `array_task_id` None unless exactly one task was named."""

    job_id: int
    array_task_id: int | None


def parse_job_name(text: str) -> JobName | None:
    """Read `123`, `123_4` or `123_[2-4%2]`; None for any other text."""
    match = _JOB.fullmatch(text)
    if match is None:
        return None
    return JobName(job_id=int(match[1]), array_task_id=int(match[2]) if match[2] else None)
