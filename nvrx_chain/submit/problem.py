"""One finding of the preflight, and the three ways to make one. Pure vocabulary."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nvrx_chain.masking import mask_text


class Severity(enum.Enum):
    """An error refuses the submit, a warning is printed, a note says what was assumed or not looked at."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding of the preflight, a line for people."""

    severity: Severity
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return mask_text(f"{self.severity.value}: {self.message}" + (f" ({self.hint})" if self.hint else ""))


def error(message: str, hint: str) -> Problem:
    return Problem(severity=Severity.ERROR, message=message, hint=hint)


def warning(message: str, hint: str) -> Problem:
    return Problem(severity=Severity.WARNING, message=message, hint=hint)


def note(message: str) -> Problem:
    return Problem(severity=Severity.NOTE, message=message)
