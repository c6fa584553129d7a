"""Single words of Slurm's output: times, durations, exit codes, and the words for "there is none". Pure."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_NONE = frozenset({"", "(null)", "None assigned", "N/A", "n/a"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", re.ASCII)
_SECONDS = re.compile(r"(\d{1,18})(?:\s*sec)?", re.ASCII)
_EXIT = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)


def parse_text(text: str) -> str:
    """The text without blanks at its ends, empty where Slurm printed that there is none."""
    stripped = text.strip()
    return "" if stripped in _NONE else stripped


def parse_number(text: str) -> int | None:
    """A whole number of at most 18 digits, else None."""
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) <= 18 else None


def parse_slurm_time(text: str) -> datetime | None:
    """An instant printed under TZ=UTC and SLURM_TIME_FORMAT=standard; None for `Unknown`, `None`, `N/A`."""
    stripped = text.strip()
    if _TIME.fullmatch(stripped) is None:
        return None
    try:
        return datetime.fromisoformat(stripped).replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def parse_duration(text: str) -> int | None:
    """Seconds of `1-02:03:04`, `02:03:04` or `03:04`; None for UNLIMITED, infinite and other words."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_seconds(text: str) -> int | None:
    """Seconds of `30 sec` as `scontrol show config` prints them, else None."""
    match = _SECONDS.fullmatch(text.strip())
    return int(match[1]) if match else None


def parse_exit(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) of `93:0` as printed; (None, None) for nothing, which is not zero.

    sacct of 22.05 and 24.11 prints a code of 128 and more without its highest bit (221 as 93, 143 as 15).
    """
    match = _EXIT.fullmatch(text.strip())
    return (int(match[1]), int(match[2])) if match else (None, None)
