"""What the coordinator asks of others: may a round be filled, and write down what must outlive it. Vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nvrx_chain.launcher.events import Ended, Event, Filled, JobState, Opened
from nvrx_chain.launcher.members import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A verdict: take the array task out that most of these launchers belong to, and end the job where that cannot be.

    It cannot be when the others are too few, and never for the task of the host.
    """

    agent_ids: tuple[str, ...]
    why: str
    otherwise: Ended


Judge = Callable[[Opened, JobState], Ended | Exclusion | None]
"""Asked once about each opened round before it is filled: whether the job ends instead. May take a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedTask:
    """An array task that takes no part any more, with the nodes of it that were ever here."""

    group: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """Who is here, by agent id, and who is kept out."""

    members: Mapping[str, Member]
    excluded: tuple[ExcludedTask, ...] = ()


class Keeper(Protocol):
    """Whoever keeps the records of a job on the host."""

    def before(self, event: Filled | Ended, attendance: Attendance) -> None:
        """Called before a launcher can hear of it, in a thread of its own; the job waits for its return."""
        ...

    def heard(self, event: Event) -> None:
        """Called with each event when it has happened. Must not wait."""
        ...
