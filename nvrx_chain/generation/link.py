"""The link: a TCP connection from each peer's run-task to that of task 0, which works while the file system does not.

A peer says every few seconds for how long it could not read the control directory; task 0 answers for how long it has
known that the directory stalls for everybody (see stall). A peer whose words are not answered any more knows that it
does not reach the host, whose lease may go on. Nothing else is decided here. A word counts from the moment at which
task 0 gave the nonce that it proves (see link_words), however long the network held it back. Touches: a TCP port,
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.generation.link_words import (
    LINE_BYTES,
    Answer,
    Greeting,
    Word,
    new_nonce,
    parse_line,
    render_line,
)

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
AGAIN_SECONDS = 2.0
IDLE_SECONDS = 300.0
FIRST_WORD_SECONDS = 5.0
MAX_STRANGERS = 64
"""Connections that have not shown the secret yet. Without a bound anybody could take the descriptors of task 0."""
WORD_SECONDS = 2.0
MAX_WORDS_PER_SECOND = 500.0
"""Of all peers together while all is well; task 0 answers each."""
URGENT_SECONDS = 4.0
"""A peer whose read hangs for so long speaks as often as a small array does: task 0 waits for its word."""
LEAST_BLIND_SECONDS = 3.0
"""The least for which a peer must have read nothing to count as blind; a read takes less."""
FRESH_SECONDS = 1.0
"""A peer that has not read for so long speaks twice: the second time with a nonce that was given just now."""
NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A peer's newest word: at `heard_at` (monotonic, task 0's) it had read nothing for at least `unread_seconds`.

    `heard_at` is when task 0 gave the nonce that the word proves: it was said then or later.
    """

    heard_at: float
    unread_seconds: float


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One connection of a peer as task 0 sees it: its number, and the nonce that its next word has to prove."""

    number: int
    nonce: str
    given_at: float


class Link(Protocol):
    """What the loop that steers ranks asks of either end. Memory only."""

    def excused_seconds(self) -> float:
        """How long ago it was known that the directory stalls for everybody; infinite when it is not known."""
        ...

    def maybe_excused_seconds(self) -> float:
        """How long ago, at the earliest, a lease was last excused, for all that this end knows."""
        ...

    def host_silent_seconds(self) -> float:
        """For how long a peer that reached task 0's run-task has got no answer; 0 for anybody else."""
        ...


