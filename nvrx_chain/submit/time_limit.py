"""Time limits as sbatch writes them (man sbatch, --time). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNLIMITED = frozenset({"infinite", "unlimited", "-1", "0"})
_PLAIN = re.compile(r"(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_DAYS = re.compile(r"(\d{1,6})-(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """A limit that was asked for: the text for sbatch, and its length. `seconds` None asks for no limit."""

    text: str
    seconds: int | None


def parse_time_limit(text: str) -> TimeLimit:
    """Read minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS, 0 or UNLIMITED. Raises ValueError."""
    if text.lower() in _UNLIMITED:
        return TimeLimit(text=text, seconds=None)
    if match := _DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    elif match := _PLAIN.fullmatch(text):
        total = _plain_seconds([int(part) for part in match.groups() if part is not None])
    else:
        raise ValueError(f"{text!r} is no time limit: write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS")
    if total == 0:
        return TimeLimit(text=text, seconds=None)
    return TimeLimit(text=text, seconds=total)


def _plain_seconds(parts: list[int]) -> int:
    # One number is minutes and two are minutes and seconds, so that 90 and 90:00 mean the same to sbatch.
    if len(parts) == 1:
        return parts[0] * 60
    if len(parts) == 2:
        return parts[0] * 60 + parts[1]
    return (parts[0] * 60 + parts[1]) * 60 + parts[2]


def fit_walltime_warning(warning_seconds: float, limit: TimeLimit | None) -> int:
    """Whole seconds before the limit at which Slurm warns: a quarter of a limit shorter than two warnings.

    Without that a short limit would be spent on the warning; Slurm may send it up to a minute early as it is.
    """
    warning = int(warning_seconds)
    if limit is not None and limit.seconds is not None and limit.seconds < 2 * warning:
        warning = limit.seconds // 4
    return max(1, warning)
