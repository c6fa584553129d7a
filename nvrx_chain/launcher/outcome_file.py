"""How a job of launchers ended, in a file that outlives the host: `outcome.<job>.<attempt>.json`.

Only the rendezvous host writes it, before it tells anybody, so a launcher that finds the host gone reads here whether
the job had ended, and leaves with the same code as the others. Touches: that file, beside the cycle records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.launcher.events import Ended
from nvrx_chain.launcher.reasons import Reason
from nvrx_chain.records.files import encode_record, read_record, refresh_names, write_first

log = logging.getLogger(__name__)

READ_SECONDS = 2.0
"""A file system that does not answer for so long says nothing."""

T = TypeVar("T")


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The file. `by`: who wanted the end; `cycle`: the last one that was begun, -1 for none; `at`: seconds, epoch."""

    schema: int = 1
    run_id: str
    reason: Reason
    exit_code: int
    by: str
    cycle: int
    detail: str
    at: float

    def as_event(self) -> Ended:
        """The end as the others heard it."""
        return Ended(reason=self.reason, exit_code=self.exit_code, by=self.by, detail=self.detail, at=self.at)


def write_outcome(path: Path, ended: Ended, *, run_id: str, cycle: int) -> bool:
    """Write it down for good; False when there is one already, which then counts. Raises RecordError."""
    outcome = JobOutcome(
        run_id=run_id,
        reason=ended.reason,
        exit_code=ended.exit_code,
        by=ended.by,
        cycle=cycle,
        detail=ended.detail,
        at=ended.at,
    )
    return write_first(path, encode_record(outcome))


def read_outcome(path: Path, *, run_id: str, within_seconds: float = READ_SECONDS) -> JobOutcome | None | Unobserved:
    """How this run ended; None when that was never written down. A file of another run counts as none."""

    def read() -> JobOutcome | None | Unobserved:
        refresh_names(path.parent)
        return read_record(path, JobOutcome)

    found = Bounded(read).ask(within_seconds)
    if isinstance(found, JobOutcome) and found.run_id != run_id:
        log.warning("an outcome of another run is not believed path=%s run_id=%s", path, found.run_id)
        return None
    return found


class Bounded(Generic[T]):
    """A question to a file system that may never answer, asked in a thread of its own, one at a time."""

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._asked: threading.Thread | None = None

    def ask(self, within_seconds: float) -> T | Unobserved:
        """The answer, or that there was none in time. While an earlier question hangs it is not asked again."""
        if self._asked is not None and self._asked.is_alive():
            return Unobserved("the file system still owes an answer")
        answers: list[T] = []
        self._asked = threading.Thread(target=lambda: answers.append(self._question()), name="ask", daemon=True)
        self._asked.start()
        self._asked.join(within_seconds)
        return answers[0] if answers else Unobserved(f"the file system did not answer in {within_seconds:g} s")