class NoLink:
    """For a task that has none: nobody excuses it, and it says nothing about the host."""

    def excused_seconds(self) -> float:
        return NEVER

    def maybe_excused_seconds(self) -> float:
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
        self._newest: dict[int, int] = {}
        """The number of the newest conversation of each peer."""
        self._conversations = 0
        self._excused_at: float | None = None
        self._strangers = 0

    def start(self) -> None:
        """Listen, in a thread of its own. Raises OSError."""
        listener = socket.create_server(("", 0), backlog=1024)
        self.port = listener.getsockname()[1]
        threading.Thread(target=lambda: self._run(listener), name="link", daemon=True).start()

    def excused_seconds(self) -> float:
        return NEVER if self._excused_at is None else self._clock.monotonic() - self._excused_at

    def maybe_excused_seconds(self) -> float:
        return self.excused_seconds()

    def host_silent_seconds(self) -> float:
        return 0.0

    def excuse(self, at: float) -> None:
        """It was known at this time (monotonic) that the directory stalls for everybody."""
        self._excused_at = at

    def reports(self) -> dict[int, Report]:
        """The newest word of each peer."""
        return dict(self._reports)

    def greet(self) -> tuple[Conversation, bytes]:
        """A new conversation, and the line that begins it."""
        self._conversations += 1
        nonce, now = new_nonce(), self._clock.monotonic()
        return (
            Conversation(number=self._conversations, nonce=nonce, given_at=now),
            msgspec.json.encode(Greeting(nonce=nonce)) + b"\n",
        )

    def answer(self, conversation: Conversation, line: bytes) -> bytes | None:
        """Take in a peer's word; None for one that is none of ours or left behind: its connection is to be closed."""
        word = parse_line(line, Word, secret=self.secret, nonce=conversation.nonce)
        if word is None or not self._take(conversation, word):
            return None
        excused = self.excused_seconds()
        conversation.nonce, conversation.given_at = new_nonce(), self._clock.monotonic()
        answer = Answer(excused_seconds=None if excused == NEVER else excused, nonce=conversation.nonce)
        return render_line(answer, secret=self.secret, nonce=word.challenge)

    def _take(self, conversation: Conversation, word: Word) -> bool:
        """Keep a word unless the peer has said something later: it may come out of a connection that it gave up."""
        known, given_at = self._reports.get(word.task), conversation.given_at
        if conversation.number < self._newest.get(word.task, 0) or (known is not None and given_at < known.heard_at):
            return False
        # It may have been said at any time since. The picture of a peer must not look older than it may be.
        waited = self._clock.monotonic() - given_at
        self._newest[word.task] = conversation.number
        self._reports[word.task] = Report(heard_at=given_at, unread_seconds=max(0.0, word.unread_seconds - waited))
        return True

    def _run(self, listener: socket.socket) -> None:
        # No deadline: it lives as long as the process.
        never = threading.Event()
        while not self._clock.wait(never, 0.0):
            try:
                asyncio.run(self._listen(listener))
            except Exception:  # noqa: BLE001 - without this thread a living host would look silent
                log.error("listening to the peers failed, it is tried again\n%s", traceback.format_exc())
            self._clock.wait(never, AGAIN_SECONDS)

    async def _listen(self, listener: socket.socket) -> None:
        # A duplicate: the server closes its own, and the port must stay ours.
        async with await asyncio.start_server(self._serve, sock=listener.dup(), limit=LINE_BYTES) as server:
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A peer that vanished, or a stranger that says too much: its connection ends, nothing else does.
        try:
            with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                await self._converse(reader, writer)
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= MAX_STRANGERS:
            return
        conversation, greeting = self.greet()
        self._strangers += 1
        try:
            writer.write(greeting)
            line = await asyncio.wait_for(reader.readline(), FIRST_WORD_SECONDS)
        finally:
            self._strangers -= 1
        while line:
            answer = self.answer(conversation, line)
            if answer is None:
                return
            writer.write(answer)
            await asyncio.wait_for(writer.drain(), ANSWER_SECONDS)
            line = await asyncio.wait_for(reader.readline(), IDLE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where task 0's run-task listens, and by what it knows its peers."""

    address: tuple[str, int]
    secret: str


class PeerLink:
    """A peer's end. `find_host` says where task 0 listens (None: not known yet), `unread` for how long a read hangs."""

    def __init__(
        self,
        clock: Clock,
        task: int,
        interval_seconds: float,
        *,
        find_host: Callable[[], Host | None],
        unread: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._task = task
        self._interval = interval_seconds
        self._find_host = find_host
        self._unread = unread
        self._stop = threading.Event()
        self._excused_at: float | None = None
        self._blind_at: float | None = None
        self._answered_at: float | None = None

    def start(self) -> None:
        """Speak and listen, in a thread of its own."""
        threading.Thread(target=self._run, name="link", daemon=True).start()

    def stop(self) -> None:
        """Say no more."""
        self._stop.set()

    def excused_seconds(self) -> float:
        return NEVER if self._excused_at is None else self._clock.monotonic() - self._excused_at

    def maybe_excused_seconds(self) -> float:
        """As known, or since this peer last said that it is blind: task 0 may have excused all for that, unheard."""
        excused = self.excused_seconds()
        return excused if self._blind_at is None else min(excused, self._clock.monotonic() - self._blind_at)

    def host_silent_seconds(self) -> float:
        if self._answered_at is None:
            return 0.0
        return max(0.0, self._clock.monotonic() - self._answered_at - self._interval)

    def _run(self) -> None:
        # Not all at the same moment: task 0 hears only so many at once that have not proven who they are.
        while not self._clock.wait(self._stop, self._pause() * random.uniform(0.5, 1.0)):
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
        with (
            socket.create_connection(host.address, timeout=ANSWER_SECONDS) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = _read_greeting(stream.readline)
            while True:
                nonce = self._exchange(connection, stream.readline, host.secret, nonce)
                if self._unread() > FRESH_SECONDS:
                    # The last nonce is as old as the pause. What a blind peer says has to be known to be said now.
                    nonce = self._exchange(connection, stream.readline, host.secret, nonce)
                if self._clock.wait(self._stop, self._pause()):
                    return

    def _pause(self) -> float:
        return min(self._interval, WORD_SECONDS) if self._unread() > URGENT_SECONDS else self._interval

    def _exchange(self, connection: socket.socket, read_line: Callable[[int], bytes], secret: str, nonce: str) -> str:
        """One word and its answer; returns the nonce for the next word."""
        # Before the word, so that a slow way makes what was known look older and never younger.
        asked_at = self._clock.monotonic()
        word = Word(task=self._task, unread_seconds=self._unread(), challenge=new_nonce())
        if word.unread_seconds >= LEAST_BLIND_SECONDS:
            self._blind_at = asked_at
        connection.sendall(render_line(word, secret=secret, nonce=nonce))
        answer = parse_line(read_line(LINE_BYTES), Answer, secret=secret, nonce=word.challenge)
        if answer is None:
            raise ConnectionError("no answer of ours")
        self._answered_at = self._clock.monotonic()
        if answer.excused_seconds is not None:
            self._excused_at = asked_at - max(0.0, answer.excused_seconds)
        return answer.nonce


def _read_greeting(read_line: Callable[[int], bytes]) -> str:
    try:
        return msgspec.json.decode(read_line(LINE_BYTES), type=Greeting).nonce
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ConnectionError(f"no greeting of ours: {error}") from error


def word_interval_seconds(total_tasks: int) -> float:
    """How often each peer speaks: every two seconds, more slowly in big arrays."""
    return max(WORD_SECONDS, total_tasks / MAX_WORDS_PER_SECOND)
