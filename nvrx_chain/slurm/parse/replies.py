"""What sbatch, scancel and scontrol print after they were asked to change something. Pure.

Exit codes alone do not tell: scancel ends with 0, 1, 8 or 210, and 0 also when nothing happened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_JOB_ID = re.compile(r"(\d{1,18})(?:;([\w.-]+))?|Submitted batch job (\d{1,18})(?: on cluster ([\w.-]+))?", re.ASCII)
# The controller may have taken the request before the line broke.
_UNREACHABLE = re.compile(
    "|".join(
        (
            "socket timed out",
            "unable to contact",
            "zero bytes were transmitted",
            "transport endpoint is not connected",
            "connection (?:refused|timed out|reset|failure)",
            "connect failure",
            "communication (?:connection|shutdown) failure",
            "message (?:send|receive) failure",
            "unexpected message received",
            "header lengths are longer",
            "broken pipe",
            "no route to host",
            "network is unreachable",
            "controller in standby mode",
        )
    ),
    re.IGNORECASE,
)
_GONE = re.compile(
    r"invalid job id specified|already completing or completed|job has already finished|\bjob \S+ not found",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedId:
    """The id that sbatch gave, and the cluster where it named one."""

    array_job_id: int
    cluster: str | None


def parse_submitted(stdout: str) -> SubmittedId | None:
    """The job id in sbatch's standard output: its last line that is one, after whatever a site's wrapper printed."""
    for line in reversed(stdout.split("\n")):
        match = _JOB_ID.fullmatch(line.strip())
        if match is not None:
            return SubmittedId(array_job_id=int(match[1] or match[3]), cluster=match[2] or match[4])
    return None


def is_unreachable(text: str) -> bool:
    """The controller did not answer: whether it did what was asked cannot be told from this."""
    return _UNREACHABLE.search(text) is not None


def is_job_gone(text: str) -> bool:
    """Slurm says that there is no such job, or that it has ended."""
    return _GONE.search(text) is not None


def complaints(text: str) -> tuple[str, ...]:
    """The lines that tell of something else than a job that is gone."""
    return tuple(line.strip() for line in text.split("\n") if line.strip() and not is_job_gone(line))


def one_line(text: str, limit: int = 300) -> str:
    """A program's message fit for an error of one line, its end kept: the cause stands there."""
    joined = "; ".join(line.strip() for line in text.split("\n") if line.strip())
    return joined if len(joined) <= limit else f"...{joined[-limit:]}"
