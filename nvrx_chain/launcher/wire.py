"""Signed lines between the launchers of a job: each proves who wrote it, in which connection and at which place. Pure.

Both ends begin a connection with a nonce of their own. A line carries an HMAC-SHA256 over both nonces, the direction, a
counter and the content, so none can be forged, handed back, repeated, left out or moved without the other end noticing.
The secret never travels. It keeps strangers out; what is said can be read by whoever sees the network.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets

from nvrx_chain.errors import NvrxError

PROOF_CHARACTERS = 64


class BadLine(NvrxError):
    """A line that no launcher of this job wrote here and now."""


class End(enum.Enum):
    """Which end wrote a line."""

    HOST = b"host"
    GUEST = b"guest"

    @property
    def other(self) -> End:
        return End.GUEST if self is End.HOST else End.HOST


def new_nonce() -> str:
    """128 random bits."""
    return secrets.token_hex(16)


class Seal:
    """One end of one connection: signs what it sends and checks what it receives, line after line."""

    def __init__(self, secret: str, end: End, *, host_nonce: str, guest_nonce: str) -> None:
        label = b"\n".join((b"nvrx-chain launch 1", host_nonce.encode(), guest_nonce.encode()))
        self._key = hmac.new(secret.encode(), label, hashlib.sha256).digest()
        self._end = end
        self._sent = 0
        self._received = 0

    def sign(self, content: bytes) -> bytes:
        """The line, with its end. `content` has no newline."""
        proof = self._prove(self._end, self._sent, content)
        self._sent += 1
        return proof + b" " + content + b"\n"

    def check(self, line: bytes) -> bytes:
        """The content of the next line of the other end. Raises BadLine; the connection is of no more use then."""
        proof, _, content = line.rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(proof, self._prove(self._end.other, self._received, content)):
            raise BadLine("reading a line of another launcher: it is not signed with the secret of this job")
        self._received += 1
        return content

    def _prove(self, end: End, number: int, content: bytes) -> bytes:
        signed = b"\n".join((end.value, str(number).encode(), content))
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest().encode()
