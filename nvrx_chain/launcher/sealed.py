"""A connection between two launchers as lines that are signed and come in time. Touches: one TCP connection."""

from __future__ import annotations

import asyncio
import socket

from nvrx_chain.launcher.wire import BadLine, End, Seal, new_nonce

LINE_BYTES = 65536
"""No line is longer."""
GREETING_SECONDS = 5.0
"""A stranger that says nothing is not waited for."""


class SealedStream:
    """Lines to and from the other end. For one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: Seal) -> None:
        self._reader = reader
        self._writer = writer
        self._seal = seal

    @classmethod
    async def accept(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> SealedStream:
        """The host's end. Raises BadLine, TimeoutError, OSError."""
        nonce = new_nonce()
        writer.write(nonce.encode() + b"\n")
        guest_nonce = await asyncio.wait_for(_read_nonce(reader), GREETING_SECONDS)
        seal = Seal(secret, End.HOST, host_nonce=nonce, guest_nonce=guest_nonce)
        return cls(reader, writer, seal)

    @classmethod
    async def open(cls, host: str, port: int, secret: str, *, within_seconds: float) -> SealedStream:
        """The guest's end. Raises BadLine, TimeoutError, OSError."""
        opening = asyncio.open_connection(host, port, limit=LINE_BYTES)
        reader, writer = await asyncio.wait_for(opening, within_seconds)
        try:
            host_nonce = await asyncio.wait_for(_read_nonce(reader), GREETING_SECONDS)
        except BaseException:
            writer.close()
            raise
        nonce = new_nonce()
        writer.write(nonce.encode() + b"\n")
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(reader, writer, Seal(secret, End.GUEST, host_nonce=host_nonce, guest_nonce=nonce))

    def send(self, content: bytes) -> None:
        """Hand a line to the kernel. What cannot be sent shows as an end when reading."""
        self._writer.write(self._seal.sign(content))

    async def receive(self, within_seconds: float) -> bytes | None:
        """The next line; None at the end. Raises BadLine, TimeoutError, OSError."""
        try:
            line = await asyncio.wait_for(self._reader.readuntil(b"\n"), within_seconds)
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError as error:
            raise BadLine("reading a line of another launcher: it has no end") from error
        return self._seal.check(line)

    async def drain(self, within_seconds: float) -> None:
        """Wait until what was sent is with the kernel. Raises TimeoutError, OSError."""
        await asyncio.wait_for(self._writer.drain(), within_seconds)

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


async def _read_nonce(reader: asyncio.StreamReader) -> str:
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise BadLine("reading the greeting of another launcher: there is none") from error
    text = line[:-1].decode("ascii", errors="replace")
    if len(text) != 32 or not text.isalnum():
        raise BadLine("reading the greeting of another launcher: it is no nonce")
    return text
