"""The reading process: forked from the watcher, asked through one pipe, answering through another.

A hung mount puts whoever touches it to sleep in the kernel, where not even SIGKILL ends it. So the watcher never
touches one, waits for answers with a deadline, and leaves a child behind that gives none. Touches: one child process.

Forked and not started anew, because an interpreter takes longer to start than a pass may take. A fork beside other
threads can leave the child waiting for a lock that nobody holds any more; that looks like a hung mount, and ends like
one. A daemon starts the child before its threads, so that only a replacement can meet it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import pickle
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator

from nvrx_watch.reading.collector import collector_paused
from nvrx_watch.reading.messages import Message, NotRead, ReadRequest, ReadSummary, Request

Serve = Callable[[Request], Iterator[Message]]
"""Answers one request; the last message is a ReadSummary or NotRead. To a ForgetRequest there is no answer."""

_LENGTH_BYTES = 8
_MOST_BYTES = 1 << 28
_PIPE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_END_SECONDS = 0.5


class ChildLate(Exception):
    """No answer within the deadline."""


class ChildGone(Exception):
    """The child has ended, or answers what is no message."""


class ReadingChild:
    """One child process; `serve` runs in it."""

    def __init__(self, serve: Serve) -> None:
        request_end, self._requests = os.pipe()
        self._replies, reply_end = os.pipe()
        os.set_blocking(self._requests, False)
        _widen(self._replies)
        with warnings.catch_warnings():
            # The docstring says why a fork beside threads is accepted here.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _be_child(serve, request_end, reply_end)
        os.close(request_end)
        os.close(reply_end)
        self._buffer = bytearray()
        self._is_open = True

    def ask(self, request: ReadRequest, ends_at: float) -> Iterator[Message]:
        """Send a request and give the messages as they come, until `ends_at` on the monotonic clock.

        Raises ChildLate and ChildGone.
        """
        self.tell(request)
        while True:
            message = self._receive(ends_at)
            yield message
            if isinstance(message, (ReadSummary, NotRead)):
                return

    def tell(self, request: Request) -> None:
        """Send a request without waiting. Raises ChildGone."""
        content = _frame(request)
        try:
            # A pipe takes a request whole or not at all: the child has read all earlier ones, or has room for them.
            written = os.write(self._requests, content)
        except OSError as error:
            raise ChildGone(f"asking the reading process: {error.strerror or error}") from error
        if written != len(content):
            raise ChildGone("asking the reading process: it does not take the request")

    def kill(self) -> None:
        """End it. It may not be gone for long: it may sleep in the kernel."""
        if self._is_open:
            os.close(self._requests)
            os.close(self._replies)
            self._is_open = False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether it has ended, looked at once and without waiting."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            # Somebody else has collected it.
            return True

    def end(self) -> bool:
        """Kill it and wait a moment until it is gone; False when it is not."""
        self.kill()
        ends_at = time.monotonic() + _END_SECONDS
        while not self.is_gone():
            if time.monotonic() > ends_at:
                return False
            time.sleep(0.002)
        return True

    def _receive(self, ends_at: float) -> Message:
        header = self._take(_LENGTH_BYTES, ends_at)
        length = int.from_bytes(header, "big")
        if length > _MOST_BYTES:
            raise ChildGone(f"the reading process announces a message of {length} bytes")
        message: Message = pickle.loads(self._take(length, ends_at))
        return message

    def _take(self, count: int, ends_at: float) -> bytes:
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        while len(self._buffer) < count:
            remaining = ends_at - time.monotonic()
            if remaining <= 0 or not poller.poll(remaining * 1000):
                raise ChildLate
            chunk = os.read(self._replies, _CHUNK_BYTES)
            if not chunk:
                raise ChildGone("the reading process has ended")
            self._buffer += chunk
        taken = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return taken


def _frame(message: Request | Message) -> bytes:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def _widen(descriptor: int) -> None:
    # Fewer turns between the two processes; a user over the limit for pipes keeps the usual size.
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _be_child(serve: Serve, request_end: int, reply_end: int) -> None:
    """The child's whole life. Never returns: what lies below on the stack is the watcher's."""
    code = 1
    try:
        _leave_parent({request_end, reply_end})
        _answer(serve, request_end, reply_end)
        code = 0
    except BaseException:  # noqa: BLE001 the end of a process: anything that came up would run the watcher's code twice
        with contextlib.suppress(OSError):
            _send(reply_end, NotRead(f"the reading process failed: {traceback.format_exc(limit=-3)}"))
    finally:
        os._exit(code)


def _leave_parent(keep: set[int]) -> None:
    """Let go of everything that the watcher has open.

    A child that hangs for hours must hold neither the watcher's lock file nor the pipe of whoever reads its output.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            # The one that the listing itself used is closed already.
            with contextlib.suppress(OSError):
                os.close(int(name))
    # What the parent made is not looked at by the collector, and so stays shared memory.
    gc.freeze()


def _answer(serve: Serve, request_end: int, reply_end: int) -> None:
    with open(request_end, "rb") as requests:
        while header := requests.read(_LENGTH_BYTES):
            request: Request = pickle.loads(requests.read(int.from_bytes(header, "big")))
            with collector_paused():
                for message in serve(request):
                    _send(reply_end, message)


def _send(descriptor: int, message: Message) -> None:
    content = memoryview(_frame(message))
    while content:
        content = content[os.write(descriptor, content) :]
