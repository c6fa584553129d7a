"""A node's end of the log funnel: sends its lines to the one writer, and keeps them until they are in the files.

Nothing is lost on a clean stop, whatever happened to the writer and the network in between; a killed launcher loses
what was in flight. Touches: one TCP connection, an eventfd, a thread, a file without a name on the node.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import select
import selectors
import socket
import threading
import time

from nvrx_chain.launcher.funnel_backlog import Backlog
from nvrx_chain.launcher.funnel_dial import Dialer, Link
from nvrx_chain.launcher.funnel_wire import (
    LINES_BYTES,
    BadFrame,
    Frame,
    Hello,
    Word,
)
from nvrx_chain.launcher.log_files import Appending, LogFiles, NotALog
from nvrx_chain.launcher.log_settings import Kind, LogLimits, LogPlaces, leftovers_of
from nvrx_chain.launcher.log_sinks import Quiet, Tally, write_to_stream

log = logging.getLogger(__name__)

SEND_BYTES = 1 << 20
SEND_FRAMES = 256
"""At once: sendmsg(2) takes 1024 pieces."""
READ_BYTES = 1 << 16
SAVE_SECONDS = 5.0
"""For putting aside what the writer did not take."""
AGAIN_SECONDS = (0.1, 5.0)
"""Between two attempts, doubling; jittered, because all nodes lose the writer at once."""


class FunnelClient:
    """A `LogSink`. `write` is for one thread; it waits when memory and file are full, for `stall_seconds` at most.

    Lines of a kind that has no file go to standard output or error. What the writer would not take before the end is
    put into files of this node beside the others.
    """

    def __init__(
        self,
        address: tuple[str, int] | None,
        secret: str,
        node_id: str,
        places: LogPlaces,
        limits: LogLimits,
    ) -> None:
        hello = Hello(node_id=node_id, incarnation=secrets.token_hex(8))
        self._dialer = Dialer(address, secret, hello, self._await)
        self._limits = limits
        self._files = [kind for kind in Kind if places.path_of(kind, 0) is not None]
        self._leftovers = leftovers_of(places, node_id)
        self._backlog = Backlog(limits)
        self._room = threading.Condition()
        """Guards the backlog; told when there is room again."""
        self._tally = Tally("the log writer was away for too long")
        self._dropped: tuple[Kind, int] = (Kind.APP, 0)
        self._patience = limits.stall_seconds
        self._stalled_since: float | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._due: float | None = None
        """When the lines that are gathered must leave."""
        self._deadline: float | None = None
        self._closing = threading.Event()
        self._aimed = threading.Event()
        if address is not None:
            self._aimed.set()
        self._is_clean = False
        self._is_abandoned = False
        self._lost_at: float | None = None
        self._said_loss = False
        self._quiet = Quiet()
        self._quiet_stalls = Quiet()
        self._thread = threading.Thread(target=self._run, name="log-funnel", daemon=True)

    def aim(self, address: tuple[str, int]) -> None:
        """Say where the writer is, when it was not known at the beginning."""
        self._dialer.aim(address)
        self._aimed.set()

    def start(self) -> None:
        """Connect, in a thread of its own; lines may come at once."""
        self._thread.start()

    def write(self, kind: Kind, cycle: int, lines: bytes) -> None:
        """Take whole lines."""
        if kind not in self._files:
            write_to_stream(kind, lines)
            return
        with self._room:
            if not self._wait_for_room(len(lines)):
                self._tally.drop(lines)
                self._dropped = (kind, cycle)
                return
            before = self._backlog.gathered_bytes
            self._settle()
            self._backlog.add(kind, cycle, lines)
            if self._due is None:
                self._due = time.monotonic() + self._limits.flush_seconds
            must_wake = not before or before + len(lines) >= LINES_BYTES
        if must_wake:
            self._ring()

    def hurry(self) -> None:
        """Hold nobody up any more."""
        with self._room:
            self._patience = 0.0
            self._room.notify_all()

    def close(self, within_seconds: float) -> bool:
        """Wait until the writer has everything; False when it has not after that time, or lines were dropped."""
        self.hurry()
        with self._room:
            self._settle()
            self._deadline = time.monotonic() + within_seconds
        self._closing.set()
        self._aimed.set()
        self._ring()
        self._thread.join(within_seconds + SAVE_SECONDS)
        return self._is_clean and not self._tally.total_lines

    def _settle(self) -> None:
        note = self._tally.note()
        if note:
            self._backlog.add(*self._dropped, note)
            self._tally.settle()

    def _wait_for_room(self, size: int) -> bool:
        while not self._backlog.has_room(size):
            if self._stalled_since is None:
                self._stalled_since = time.monotonic()
                if self._quiet_stalls.may_say():
                    log.warning("workers are held up: the log writer is away, and there is no room for their lines")
            left = self._stalled_since + self._patience - time.monotonic()
            if left <= 0:
                return False
            self._room.wait(left)
        self._stalled_since = None
        return True

    def _ring(self) -> None:
        with self._room:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        pause = AGAIN_SECONDS[0]
        # No deadline: the job that says where the writer is has one, and `close` ends the wait.
        self._aimed.wait()
        while not self._is_over():
            before = self._backlog.acknowledged
            why = self._try()
            if self._is_over():
                break
            if self._backlog.acknowledged > before:
                pause = AGAIN_SECONDS[0]
            self._note_loss(why)
            self._closing.wait(random.uniform(0.5, 1.0) * min(pause, self._left(pause)))
            pause = min(2 * pause, AGAIN_SECONDS[1])
        self._end()

    def _note_loss(self, why: str) -> None:
        if self._lost_at is not None:
            return
        self._lost_at = time.monotonic()
        self._said_loss = self._quiet.may_say()
        if self._said_loss:
            log.warning("the log writer is away, lines are kept here reason=%s", why)

    def _note_return(self) -> None:
        if self._lost_at is not None and self._said_loss:
            log.warning("the log writer is back after_seconds=%.1f", time.monotonic() - self._lost_at)
        self._lost_at = None

    def _is_over(self) -> bool:
        return (
            self._is_clean
            or (self._is_abandoned and self._closing.is_set())
            or (self._deadline is not None and time.monotonic() >= self._deadline)
        )

    def _left(self, most: float) -> float:
        """Seconds that a wait may take."""
        if self._deadline is None:
            return most
        return max(0.001, min(most, self._deadline - time.monotonic()))

    def _try(self) -> str:
        """One connection, to its end; why it ended."""
        try:
            link, acknowledged = self._dialer.dial()
            with link.connection:
                self._is_abandoned = False
                self._note_return()
                with self._room:
                    self._backlog.restart(acknowledged)
                    self._room.notify_all()
                self._converse(link)
                return "the launcher ends"
        except ConnectionRefusedError as error:
            # The launcher of the host holds the port for as long as it lives.
            self._is_abandoned = True
            return str(error)
        except (OSError, BadFrame) as error:
            return str(error)

    def _await(self, connection: socket.socket, event: int, seconds: float) -> None:
        """Wait for the other end, no longer than the launcher has left. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(connection, event)
        poll.register(self._wake, select.POLLIN)
        while (left := min(deadline, self._deadline or deadline) - time.monotonic()) > 0:
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000)]
            if connection.fileno() in ready:
                return
            if ready:
                self._clear()
        raise TimeoutError("the log writer did not answer in time")

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _converse(self, link: Link) -> None:
        with selectors.EpollSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            key = selector.register(link.connection, selectors.EVENT_READ)
            while not self._is_over():
                self._fill(link)
                link.flush()
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.out else 0)
                if wanted != key.events:
                    key = selector.modify(link.connection, wanted)
                for ready, events in selector.select(self._wait_seconds(link)):
                    if ready.fileobj == self._wake:
                        self._clear()
                    elif events & selectors.EVENT_READ:
                        self._hear(link)

    def _wait_seconds(self, link: Link) -> float | None:
        # No deadline without lines: `write` and `close` ring, and a dead connection ends by its keep-alive.
        with self._room:
            ends = [self._deadline, None if link.out else self._due]
        known = [end for end in ends if end is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _fill(self, link: Link) -> None:
        """Take what is due, when all before it is with the kernel."""
        if link.out:
            return
        with self._room:
            if self._closing.is_set() or (self._due is not None and time.monotonic() >= self._due):
                self._backlog.gather()
            if not self._backlog.gathered_bytes:
                self._due = None
            frames: list[Frame] = []
            size = 0
            while size < SEND_BYTES and len(frames) < SEND_FRAMES:
                frame = self._backlog.next_unsent()
                if frame is None:
                    break
                frames.append(frame)
                size += len(frame.content)
            # Lines in the file may wait for memory to become free: they come before the end too.
            if self._closing.is_set() and not (frames or self._backlog.has_unsent or link.said_fin):
                link.said_fin = True
                frames.append(Frame(word=Word.FIN, seq=self._backlog.last_seq))
        for frame in frames:
            link.push(frame)

    def _hear(self, link: Link) -> None:
        try:
            data = link.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the log writer closed the connection")
        for frame in link.reader.feed(data):
            with self._room:
                self._backlog.acknowledge(frame.seq)
                self._is_clean = frame.word is Word.FIN and self._backlog.is_empty
                self._room.notify_all()

    def _end(self) -> None:
        with self._room:
            if not self._is_clean and not self._backlog.is_empty:
                self._save()
            self._backlog.close()
            descriptor, self._wake = self._wake, -1
        os.close(descriptor)

    def _save(self) -> None:
        """Put aside what the writer did not take: the last lines before the end are those that people look for."""
        lines = 0
        files = LogFiles(self._leftovers)
        try:
            for frame in self._backlog.drain():
                lines += frame.content.count(b"\n")
                Appending(files.open(Kind(frame.word), frame.cycle).descriptor, [frame.content]).go()
        except (OSError, NotALog) as error:
            log.error("lines that the log writer did not take are lost error=%s lines_before=%s", error, lines)
            return
        files.close()
        where = self._leftovers.app_log or self._leftovers.launcher_log
        log.error("the log writer did not acknowledge lines before the end lines=%s put_into=%s", lines, where)
