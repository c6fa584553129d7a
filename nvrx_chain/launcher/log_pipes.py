"""One thread that reads what all workers of a node write, to the end of each pipe, and hands whole lines to a sink.

It reads in big pieces some times a second rather than once for each line, and holds workers up only when the sink holds
it up. Touches: the pipes of the workers, an eventfd, a thread.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import logging
import os
import select
import selectors
import struct
import termios
import threading
import time
from collections.abc import Iterable, Iterator

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.log_lines import LineSplitter, rank_prefix
from nvrx_chain.launcher.log_settings import Kind
from nvrx_chain.launcher.log_sinks import STDERR, LogSink

log = logging.getLogger(__name__)

PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18
GATHER_SECONDS = 0.02
"""Between two readings of pipes that are not filling up."""
PARKED = b"parked worker: "
LAUNCHER_LINES = 10_000
"""Of the launcher that wait for the thread; it may be held up for as long as a file system stands still."""

_Piece = tuple[Kind, int, bytes]


class Tap:
    """One worker's output. Made by `PipeReader.attach`."""

    def __init__(self, descriptor: int, reader: PipeReader, label: bytes) -> None:
        self.descriptor = descriptor
        self.plenty = min(READ_BYTES, fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ) // 2)
        """So many bytes in one reading: the pipe may be full before the next one."""
        self._reader = reader
        self._lock = threading.Lock()
        self._early = LineSplitter(label)
        self._early_left: int | None = None
        """Bytes in the pipe that were written before it became a rank; None while it is none."""
        self._rank = LineSplitter()
        self._cycle = 0
        self._ended = threading.Event()

    def assign(self, cycle: int, rank: int, world: int, *, is_new: bool = False) -> None:
        """From now on, with `is_new` from the beginning, it writes as this rank. Call it before it is told so."""
        with self._lock:
            if self._early_left is not None:
                raise NvrxError("assigning the output of a worker", hint="it is a rank already")
            self._early_left = 0 if is_new or self._ended.is_set() else _bytes_in(self.descriptor)
            self._rank = LineSplitter(rank_prefix(rank, world) if self._reader.prefix_ranks else b"")
            self._cycle = cycle

    @property
    def at_end(self) -> bool:
        """Whether everything it wrote is with the sink, and nobody can write more."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until then; False when a process still holds the pipe after that time. It is read on in any case."""
        if self._ended.is_set():
            return True
        with self._reader.in_haste():
            return self._ended.wait(seconds)

    def read(self) -> tuple[list[_Piece], int]:
        """What is in the pipe now, as lines, and how many bytes were read; none at its end. For the reader's thread."""
        with self._lock:
            try:
                data = os.read(self.descriptor, READ_BYTES)
            except BlockingIOError:
                return [], -1
            except OSError as error:
                log.warning("reading the output of a worker failed, it is closed error=%s", error)
                data = b""
            return (self._split(data), len(data)) if data else (self._finish(), 0)

    def end(self) -> None:
        """Give the descriptor back. For the reader's thread."""
        with self._lock:
            os.close(self.descriptor)
            self._ended.set()

    def finish(self) -> list[_Piece]:
        """The lines without an end. For the reader's thread."""
        with self._lock:
            return self._finish()

    def _split(self, data: bytes) -> list[_Piece]:
        if self._early_left is None:
            return [(Kind.LAUNCHER, 0, self._early.feed(data))]
        if not self._early_left:
            return [(Kind.APP, self._cycle, self._rank.feed(data))]
        early, data = data[: self._early_left], data[self._early_left :]
        self._early_left -= len(early)
        pieces = [(Kind.LAUNCHER, 0, self._early.feed(early))]
        if not self._early_left:
            pieces.append((Kind.LAUNCHER, 0, self._early.finish()))
        return [*pieces, (Kind.APP, self._cycle, self._rank.feed(data))]

    def _finish(self) -> list[_Piece]:
        return [(Kind.LAUNCHER, 0, self._early.finish()), (Kind.APP, self._cycle, self._rank.finish())]


