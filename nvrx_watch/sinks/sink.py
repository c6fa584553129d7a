"""What a sink is, and how it says that it did not take a notice. Pure vocabulary."""

from __future__ import annotations

from typing import Protocol

from nvrx_chain.errors import NvrxError
from nvrx_watch.history_model import Notice, SinkPolicy

LOG_NAME = "log"
"""The name of the sink that writes to the log."""


class SinkError(NvrxError):
    """A sink did not take what it was given; the text shows no secret.

    `lasting`: it will not take the very same later either. `retry_after_seconds`: what the other side asked for.
    """

    def __init__(
        self,
        message: str,
        *,
        part: str | None = None,
        hint: str | None = None,
        lasting: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message, part=part, hint=hint)
        self.lasting = lasting
        self.retry_after_seconds = retry_after_seconds


class Sink(Protocol):
    """Somewhere that notices go."""

    @property
    def policy(self) -> SinkPolicy:
        """What it wants to hear."""
        ...

    def send(self, notice: Notice, *, deadline_seconds: float) -> None:
        """Deliver one notice. Returns only when the other side accepted it; raises SinkError otherwise."""
        ...
