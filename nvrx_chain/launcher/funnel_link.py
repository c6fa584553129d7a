"""One node as the writer of the logs sees it: its connection, from a stranger's first byte to its last frame.

Touches: one TCP connection, which never waits.
"""

from __future__ import annotations

import contextlib
import socket
import time

from nvrx_chain.launcher.funnel_wire import (
    FRAME_BYTES,
    NONCE_LINE_BYTES,
    BadFrame,
    Frame,
    FrameReader,
    FrameSeal,
    Hello,
    Word,
    parse_hello,
    parse_nonce,
)
from nvrx_chain.launcher.wire import End, new_nonce

READ_BYTES = 1 << 20
GREETING_SECONDS = 10.0
"""A stranger that shows no secret is not waited for longer."""
ANSWERS_BYTES = 1 << 16
"""Of answers that the other end does not read: it is not one of ours."""


class Link:
    """`hello` is None until the other end has shown the secret. Raises BadFrame, OSError."""

    def __init__(self, connection: socket.socket, peer: str, secret: str) -> None:
        self.connection = connection
        self.peer = peer
        self.hello: Hello | None = None
        self.deadline = time.monotonic() + GREETING_SECONDS
        self._secret = secret
        self._nonce = new_nonce()
        self._greeting = b""
        self._seal: FrameSeal | None = None
        self._reader: FrameReader | None = None
        self._answers = bytearray()
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # A node that went silent: two hours, the kernel's own, would keep its descriptor for as long.
            for option, seconds in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 3)):
                connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
        self._send(self._nonce.encode() + b"\n")

    def receive(self) -> list[Frame] | None:
        """The frames that have come, the HELLO first; None at the end of the connection."""
        try:
            data = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        if self._reader is None:
            self._greeting += data
            if len(self._greeting) < NONCE_LINE_BYTES:
                return []
            data = self._begin()
        assert self._reader is not None
        found: list[Frame] = []
        for frame in self._reader.feed(data):
            if self.hello is None:
                self.hello = parse_hello(frame)
                self._reader.limit = FRAME_BYTES
            elif frame.word in (Word.HELLO, Word.ACK):
                raise BadFrame("reading log lines of another node", hint=f"a {frame.word.name} in the middle")
            found.append(frame)
        return found

    def answer(self, word: Word, seq: int) -> None:
        """Tell the client how far it has been heard."""
        assert self._seal is not None
        header, content = self._seal.encode(Frame(word=word, seq=seq))
        self._send(header + content)

    def flush(self) -> bool:
        """Send what could not be sent before; whether everything is sent."""
        self._send(b"")
        return not self._answers

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def _begin(self) -> bytes:
        line, rest = self._greeting[:NONCE_LINE_BYTES], self._greeting[NONCE_LINE_BYTES:]
        self._seal = FrameSeal(self._secret, End.HOST, host_nonce=self._nonce, guest_nonce=parse_nonce(line))
        self._reader = FrameReader(self._seal)
        return rest

    def _send(self, data: bytes) -> None:
        self._answers += data
        if len(self._answers) > ANSWERS_BYTES:
            raise BadFrame("answering another node", hint="it reads no answers")
        with contextlib.suppress(BlockingIOError):
            while self._answers:
                del self._answers[: self.connection.send(self._answers)]
