"""What a rank says to the monitor of its node, one JSON object a line, and what it hears. Pure.

The other end is `client.py`, which runs in the interpreter of the workload and shares no code with us.
"""

from __future__ import annotations

import msgspec

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.hang_limits import MAX_NAME, Timeouts

MAX_LINE = 65536
"""Bytes. The longest words are calculated time-outs of many sections."""
MAX_WHY = 2000
SOCKET_VARIABLE = "NVRX_CHAIN_RANK_SOCKET"
MARKS = frozenset({"process_group_ready", "checkpoint_restored"})
COMMITTED = "committed"
ACTIONS = frozenset({"stop_restarting", "exclude_this_node"})


class BadWord(NvrxError):
    """What no client of ours says; the connection that it came from is of no more use."""


class Hello(msgspec.Struct, frozen=True, tag_field="do", tag="hello"):
    """The first word of the process that will speak for the rank."""


class Dump(msgspec.Struct, frozen=True, tag_field="do", tag="dump"):
    """This process writes its stacks into the file that came with this word when it gets the dump signal."""


class Heartbeat(msgspec.Struct, frozen=True, tag_field="do", tag="heartbeat"):
    """Alive."""


class Start(msgspec.Struct, frozen=True, tag_field="do", tag="start"):
    """Enters a section."""

    name: str


class End(msgspec.Struct, frozen=True, tag_field="do", tag="end"):
    """Leaves a section."""

    name: str


class EndAll(msgspec.Struct, frozen=True, tag_field="do", tag="end_all"):
    """Leaves all sections."""


class Now(msgspec.Struct, frozen=True, tag_field="do", tag="now"):
    """The sections it is in, after words were dropped because nobody read them."""

    open: tuple[str, ...]


class Mark(msgspec.Struct, frozen=True, tag_field="do", tag="mark"):
    """A point of the recovery timeline was reached."""

    name: str


class Committed(msgspec.Struct, frozen=True, tag_field="do", tag="committed"):
    """A training step is done."""

    iteration: int


class Ask(msgspec.Struct, frozen=True, tag_field="do", tag="ask"):
    """`stop_restarting` or `exclude_this_node`; answered with `heard`."""

    action: str
    why: str


class Calculate(msgspec.Struct, frozen=True, tag_field="do", tag="calculate"):
    """Wants the calculated time-outs."""


class Use(msgspec.Struct, frozen=True, tag_field="do", tag="use"):
    """Wants these time-outs as limits; answered with `heard`."""

    timeouts: Timeouts


Word = Hello | Dump | Heartbeat | Start | End | EndAll | Now | Mark | Committed | Ask | Calculate | Use

_DECODER: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)
_BEAT_LINE = b'{"do":"heartbeat"}'
_BEAT = Heartbeat()

HEARD = b'{"heard":true}\n'


def parse_word(line: bytes) -> Word:
    """One line without its end. Raises BadWord."""
    if line == _BEAT_LINE:
        return _BEAT
    try:
        word = _DECODER.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadWord("reading a word of a rank", hint=str(error)) from error
    problem = _problem(word)
    if problem is not None:
        raise BadWord("reading a word of a rank", hint=problem)
    return word


def _problem(word: Word) -> str | None:
    if isinstance(word, Start | End):
        return None if 0 < len(word.name) <= MAX_NAME else "a section has no name, or one that is too long"
    if isinstance(word, Mark):
        return None if word.name in MARKS else f"an unknown mark {word.name[:MAX_NAME]!r}"
    if isinstance(word, Now):
        return (
            "a section has no name, or one that is too long"
            if any(not 0 < len(n) <= MAX_NAME for n in word.open)
            else None
        )
    if isinstance(word, Ask):
        return None if word.action in ACTIONS else f"an unknown request {word.action[:MAX_NAME]!r}"
    if isinstance(word, Use):
        return word.timeouts.problem()
    return None


def render_timeouts(timeouts: Timeouts) -> bytes:
    """The answer to `Calculate`."""
    return msgspec.json.encode({"timeouts": timeouts}) + b"\n"


def render_refused(why: str) -> bytes:
    """Said before the connection is ended."""
    return msgspec.json.encode({"refused": why}) + b"\n"
