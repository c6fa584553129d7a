"""One connection of a node to the writer of the logs, up to the point where lines may leave. Touches: a TCP connection.

It never blocks by itself: whoever dials waits, and knows for how long it may.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nvrx_chain.launcher.funnel_wire import (
    HEADER,
    NONCE_LINE_BYTES,
    PROOF_BYTES,
    BadFrame,
    Frame,
    FrameReader,
    FrameSeal,
    Hello,
    Word,
    parse_nonce,
)
from nvrx_chain.launcher.wire import End, new_nonce

CONNECT_SECONDS = 5.0
GREETING_SECONDS = 30.0
"""A writer that crashed is being started anew, and its port answers meanwhile."""
SILENT_SECONDS = 20.0
"""A network that takes nothing for so long: a new connection is tried."""

Wait = Callable[[socket.socket, int, float], None]
"""Wait for an event of poll(2), for so many seconds at most. Raises TimeoutError."""


@dataclass(slots=True, kw_only=True)
class Link:
    """One connection after its greeting."""

    connection: socket.socket
    seal: FrameSeal
    reader: FrameReader
    out: list[memoryview] = field(default_factory=list)
    said_fin: bool = False

    def push(self, frame: Frame) -> None:
        self.out += [memoryview(part) for part in self.seal.encode(frame) if part]

    def flush(self) -> None:
        """Send what the kernel takes now. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            while self.out:
                done = self.connection.sendmsg(self.out)
                while self.out and done >= len(self.out[0]):
                    done -= len(self.out.pop(0))
                if done:
                    self.out[0] = self.out[0][done:]


class Dialer:
    """Makes connections of one client."""

    def __init__(self, address: tuple[str, int] | None, secret: str, hello: Hello, wait: Wait) -> None:
        self._address = address
        self._secret = secret
        self._hello = hello
        self._wait = wait
        self._resolved: tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]] | None = None

    def aim(self, address: tuple[str, int]) -> None:
        """Say where the writer is, when it was not known at the beginning."""
        self._address = address

    def dial(self) -> tuple[Link, int]:
        """A connection to a writer that has shown the secret, and what it has of us. Raises OSError, BadFrame."""
        connection = self._connect()
        try:
            return self._greet(connection)
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> socket.socket:
        if self._address is None:
            raise OSError("it is not known yet where the log writer is")
        if self._resolved is None:
            # Once: a name service that hangs later must not keep the last lines back.
            self._resolved = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)[0]
        family, kind, protocol, _, address = self._resolved
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            _tune(connection)
            error = connection.connect_ex(address)
            if error == errno.EINPROGRESS:
                self._wait(connection, select.POLLOUT, CONNECT_SECONDS)
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
        except BaseException:
            connection.close()
            raise
        return connection

    def _greet(self, connection: socket.socket) -> tuple[Link, int]:
        host_nonce = parse_nonce(self._read_exactly(connection, NONCE_LINE_BYTES))
        nonce = new_nonce()
        seal = FrameSeal(self._secret, End.GUEST, host_nonce=host_nonce, guest_nonce=nonce)
        link = Link(connection=connection, seal=seal, reader=FrameReader(seal))
        header, content = seal.encode(Frame(word=Word.HELLO, content=msgspec.json.encode(self._hello)))
        connection.sendall(nonce.encode() + b"\n" + header + content)
        # No line leaves before the other end has shown the secret too.
        answer = next(iter(link.reader.feed(self._read_exactly(connection, HEADER.size + PROOF_BYTES))))
        if answer.word is not Word.ACK:
            raise BadFrame("greeting the log writer", hint="it did not answer")
        return link, answer.seq

    def _read_exactly(self, connection: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            self._wait(connection, select.POLLIN, GREETING_SECONDS)
            more = connection.recv(count - len(data))
            if not more:
                raise ConnectionResetError("the log writer closed the connection")
            data += more
        return data


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENT_SECONDS * 1000))
