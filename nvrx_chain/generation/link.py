"""The link: a TCP connection from each peer's run-task to that of task 0, which works while the file system does not.

A peer says every few seconds for how long it could not read the control directory; task 0 answers for how long it has
known that the directory stalls for everybody (see stall). A peer whose words are not answered any more knows that it
does not reach the host, whose lease may go on. Nothing else is decided here. Touches: a TCP port, threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from nvrx_chain.clock import Clock

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
IDLE_SECONDS = 300.0
FIRST_WORD_SECONDS = 5.0
MAX_STRANGERS = 64
"""Connections that have not shown the secret yet. Without a bound anybody could take the descriptors of task 0."""
WORD_SECONDS = 2.0
MAX_WORDS_PER_SECOND = 500.0
"""Of all peers together while all is well; task 0 answers each."""
BLIND_SECONDS = 4.0
"""A peer that has not read for so long speaks as often as a small array does: task 0 waits for its word."""
LINE_BYTES = 512
NEVER = float("inf")


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer says, one JSON object a line. `unread_seconds`: how old its newest picture of the directory is."""

    secret: str
    task: int
    unread_seconds: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What task 0 answers. `excused_seconds`: how long ago it knew of a stall that is everybody's."""

    excused_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A peer's newest word, with the time on task 0's monotonic clock at which it came."""

    heard_at: float
    unread_seconds: float


class Link(Protocol):
    """What the loop that steers ranks asks of either end. Memory only."""

    def excused_seconds(self) -> float:
        """How long ago it was known that the directory stalls for everybody; infinite when it is not known."""
        ...

    def host_silent_seconds(self) -> float:
        """For how long a peer that reached task 0's run-task has got no answer; 0 for anybody else."""
        ...


class NoLink:
    """For a task that has none: nobody excuses it, and it says nothing about the host."""

    def excused_seconds(self) -> float:
        return NEVER

    def host_silent_seconds(self) -> float:
        return 0.0


class HostLink:
    """Task 0's end. `port` and `secret` are to be published."""

    def __init__(self, clock: Clock, secret: str) -> None:
        self._clock = clock
        self.secret = secret
        self.port: int | None = None
        self._reports: dict[int, Report] = {}
        self._excused_at: float | None = None
        self._strangers = 0

    def start(self) -> None:
        """Listen, in a thread of its own. Raises OSError."""
        listener = socket.create_server(("", 0), backlog=1024)
        self.port = listener.getsockname()[1]
        threading.Thread(target=lambda: asyncio.run(self._listen(listener)), name="link", daemon=True).start()

    def excused_seconds(self) -> float:
        return NEVER if self._excused_at is None else self._clock.monotonic() - self._excused_at

    def host_silent_seconds(self) -> float:
        return 0.0

    def excuse(self, at: float) -> None:
        """It was known at this time (monotonic) that the directory stalls for everybody."""
        self._excused_at = at

    def reports(self) -> dict[int, Report]:
        """The newest word of each peer."""
        return dict(self._reports)

    def answer(self, line: bytes) -> bytes | None:
        """Take in a peer's word; None for one that is none of ours, whose connection is to be closed."""
        try:
            word = msgspec.json.decode(line, type=Word)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not hmac.compare_digest(word.secret.encode(), self.secret.encode()):
            return None
        self._reports[word.task] = Report(heard_at=self._clock.monotonic(), unread_seconds=word.unread_seconds)
        excused = self.excused_seconds()
        return msgspec.json.encode(Answer(excused_seconds=None if excused == NEVER else excused)) + b"\n"

    async def _listen(self, listener: socket.socket) -> None:
        # No deadline: it lives as long as the process.
        async with await asyncio.start_server(self._serve, sock=listener, limit=LINE_BYTES) as server:
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A peer that vanished, or a stranger that says too much: its connection ends, nothing else does.
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            if await self._hear_first(reader, writer):
                while line := await asyncio.wait_for(reader.readline(), IDLE_SECONDS):
                    if not await self._reply(line, writer):
                        break
        writer.close()

    async def _hear_first(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether a new connection showed the secret at once."""
        if self._strangers >= MAX_STRANGERS:
            return False
        self._strangers += 1
        try:
            line = await asyncio.wait_for(reader.readline(), FIRST_WORD_SECONDS)
        finally:
            self._strangers -= 1
        return await self._reply(line, writer)

    async def _reply(self, line: bytes, writer: asyncio.StreamWriter) -> bool:
        answer = self.answer(line)
        if answer is None:
            return False
        writer.write(answer)
        await writer.drain()
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where task 0's run-task listens, and by what it knows its peers."""

    address: tuple[str, int]
    secret: str


class PeerLink:
    """A peer's end. `find_host` says where task 0 listens (None: not known yet), `read_age` how old its picture is."""

    def __init__(
        self,
        clock: Clock,
        task: int,
        interval_seconds: float,
        *,
        find_host: Callable[[], Host | None],
        read_age: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._task = task
        self._interval = interval_seconds
        self._find_host = find_host
        self._read_age = read_age
        self._stop = threading.Event()
        self._excused_at: float | None = None
        self._answered_at: float | None = None

    def start(self) -> None:
        """Speak and listen, in a thread of its own."""
        threading.Thread(target=self._run, name="link", daemon=True).start()

    def stop(self) -> None:
        """Say no more."""
        self._stop.set()

    def excused_seconds(self) -> float:
        return NEVER if self._excused_at is None else self._clock.monotonic() - self._excused_at

    def host_silent_seconds(self) -> float:
        if self._answered_at is None:
            return 0.0
        return max(0.0, self._clock.monotonic() - self._answered_at - self._interval)

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._pause()):
            host = self._find_host()
            if host is None:
                continue
            try:
                self.talk(host)
            except OSError as error:
                log.debug("the link to task 0 is down error=%s", error)
            except Exception:  # noqa: BLE001 - without this thread a living host would look silent
                log.error("the link to task 0 failed, it is tried again\n%s", traceback.format_exc())

    def talk(self, host: Host) -> None:
        """Connect and speak until told to stop. Raises OSError when the host does not answer (any more)."""
        with socket.create_connection(host.address, timeout=ANSWER_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = connection.makefile("rb")
            while True:
                self._exchange(connection, stream.readline, host.secret)
                if self._clock.wait(self._stop, self._pause()):
                    return

    def _pause(self) -> float:
        return min(self._interval, WORD_SECONDS) if self._read_age() > BLIND_SECONDS else self._interval

    def _exchange(self, connection: socket.socket, read_line: Callable[[int], bytes], secret: str) -> None:
        # Before the word, so that a slow way makes what was known look older and never younger.
        asked_at = self._clock.monotonic()
        word = Word(secret=secret, task=self._task, unread_seconds=self._read_age())
        connection.sendall(msgspec.json.encode(word) + b"\n")
        line = read_line(LINE_BYTES)
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConnectionError(f"no answer of ours: {error}") from error
        self._answered_at = self._clock.monotonic()
        if answer.excused_seconds is not None:
            self._excused_at = asked_at - max(0.0, answer.excused_seconds)


def word_interval_seconds(total_tasks: int) -> float:
    """How often each peer speaks: every two seconds, more slowly in big arrays."""
    return max(WORD_SECONDS, total_tasks / MAX_WORDS_PER_SECOND)
