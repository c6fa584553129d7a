"""The one writer of the logs, a process of its own on the rendezvous host.

Started by `funnel_host` as `python -I -m nvrx_chain.launcher.funnel_server`, never by people. It takes frames of lines
from every node, appends them to the files that kind and cycle name, and acknowledges what is there. Its standard input
is the launcher: orders first, and its end is the end of the job; then what is on the way is still written.
Touches: the log files, a listening socket, its signals.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from nvrx_chain.launcher.funnel_journal import Journal, Run
from nvrx_chain.launcher.funnel_link import Link
from nvrx_chain.launcher.funnel_plan import News, Plan
from nvrx_chain.launcher.funnel_wire import BadFrame, Frame, Word
from nvrx_chain.launcher.log_files import Appending, LogFiles, NotALog
from nvrx_chain.launcher.log_settings import Kind, LogPlaces

MAX_STRANGERS = 256
"""Connections that have not shown the secret yet."""
TICK_SECONDS = 1.0
RETRY_SECONDS = 1.0
SETTLE_SECONDS = 0.01
"""Between two batches, so that one write takes what many nodes sent."""
PARENT_DIED = signal.SIGRTMIN + 3
"""No signal that Slurm sends to a step: those ask for the end of the training, whose last lines are still to come."""
READY = b"ready\n"

_PR_SET_PDEATHSIG = 1
_PASSED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)

BATCH_BYTES = 16 << 20
SMALL_BYTES = 1 << 18
LAST_SECONDS = 5.0
"""After the launcher is gone, however things stand."""

T = TypeVar("T")

_KINDS = frozenset({Word.APP, Word.LAUNCHER})
_Batch = list[tuple[Link, Frame]]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher says first."""

    secret: str
    listener: int
    journal: tuple[int, int]
    ready: int
    parent: int
    linger_seconds: float
    places: LogPlaces


