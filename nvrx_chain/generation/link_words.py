"""What the two ends of the link say, one JSON object a line, and how each knows who said it. Pure.

Neither end ever shows the secret. The host gives a nonce when a peer connects and with each answer; a word proves with
an HMAC that its writer knows the secret and had that nonce, so it was written after the nonce was given. An answer
proves the same with the challenge in the word. Every nonce and every challenge is used once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TypeVar

import msgspec

LINE_BYTES = 512
"""No line is longer."""

S = TypeVar("S", bound=msgspec.Struct)


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the host. Proves nothing: who forges it gets a word that no host believes."""

    nonce: str


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer says. `unread_seconds`: for how long it has been waiting for one read of the control directory."""

    task: int
    unread_seconds: float
    challenge: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What task 0 answers. `excused_seconds`: how long ago it knew of a stall that is everybody's."""

    excused_seconds: float | None
    nonce: str


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    content: msgspec.Raw
    proof: str


def new_nonce() -> str:
    """128 random bits: never said before, and nobody can have prepared an answer to them."""
    return secrets.token_hex(16)


def render_line(content: Word | Answer, *, secret: str, nonce: str) -> bytes:
    """A line that proves that its writer knows `secret` and `nonce`."""
    raw = msgspec.json.encode(content)
    return msgspec.json.encode(_Line(content=msgspec.Raw(raw), proof=_prove(type(content), raw, secret, nonce))) + b"\n"


def parse_line(line: bytes, kind: type[S], *, secret: str, nonce: str) -> S | None:
    """What a line says; None for one without that proof, whatever it says."""
    try:
        found = msgspec.json.decode(line, type=_Line)
        raw = bytes(found.content)
        # As bytes: text that is not ASCII cannot be compared otherwise.
        if not hmac.compare_digest(found.proof.encode(), _prove(kind, raw, secret, nonce).encode()):
            return None
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _prove(kind: type[msgspec.Struct], raw: bytes, secret: str, nonce: str) -> str:
    # With the kind, so that what one end said can never be handed back to it as the other's.
    signed = b"\n".join((kind.__name__.encode(), nonce.encode(), raw))
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
