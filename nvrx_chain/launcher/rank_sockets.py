"""The unix sockets through which the ranks of a node speak, and what comes in on them.

One socket for each rank and cycle, so that no rank speaks for another and no process of an old cycle for a new one.
Touches: a directory of its own (mode 700) for temporary files, sockets, peer credentials.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.rank_words import MAX_LINE, BadWord, Word, parse_word
from nvrx_chain.launcher.socket_directory import SocketDirectory

log = logging.getLogger(__name__)

CLOSED = "it was closed"
MAX_CONNECTIONS = 64
"""Of one rank. Its children may ask for something too, and a loop of theirs must not take all our descriptors."""
_BACKLOG = 64
_READ = 65536
_CREDENTIALS = struct.Struct("3i")
_ANCILLARY = socket.CMSG_SPACE(4)


@dataclass(slots=True, eq=False)
class RankConnection:
    """One process of a rank that speaks. `pid` is as this node's launcher sees it, 0 when it cannot."""

    local_rank: int
    socket: socket.socket
    pid: int
    handed: int | None = None
    """A file that came with the first bytes."""
    _begun: bool = False
    _rest: bytes = b""

    def read(self) -> tuple[list[Word], str | None]:
        """The words that have arrived, and why no more will come (None: they may)."""
        words: list[Word] = []
        while True:
            try:
                data = self._receive()
            except BlockingIOError:
                return words, None
            except OSError as error:
                return words, error.strerror or "it was reset"
            if not data:
                # What is left is a word that was torn: its writer died in it.
                return words, CLOSED
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()
            try:
                words.extend(map(parse_word, lines))
            except BadWord as error:
                return words, str(error)
            if len(self._rest) > MAX_LINE:
                return words, f"a word is longer than {MAX_LINE} bytes"
            if len(data) < _READ:
                return words, None

    def _receive(self) -> bytes:
        if self._begun:
            # Descriptors that come later are closed by the kernel: there is no room for them.
            return self.socket.recv(_READ)
        data, ancillary, _, _ = self.socket.recvmsg(_READ, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        self._begun = True
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(content) >= 4:
                self.handed = struct.unpack("i", content[:4])[0]
        return data

    def take_handed(self) -> int | None:
        """The file that was handed over; the caller closes it from now on."""
        handed, self.handed = self.handed, None
        return handed

    def answer(self, line: bytes) -> None:
        """Say something back. Nobody waits for a rank that does not listen."""
        with contextlib.suppress(OSError):
            self.socket.send(line)

    def close(self) -> None:
        """Give everything back."""
        self.socket.close()
        if self.handed is not None:
            os.close(self.handed)
            self.handed = None


class RankSockets:
    """The directory and its listening sockets."""

    def __init__(self, base: Path | None = None) -> None:
        self._directory = SocketDirectory(base)
        self.directory = self._directory.path

    def listen(self, local_rank: int, cycle: int) -> socket.socket:
        """A new socket for a rank of a cycle. Raises NvrxError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(self.path(local_rank, cycle))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise NvrxError(
                "listening for the ranks of this node", part=str(self.directory), hint=str(error)
            ) from error
        return listener

    def path(self, local_rank: int, cycle: int) -> str:
        """What the environment of the rank carries."""
        return f"{self.directory}/{local_rank}.{cycle}"

    def forget(self, local_rank: int, cycle: int) -> None:
        """Remove a socket from the directory: whoever knew its name is refused by the kernel."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(local_rank, cycle))

    def close(self) -> None:
        """Remove the directory."""
        self._directory.close()


def accept(listener: socket.socket, local_rank: int) -> RankConnection | None:
    """The next connection; None when there is none, or when it is of another user. Raises OSError."""
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.geteuid():
        log.warning(
            "a process of another user wanted to speak for a rank local_rank=%s uid=%s pid=%s", local_rank, uid, pid
        )
        connection.close()
        return None
    connection.setblocking(False)
    return RankConnection(local_rank, connection, pid)
