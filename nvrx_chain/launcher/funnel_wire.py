"""What travels between the nodes and the one writer of the logs: binary frames, each with a proof. Pure.

A connection begins like that of the launchers (`wire`): a nonce from either end. A frame is a header, an HMAC-SHA256
over both nonces, the direction, a counter, the header and the content, and the content: whole lines. One proof for up
to 256 KiB of lines costs next to nothing for each.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.log_lines import LINE_BYTES
from nvrx_chain.launcher.log_settings import LAST_CYCLE, Kind
from nvrx_chain.launcher.wire import End

HEADER = struct.Struct("!BIQI")
PROOF_BYTES = 32
LINES_BYTES = 1 << 18
"""Lines that are gathered in one frame; a single longer line makes a longer frame."""
FRAME_BYTES = LINE_BYTES + (1 << 16)
"""No content is longer: the longest line with its prefix and mark."""
GREETING_BYTES = 4096
"""Nor before the other end has shown the secret."""
NONCE_LINE_BYTES = 33


class BadFrame(NvrxError):
    """A frame that no launcher of this job wrote here and now, or one that makes no sense."""


class Word(enum.IntEnum):
    """What a frame is. Those of lines have the number of their kind."""

    APP = Kind.APP
    LAUNCHER = Kind.LAUNCHER
    HELLO = 16
    """First, from the client: who it is."""
    FIN = 17
    """Last, from the client: `seq` is that of its last lines. The answer is a FIN too."""
    ACK = 18
    """From the server: everything up to `seq` is in the files. The first one answers the HELLO."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends. A client that is made anew is another one: its numbers begin again."""

    node_id: str
    incarnation: str

    @property
    def client_id(self) -> str:
        return f"{self.node_id}/{self.incarnation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame. `seq` counts the frames of lines of one client from 1."""

    word: Word
    cycle: int = 0
    seq: int = 0
    content: bytes = b""


class FrameSeal:
    """One end of one connection: proves what it sends and checks what it receives, frame after frame."""

    def __init__(self, secret: str, end: End, *, host_nonce: str, guest_nonce: str) -> None:
        label = b"\n".join((b"nvrx-chain logs 1", host_nonce.encode(), guest_nonce.encode()))
        self._mac = hmac.new(hmac.digest(secret.encode(), label, "sha256"), digestmod=hashlib.sha256)
        self._end = end
        self._sent = 0
        self._received = 0

    def encode(self, frame: Frame) -> tuple[bytes, bytes]:
        """Header with proof, and content."""
        header = HEADER.pack(frame.word, frame.cycle, frame.seq, len(frame.content))
        proof = self._prove(self._end, self._sent, header, frame.content)
        self._sent += 1
        return header + proof, frame.content

    def check(self, header: bytes, proof: bytes, content: bytes) -> Frame:
        """The next frame of the other end. Raises BadFrame; the connection is of no more use then."""
        if not hmac.compare_digest(proof, self._prove(self._end.other, self._received, header, content)):
            raise BadFrame("reading log lines of another node", hint="not signed with the secret of this job")
        self._received += 1
        word, cycle, seq, _ = HEADER.unpack(header)
        try:
            known = Word(word)
        except ValueError as error:
            raise BadFrame("reading log lines of another node", hint=f"{word} is no kind of frame") from error
        if cycle > LAST_CYCLE:
            raise BadFrame("reading log lines of another node", hint=f"there is no cycle {cycle}")
        return Frame(word=known, cycle=cycle, seq=seq, content=content)

    def _prove(self, end: End, number: int, header: bytes, content: bytes) -> bytes:
        mac = self._mac.copy()
        mac.update(b"%s %d " % (end.value, number))
        mac.update(header)
        mac.update(content)
        return mac.digest()


class FrameReader:
    """The frames in a stream of bytes. `limit` bounds their content."""

    def __init__(self, seal: FrameSeal, limit: int = GREETING_BYTES) -> None:
        self.limit = limit
        self._seal = seal
        self._buffer = bytearray()
        self._needed = HEADER.size

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """The frames that are whole now. Raises BadFrame."""
        self._buffer += data
        while len(self._buffer) >= self._needed:
            length = self._length()
            end = HEADER.size + PROOF_BYTES + length
            if len(self._buffer) < end:
                self._needed = end
                return
            with memoryview(self._buffer) as view:
                header, proof, content = view[: HEADER.size], view[HEADER.size : end - length], view[end - length : end]
                found = self._seal.check(bytes(header), bytes(proof), bytes(content))
                del header, proof, content
            del self._buffer[:end]
            self._needed = HEADER.size
            yield found

    def _length(self) -> int:
        length = int(HEADER.unpack_from(self._buffer)[3])
        if length > self.limit:
            raise BadFrame("reading log lines of another node", hint=f"a frame of {length} bytes is too long")
        return length


def split_lines(lines: bytes, limit: int = LINES_BYTES) -> Iterator[bytes]:
    """Whole lines in pieces of at most `limit` bytes, longer only for a single line."""
    while len(lines) > limit:
        end = lines.rfind(b"\n", 0, limit) + 1 or lines.index(b"\n") + 1
        yield lines[:end]
        lines = lines[end:]
    if lines:
        yield lines


_HELLO: msgspec.json.Decoder[Hello] = msgspec.json.Decoder(Hello)


def parse_hello(frame: Frame) -> Hello:
    """Raises BadFrame."""
    if frame.word is not Word.HELLO:
        raise BadFrame("greeting another node", hint="its first frame is no HELLO")
    try:
        return _HELLO.decode(frame.content)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadFrame("greeting another node", hint=str(error)) from error


def parse_nonce(line: bytes) -> str:
    """The nonce that a connection begins with. Raises BadFrame."""
    text = line[:-1].decode("ascii", errors="replace")
    if len(text) != NONCE_LINE_BYTES - 1 or not text.isalnum() or line[-1:] != b"\n":
        raise BadFrame("greeting another node", hint="it said no nonce")
    return text
