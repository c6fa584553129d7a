"""Which peers say now that task 0 does not answer them, as one reader sees it. Pure.

A statement stays in its file when its writer dies, so it has a vote only for a while after it was seen to change. What
was there at the first look may be of any age and has none. No clocks of two hosts are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nvrx_chain.records.control import Silence

RENEW_SECONDS = 10.0
MAX_WRITES_PER_SECOND = 20.0
"""Of all peers together, as for leases."""
LASTING_RENEWALS = 3
NEVER = float("-inf")


def renew_seconds(total_tasks: int) -> float:
    """How often a peer writes again that task 0 is silent: every ten seconds, more slowly in big arrays."""
    return max(RENEW_SECONDS, total_tasks / MAX_WRITES_PER_SECOND)


def lasting_seconds(total_tasks: int) -> float:
    """For how long a vote that does not change counts."""
    return LASTING_RENEWALS * renew_seconds(total_tasks)


@dataclass(slots=True)
class _Said:
    record: Silence | None
    changed_at: float
    read_at: float


class VoteWatch:
    """What the peers said, and when that was seen to change, on the reader's own monotonic clock."""

    def __init__(self, lasting: float) -> None:
        self._lasting = lasting
        self._said: dict[int, _Said] = {}
        self._noted_at: float | None = None

    def forget(self) -> None:
        """Nobody looks for now: what is there at the next look is of any age again."""
        self._said.clear()
        self._noted_at = None

    def note(self, tasks: Iterable[int], now: float) -> None:
        """These have a file, read or not. One that was not there a moment ago was written since."""
        if self._noted_at is None or now - self._noted_at > self._lasting:
            self._said = {task: _Said(record=None, changed_at=NEVER, read_at=now) for task in tasks}
        else:
            for task in tasks:
                self._said.setdefault(task, _Said(record=None, changed_at=now, read_at=now))
        self._noted_at = now

    def observe(self, task: int, record: Silence | None, now: float) -> None:
        """What is in the file of a task that was noted; None when it could not be read, which changes nothing."""
        said = self._said.get(task)
        if said is None or record is None:
            return
        if now - said.read_at > self._lasting:
            # It changed, if at all, at some time since.
            said.changed_at = min(said.changed_at, said.read_at)
        elif said.record is not None and said.record != record:
            said.changed_at = now
        said.record, said.read_at = record, now

    def silent(self, now: float) -> tuple[int, ...]:
        """The tasks whose vote counts, lowest index first."""
        return tuple(
            task
            for task, said in sorted(self._said.items())
            if said.record is not None and said.record.silent and now - said.changed_at <= self._lasting
        )
