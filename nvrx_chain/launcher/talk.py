"""What a launcher and the coordinator say to each other over the presence connection. Pure vocabulary."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from nvrx_chain.errors import RecordError
from nvrx_chain.launcher.members import Member
from nvrx_chain.launcher.reasons import Reason

W = TypeVar("W")


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The first word of a launcher."""

    member: Member
    world: str
    """What all launchers of a job must agree on, in words: numbers of nodes and of ranks on each."""


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """Ready for this round: its workers are gone and it is healthy. `read`: events of the store that it has read."""

    round: int
    read: int


class Stopping(msgspec.Struct, frozen=True, kw_only=True, tag="stopping"):
    """It stops its workers, which takes so many seconds at the longest."""

    seconds: float


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """All its workers of this round ended with 0."""

    round: int


class Exclude(msgspec.Struct, frozen=True, kw_only=True, tag="exclude"):
    """Its own array task must not take part any more."""

    why: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """The whole job has to end. The coordinator writes that down and tells everybody; the first one counts."""

    reason: Reason
    detail: str


class Bye(msgspec.Struct, frozen=True, kw_only=True, tag="bye"):
    """It leaves: its workers are gone."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """It lives. Of either end."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """It is taken in. `read_from`: the first event of the store that it has to read."""

    read_from: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It is not, and why. `again`: whether that can change within seconds."""

    why: str
    again: bool


class Excluded(msgspec.Struct, frozen=True, kw_only=True, tag="excluded"):
    """Its array task takes part no more, and why: it stops its workers and leaves."""

    why: str


GuestWord = Hello | Join | Stopping | Done | Exclude | Stop | Bye | Beat
HostWord = Welcome | Refused | Excluded | Beat

_GUEST: msgspec.json.Decoder[GuestWord] = msgspec.json.Decoder(GuestWord)
_HOST: msgspec.json.Decoder[HostWord] = msgspec.json.Decoder(HostWord)


def parse_guest_word(data: bytes) -> GuestWord:
    """Raises RecordError."""
    return _parse(_GUEST, data)


def parse_host_word(data: bytes) -> HostWord:
    """Raises RecordError."""
    return _parse(_HOST, data)


def _parse(decoder: msgspec.json.Decoder[W], data: bytes) -> W:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RecordError("reading a word of another launcher", hint=str(error)) from error
