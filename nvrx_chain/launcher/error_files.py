"""What ranks write about their own failure, as torch's `record` does: one JSON file for each rank and round.

Touches: a directory of this launcher's own.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import msgspec

VARIABLE = "TORCHELASTIC_ERROR_FILE"
MAX_BYTES = 1 << 20
MAX_WORDS = 500


class ErrorFiles:
    """The files of one launcher; those of a round go with the next one."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="nvrx-errors-"))
        self._round = -1

    def begin(self, round_number: int) -> None:
        """A directory for the files of this round, and none of the round before."""
        self._forget()
        self._round = round_number
        self._place().mkdir(mode=0o700, exist_ok=True)

    def path(self, local_rank: int) -> Path:
        """Where this rank writes in this round."""
        return self._place() / f"{local_rank}.json"

    def explain(self, local_rank: int) -> str:
        """The message, on one line; empty when there is none."""
        try:
            with self.path(local_rank).open("rb") as file:
                found = msgspec.json.decode(file.read(MAX_BYTES))
        except (OSError, msgspec.DecodeError):
            return ""
        message = found.get("message") if isinstance(found, dict) else None
        if isinstance(message, dict):
            message = message.get("message")
        return " ".join(str(message or "").split())[:MAX_WORDS]

    def close(self) -> None:
        """Remove them all."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _place(self) -> Path:
        return self._directory / f"cycle_{self._round}"

    def _forget(self) -> None:
        if self._round >= 0:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._place())
