"""What can go wrong, in one tree, and the exit codes that only the command line turns it into.

The exit codes are the table of docs/protocol.md; a test compares the two. Touches nothing outside the process.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nvrx_chain.masking import mask_text


class ExitCode(enum.IntEnum):
    """Exit codes of the commands and of run-task. 221 is never used: sacct of 22.05 and 24.11 shows it as 93."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    HOST_LOST = 75
    REFUSED = 76
    HELD = 77
    NOT_ASSEMBLED = 78
    CANCELLED = 79
    NO_RESTART = 93
    TIMED_OUT = 124
    TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Unobserved:
    """Could not look. Neither "there is none" (None) nor "there are zero" (an empty tuple)."""

    reason: str


class NvrxError(Exception):
    """An error that a person reads: what was being done and what is wrong, the faulty part, how to mend it.

    Its text is printed, logged and stored as evidence, so what looks like a secret is masked in it.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, part: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.part = part
        self.hint = hint

    def __str__(self) -> str:
        text = self.message
        if self.part:
            text += f": {self.part}"
        if self.hint:
            text += f" ({self.hint})"
        return mask_text(text)


class UsageError(NvrxError):
    """Bad flags, bad settings, a bad file of settings."""

    exit_code = ExitCode.USAGE


class PreflightError(NvrxError):
    """The chain would not run as asked on this cluster."""

    exit_code = ExitCode.USAGE


class RecordError(NvrxError):
    """A file of the run directory is missing, damaged or not ours."""


class SlurmError(NvrxError):
    """Slurm refused, failed or did not answer."""


class SlurmAmbiguous(SlurmError):
    """Slurm may or may not have done it: a time-out or a reply that cannot be read. Look before you repeat."""


class SlurmUnavailable(SlurmError):
    """A Slurm program is not installed or not on PATH."""


class IdentityError(NvrxError):
    """A job is not, or cannot be shown to be, a job of this chain. Nothing was done to it."""


class SandboxError(NvrxError):
    """The private cluster could not be started, stopped or faulted as asked."""


class DemoError(NvrxError):
    """A demo expectation did not hold."""