class FunnelWriter:
    """Serves until the launcher ends, and a moment longer for lines on the way."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._files = LogFiles(orders.places)
        self._journal = Journal(orders.journal, self._files)
        self._listener = socket.socket(fileno=orders.listener)
        self._listener.setblocking(False)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self._links: set[Link] = set()
        self._strangers: set[Link] = set()
        self._by_client: dict[str, Link] = {}
        self._deadline: float | None = None
        self._turn = 0
        self._news = News()

    def serve(self) -> None:
        """Until the end."""
        while not self._is_over():
            batch: _Batch = []
            for key, events in self._next_events():
                if key.data is not None:
                    self._attend(key.data, events, batch)
                elif key.fileobj is self._listener:
                    self._admit()
                else:
                    self._hear_launcher()
                if sum_bytes(batch) > BATCH_BYTES:
                    break  # the others are first in the next pass
            self._write(batch)
            self._drop_silent_strangers()
            self._speak()
            if batch and sum_bytes(batch) < SMALL_BYTES:
                time.sleep(SETTLE_SECONDS)
        self._files.close()

    def _next_events(self) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready, beginning with another connection each time: none waits for ever behind the busy ones."""
        events = self._selector.select(TICK_SECONDS if self._deadline is None else 0.05)
        self._turn += 1
        first = self._turn % max(1, len(events))
        return events[first:] + events[:first]

    def _is_over(self) -> bool:
        if self._deadline is None:
            return False
        return not self._links or time.monotonic() > self._deadline

    def _hear_launcher(self) -> None:
        # It says nothing more: what can be read is its end.
        if not os.read(sys.stdin.fileno(), 4096):
            self._selector.unregister(sys.stdin.fileno())
            self._deadline = time.monotonic() + self._orders.linger_seconds

    def _admit(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    connection, address = self._listener.accept()
                except (ConnectionError, InterruptedError):
                    continue
                except OSError as error:
                    if isinstance(error, BlockingIOError):
                        raise
                    # Out of descriptors: those who wait are taken in when others have left.
                    self._news.say(f"a connection could not be taken in: {error.strerror}")
                    return
                self._welcome(connection, f"{address[0]}:{address[1]}")

    def _welcome(self, connection: socket.socket, peer: str) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            connection.close()
            return
        try:
            link = Link(connection, peer, self._orders.secret)
        except (OSError, BadFrame):
            connection.close()
            return
        self._links.add(link)
        self._strangers.add(link)
        self._selector.register(connection, selectors.EVENT_READ, link)

    def _attend(self, link: Link, events: int, batch: _Batch) -> None:
        if link not in self._links:
            return  # closed a moment ago, in favour of a newer connection of the same client
        try:
            if events & selectors.EVENT_WRITE:
                self._watch(link, writing=not link.flush())
            if events & selectors.EVENT_READ:
                self._hear(link, batch)
        except BadFrame as error:
            self._news.say(f"a connection is refused peer={link.peer} reason={error}")
            self._lose(link)
        except OSError:
            self._lose(link)

    def _hear(self, link: Link, batch: _Batch) -> None:
        frames = link.receive()
        if frames is None:
            self._lose(link)
            return
        if link.hello is not None and link in self._strangers:
            self._strangers.discard(link)
            older = self._by_client.get(link.hello.client_id)
            if older is not None:
                # Its frames of this pass come first; what it would still say comes again over the new connection.
                self._lose(older)
            self._by_client[link.hello.client_id] = link
        batch += [(link, frame) for frame in frames]

    def _lose(self, link: Link) -> None:
        if link not in self._links:
            return
        self._links.discard(link)
        self._strangers.discard(link)
        self._selector.unregister(link.connection)
        if link.hello is not None and self._by_client.get(link.hello.client_id) is link:
            del self._by_client[link.hello.client_id]
        link.close()

    def _watch(self, link: Link, *, writing: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        self._selector.modify(link.connection, events, link)

    def _drop_silent_strangers(self) -> None:
        now = time.monotonic()
        for link in [link for link in self._strangers if link.deadline < now]:
            self._news.say(f"a connection is refused peer={link.peer} reason=it said nothing")
            self._lose(link)

    def _write(self, batch: _Batch) -> None:
        left = batch
        while left:
            plan, left = self._plan(left)
            runs, contents, skipped = plan.runs, plan.contents, plan.skipped
            if runs:
                self._journal.intend(runs)
                for run, buffers in zip(runs, contents, strict=True):
                    self._append(run, buffers)
                self._journal.done(runs)
            self._journal.skip(skipped)
        # Only what is in the files is acknowledged, also to a client that has just come back.
        heard = {link: Word.FIN if frame.word is Word.FIN else Word.ACK for link, frame in batch}
        for link, word in heard.items():
            if link in self._links:
                self._answer(link, word)

    def _answer(self, link: Link, word: Word) -> None:
        assert link.hello is not None
        try:
            link.answer(word, self._journal.written.get(link.hello.client_id, 0))
            if not link.flush():
                self._watch(link, writing=True)
        except (BadFrame, OSError):
            self._lose(link)

    def _plan(self, batch: _Batch) -> tuple[Plan, _Batch]:
        """Where each frame will stand, in order, and what of the batch must wait for a file to be turned.

        Frames that are there already are left out; those without a log go to standard error.
        """
        plan = Plan(self._files, self._journal.written)
        for index, (link, frame) in enumerate(batch):
            if link.hello is None or frame.word not in _KINDS:
                continue
            client_id, kind = link.hello.client_id, Kind(frame.word)
            if not self._files.has(kind):
                # A node that was started with other logs than this one: its other lines must not wait behind these.
                if plan.skip(client_id, frame):
                    _write_somewhere(frame.content)
                continue
            if not self._retry(functools.partial(plan.add, client_id, kind, frame)):
                return plan, batch[index:]
        return plan, []

    def _append(self, run: Run, buffers: Sequence[bytes]) -> None:
        file = self._retry(lambda: self._files.open(Kind(run.kind), run.cycle))
        self._retry(Appending(file.descriptor, buffers).go)

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Try again while a file system is full or away: all nodes keep their lines until it works."""
        said = False
        while True:
            try:
                return attempt()
            except (OSError, NotALog) as error:
                if not said:
                    said = True
                    _warn(f"a log cannot be written to, trying again: {error}")
            ready, _, _ = select.select([sys.stdin.fileno()] if self._deadline is None else [], [], [], RETRY_SECONDS)
            if ready:
                self._hear_launcher()
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise SystemExit(1)

    def _speak(self) -> None:
        """Write down what happened to connections. Between two batches: the journal knows nothing of these lines."""
        lines = self._news.take()
        if not lines:
            return
        if not self._files.has(Kind.LAUNCHER):
            _warn(lines.decode().rstrip())
            return
        file = self._retry(lambda: self._files.open(Kind.LAUNCHER, 0, len(lines)))
        self._retry(Appending(file.descriptor, [lines]).go)


def sum_bytes(batch: _Batch) -> int:
    """Of the lines in it."""
    return sum(len(frame.content) for _, frame in batch)


def _write_somewhere(lines: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, lines)


def _warn(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"nvrx-chain log funnel: {text}\n".encode(errors="replace"))


def _prepare(parent: int) -> None:
    """Outlive every signal that asks the training to end, and no launcher."""
    for number in _PASSED_BY:
        signal.signal(number, signal.SIG_IGN)
    # The kernel ends it even where this process hangs in a file system and comes back only later.
    signal.signal(PARENT_DIED, lambda number, frame: signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS) and None)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(PARENT_DIED), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read_orders() -> Orders:
    data = bytearray()
    # A byte at a time: what follows the line is for the selector. No deadline: the launcher writes it before all else.
    while not data.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            raise SystemExit(1)
        data += byte
    return msgspec.json.decode(bytes(data), type=Orders)


def main() -> None:
    """The process."""
    orders = _read_orders()
    _prepare(orders.parent)
    writer = FunnelWriter(orders)
    with contextlib.suppress(OSError):
        os.write(orders.ready, READY)
    os.close(orders.ready)
    writer.serve()


if __name__ == "__main__":
    main()
