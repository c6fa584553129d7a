"""What happens to a job as a whole, as one ordered sequence that every launcher reads. Pure.

Each event is one value of the control store under a growing number, so all launchers see the same order, and whoever
writes learns first what came before. The first `Opened` of a round and the first `Ended` count; a writer that finds one
has nothing left to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from nvrx_chain.errors import RecordError
from nvrx_chain.launcher.reasons import Reason


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a round was opened: what failed, where, and how it showed."""

    kind: str
    """`start`, `worker`, `hang`, `agent_lost`, `unhealthy`, `workload` or `manual`."""
    agent_id: str = ""
    node: str = ""
    rank: int | None = None
    exit_code: int | None = None
    """Of the rank; negative is the number of the signal that ended it."""
    section: str = ""
    """That a rank which hung was in."""
    error_file: str = ""
    """Where the rank wrote its exception, on its node."""
    detail: str = ""


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """Workers stop everywhere, and who can take part joins this round."""

    round: int
    cause: Cause
    at: float
    """Seconds since the epoch on the clock of the writer: for people and the timeline, never compared."""


class Filled(msgspec.Struct, frozen=True, kw_only=True, tag="filled"):
    """Who trains in a round. Whoever is not named waits."""

    round: int
    active: tuple[str, ...]
    """Agent ids by group rank."""
    at: float


class Hosted(msgspec.Struct, frozen=True, kw_only=True, tag="hosted"):
    """Where the ranks of a filled round meet: a store that is new for this round, on the node of group rank 0."""

    round: int
    address: str
    port: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The job is over; every launcher stops its workers and leaves with this code."""

    reason: Reason
    exit_code: int
    by: str
    detail: str = ""
    at: float = 0.0


Event = Opened | Filled | Hosted | Ended

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """As it lies in the store."""
    return msgspec.json.encode(event)


def parse_event(data: bytes) -> Event:
    """Raises RecordError for what no launcher of this version writes."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RecordError("reading an event of the job from the control store", hint=str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What the events up to one of them add up to."""

    round: int = -1
    cause: Cause | None = None
    filled: Filled | None = None
    """The assignment of `round`; None while it is open."""
    hosted: Hosted | None = None
    """The meeting place of the ranks of `round`; None until there is one."""
    previous: tuple[str, ...] = ()
    """Who trained in the last round that was filled."""
    ended: Ended | None = None

    def after(self, event: Event) -> JobState:
        """The state once `event` has happened. One that says nothing new changes nothing."""
        if self.ended is not None:
            return self
        if isinstance(event, Ended):
            return replace(self, ended=event)
        if isinstance(event, Opened):
            if event.round <= self.round:
                return self
            previous = self.filled.active if self.filled is not None else self.previous
            return replace(self, round=event.round, cause=event.cause, filled=None, hosted=None, previous=previous)
        if event.round != self.round:
            return self
        if isinstance(event, Hosted):
            return replace(self, hosted=self.hosted or event)
        return replace(self, filled=self.filled or event)