class PipeReader:
    """The reader of one node. `attach` and `write_launcher` may be called from any thread, and never wait."""

    def __init__(self, sink: LogSink, *, prefix_ranks: bool = True) -> None:
        self.prefix_ranks = prefix_ranks
        self._sink = sink
        self._taps: set[Tap] = set()
        self._arrivals: collections.deque[Tap] = collections.deque()
        self._said: collections.deque[bytes] = collections.deque()
        self._said_too_much = 0
        self._last = b""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waiting = 0
        self._closing: float | None = None
        self._closed = False
        self._lock = threading.Lock()
        """Of the eventfd: a number that was closed may be another file a moment later."""
        self._thread = threading.Thread(target=self._run, name="log-pipes", daemon=True)

    def start(self) -> None:
        """Begin to read, in a thread of its own."""
        self._thread.start()

    def attach(self, descriptor: int, label: bytes = PARKED, rank: tuple[int, int, int] | None = None) -> Tap:
        """Read this pipe from now on; it belongs to the reader. `label` begins the lines from before it is a rank.

        `rank` (cycle, rank, world): it is one from its first byte on.
        """
        os.set_blocking(descriptor, False)
        # Of an unprivileged user with many pipes the kernel refuses; the small one is read more often then.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        tap = Tap(descriptor, self, label)
        if rank is not None:
            tap.assign(*rank, is_new=True)
        self._arrivals.append(tap)
        self.wake()
        return tap

    def write_launcher(self, text: str) -> None:
        """Lines of the launcher itself, for the launcher log; on standard error once the reader has ended."""
        data = text.encode(errors="replace") + b"\n"
        if self._closed:
            os.write(STDERR, data)
            return
        if len(self._said) >= LAUNCHER_LINES:
            self._said_too_much += 1
            return
        self._said.append(data)
        self.wake()

    def write_last(self, text: str) -> None:
        """What stands behind everything else when `close` is through."""
        self._last = text.encode(errors="replace") + b"\n"

    @contextlib.contextmanager
    def in_haste(self) -> Iterator[None]:
        """Somebody waits: nothing is gathered meanwhile."""
        with self._lock:
            self._waiting += 1
        self.wake()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def wake(self) -> None:
        """Have the thread look."""
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self, within_seconds: float, sink_seconds: float = 0.0) -> tuple[Tap, ...]:
        """Read to the end of every pipe, then stop; the taps that somebody still held open after that time.

        What was in their pipes by then was read. A sink without room may take `sink_seconds` more to find some; it is
        not closed, but waits for nothing from then on.
        """
        self._closing = time.monotonic() + within_seconds
        self.wake()
        self._thread.join(within_seconds + GRACE_SECONDS + sink_seconds)
        self._sink.hurry()
        self._thread.join(GRACE_SECONDS)
        return tuple(self._taps)

    def _run(self) -> None:
        with selectors.EpollSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            hungry = True
            while not self._is_over():
                # What rang while the pipes filled has been heard: nothing may ring again.
                rang = not hungry and self._gather()
                ready = selector.select(0.0 if rang else self._patience())
                self._admit(selector)
                self._hand_over_launcher()
                hungry = self._read_ready(selector, [key.data for key, _ in ready if key.data is not None])
            self._end()

    def _is_over(self) -> bool:
        if self._closing is None:
            return False
        return time.monotonic() >= self._closing or not (self._taps or self._arrivals)

    def _patience(self) -> float | None:
        # No deadline otherwise: it lives as long as the launcher, and every news rings the eventfd.
        return None if self._closing is None else max(0.0, self._closing - time.monotonic())

    def _gather(self) -> bool:
        """Let the pipes fill for a moment, unless somebody waits for the end of one; whether the eventfd rang."""
        rang = False
        deadline = time.monotonic() + GATHER_SECONDS
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._waiting and self._closing is None and (left := deadline - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                rang = True
                self._clear()
        return rang

    def _clear(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _admit(self, selector: selectors.BaseSelector) -> None:
        self._clear()
        while self._arrivals:
            tap = self._arrivals.popleft()
            self._taps.add(tap)
            selector.register(tap.descriptor, selectors.EVENT_READ, tap)

    def _hand_over_launcher(self) -> None:
        lines = b"".join(self._said.popleft() for _ in range(len(self._said)))
        missed, self._said_too_much = self._said_too_much, 0
        if missed:
            lines += b"nvrx-chain: %d lines of the launcher were dropped here\n" % missed
        if lines:
            self._sink.write(Kind.LAUNCHER, 0, lines)

    def _read_ready(self, selector: selectors.BaseSelector, taps: Iterable[Tap]) -> bool:
        """Read each once; whether one of them had so much that it must be read again soon."""
        hungry = False
        for tap in taps:
            pieces, count = tap.read()
            self._write(pieces)
            hungry = hungry or count >= tap.plenty
            if count == 0:
                selector.unregister(tap.descriptor)
                self._taps.discard(tap)
                tap.end()
                hungry = True
        return hungry

    def _write(self, pieces: Iterable[_Piece]) -> None:
        for kind, cycle, lines in pieces:
            if lines:
                self._sink.write(kind, cycle, lines)

    def _end(self) -> None:
        for tap in self._taps:
            # Somebody still writes: what is there now, and not what comes while it is read.
            for _ in range(PIPE_BYTES // READ_BYTES):
                pieces, count = tap.read()
                self._write(pieces)
                if count <= 0:
                    break
            self._write(tap.finish())
            tap.end()
        self._closed = True
        self._hand_over_launcher()
        self._write([(Kind.LAUNCHER, 0, self._last)])
        with self._lock:
            descriptor, self._wake = self._wake, -1
        os.close(descriptor)


GRACE_SECONDS = 1.0
"""For the thread to read what is in the pipes when the time is over."""


def _bytes_in(descriptor: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)
