"""For training scripts: tells the launcher that this rank is alive, where it is, and what it has done.

    from nvrx_chain.launcher import client

    client.connect()
    ...
    client.committed(step)

Everything is optional; what is used is watched by the rules that the job was launched with. Outside the launcher
nothing of it does anything. Only the standard library is needed, and this file may be copied. A launcher that is slow
or gone never disturbs the training: words are dropped, or the client falls silent with one line on standard error. All
functions may be called from any thread. A forked child (a worker of a data loader) says nothing, unless it calls
`connect` itself.

Touches: the unix socket that NVRX_CHAIN_RANK_SOCKET names, one signal (`DUMP_SIGNAL`), one anonymous file, standard
error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

SOCKET_VARIABLE = "NVRX_CHAIN_RANK_SOCKET"
DUMP_SIGNAL = 45
"""A real-time signal that glibc, Python and NCCL leave alone: a process that has registered writes its stacks."""
MARKS = ("process_group_ready", "checkpoint_restored")
MAX_BACKLOG = 256 * 1024
"""Bytes that wait for a launcher that does not read, before they are replaced by a word about the present."""
MAX_NAME = 100
MAX_NAMES = 1000
ANSWER_SECONDS = 5.0

# A script may have made SIGPIPE deadly again.
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

_HEARTBEAT = b'{"do":"heartbeat"}\n'
_END_ALL = b'{"do":"end_all"}\n'


def connect() -> bool:
    """Begin to speak for this rank; False outside the launcher, or when it cannot be reached. May be called again."""
    return _rank.connect(os.environ.get(SOCKET_VARIABLE))


def heartbeat() -> None:
    """This rank is alive and goes on."""
    _rank.say(_HEARTBEAT)


def start_section(name: str) -> None:
    """This rank enters a section; the limit of that section counts from now. Sections may lie in one another."""
    _rank.start(name)


def end_section(name: str) -> None:
    """This rank leaves a section."""
    _rank.end(name)


def end_all_sections() -> None:
    """This rank is in no section any more."""
    _rank.end_all()


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    """`start_section` and, however the block ends, `end_section`."""
    start_section(name)
    try:
        yield
    finally:
        end_section(name)


def mark(name: str) -> None:
    """A point of the recovery timeline is reached. Raises ValueError for a name that is not in MARKS."""
    if name not in MARKS:
        raise ValueError(f"{name!r} is no mark: {' or '.join(MARKS)}")
    _rank.say(_line(do="mark", name=name))


def committed(iteration: int) -> None:
    """A training step is done. Counts as a heartbeat; the first one shows that this rank is back at work."""
    _rank.committed(iteration)


def stop_restarting(why: str) -> bool:
    """Ask the launcher to end the job: another start would be useless. Whether it heard that within ANSWER_SECONDS."""
    return _ask(do="ask", action="stop_restarting", why=_clean(why, 1000)) is not None


def exclude_this_node(why: str) -> bool:
    """Ask the launcher to go on without this node. Whether it heard that within ANSWER_SECONDS."""
    return _ask(do="ask", action="exclude_this_node", why=_clean(why, 1000)) is not None


def calculated_timeouts() -> dict[str, Any] | None:
    """Limits that follow from the durations seen on this node, in seconds; None when the launcher does not answer.

    Keys: `heartbeat`, `initial_heartbeat`, `out_of_section` (a number or None), `sections` and `warmup` (by name).
    """
    answer = _ask(do="calculate")
    return None if answer is None else answer.get("timeouts")


def use_timeouts(timeouts: dict[str, Any]) -> bool:
    """Make such limits those of this rank, also after a restart. Whether the launcher heard that."""
    return _ask(do="use", timeouts=timeouts) is not None


def write_stacks_on_signal(path: str) -> bool:
    """Let DUMP_SIGNAL write the stacks of all threads into a file that the launcher can read, here and at once."""
    if signal.getsignal(DUMP_SIGNAL) is not signal.SIG_DFL or not hasattr(os, "memfd_create"):
        return False
    try:
        file = os.memfd_create("stacks", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        with _open_socket(path) as connection:
            # Before it is announced: the signal would kill a process that has no handler.
            faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True)
            socket.send_fds(connection, [_line(do="dump")], [file], socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def _line(**word: Any) -> bytes:
    return json.dumps(word, separators=(",", ":")).encode("ascii") + b"\n"


def _clean(text: object, most: int = MAX_NAME) -> str:
    """What JSON can carry: half a surrogate pair would end the connection."""
    return str(text)[:most].encode("utf-8", "replace").decode()


def _complain(what: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"nvrx_chain client: {what}; this rank goes on without the launcher", file=sys.stderr, flush=True)


def _open_socket(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A launcher that stands still has a full queue, and would hold the training up.
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _ask(**word: Any) -> dict[str, Any] | None:
    """Ask over a connection of its own, so that it works for a forked child and after the other one broke."""
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return None
    deadline = time.monotonic() + ANSWER_SECONDS
    heard = b""
    try:
        with _open_socket(path) as connection:
            connection.sendall(_line(**word), socket.MSG_NOSIGNAL)
            while not heard.endswith(b"\n"):
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                data = connection.recv(65536)
                if not data:
                    return None
                heard += data
        answer = json.loads(heard)
    except (OSError, ValueError, TypeError):
        return None
    return answer if isinstance(answer, dict) and "refused" not in answer else None


class _Rank:
    """The one connection of this process."""

    def __init__(self) -> None:
        # A signal handler of the script may speak while the same thread speaks.
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._backlog = bytearray()
        self._open: dict[str, None] = {}
        self._lines: dict[tuple[str, str], bytes] = {}

    def connect(self, path: str | None) -> bool:
        if not path:
            return False
        with self._lock:
            if self._socket is not None:
                return True
            try:
                connection = _open_socket(path)
                # With a time-out Python itself would wait for a launcher that does not read.
                connection.setblocking(False)
                connection.send(b'{"do":"hello"}\n', _FLAGS)
            except OSError as error:
                _complain(f"{path}: {error.strerror or error}")
                return False
            self._socket = connection
            write_stacks_on_signal(path)
        return True

    def say(self, line: bytes) -> None:
        if self._socket is not None:
            with self._lock:
                self._send(line)

    def committed(self, iteration: int) -> None:
        if self._socket is not None:
            self.say(b'{"do":"committed","iteration":%d}\n' % int(iteration))

    def start(self, name: str) -> None:
        if self._socket is not None:
            with self._lock:
                self._open[name] = None
                self._send(self._named("start", name))

    def end(self, name: str) -> None:
        if self._socket is not None:
            with self._lock:
                self._open.pop(name, None)
                self._send(self._named("end", name))

    def end_all(self) -> None:
        if self._socket is not None:
            with self._lock:
                self._open.clear()
                self._send(_END_ALL)

    def abandon(self) -> None:
        """In a forked child: the connection stays the parent's."""
        if self._socket is not None:
            self._socket.close()

    def _named(self, do: str, name: str) -> bytes:
        line = self._lines.get((do, name))
        if line is None:
            line = _line(do=do, name=_clean(name) or "unnamed")
            if len(self._lines) < MAX_NAMES:
                self._lines[do, name] = line
        return line

    def _send(self, line: bytes) -> None:
        if self._socket is None:
            return
        if self._backlog:
            self._keep(line)
            return
        try:
            sent = self._socket.send(line, _FLAGS)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fall_silent(error)
            return
        if sent < len(line):
            self._backlog += line[sent:]
            self._begin_flushing()

    def _keep(self, line: bytes) -> None:
        """Put a word behind those that wait; when they are too many, only what still matters is kept."""
        self._backlog += line
        if len(self._backlog) <= MAX_BACKLOG:
            return
        # The first one may have been sent in part.
        first, *rest = bytes(self._backlog).splitlines(keepends=True)
        kept = [one for one in rest if one.startswith(b'{"do":"mark"')][-10:]
        kept += [one for one in rest if one.startswith(b'{"do":"committed"')][-1:]
        sections = [_clean(name) or "unnamed" for name in list(self._open)[: MAX_NAMES // 2]]
        self._backlog[:] = b"".join([first, *kept, _line(do="now", open=sections)])

    def _begin_flushing(self) -> None:
        # Without it the last words before a long silence would wait until the silence ends.
        with contextlib.suppress(RuntimeError):  # the interpreter is about to end
            threading.Thread(target=self._flush, name="nvrx-chain-client", daemon=True).start()

    def _flush(self) -> None:
        connection = self._socket
        if connection is None:
            return
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLOUT)
        # No deadline: it ends with the connection, or with the process.
        while poll.poll():
            with self._lock:
                if self._socket is not connection or not self._flush_some(connection):
                    return

    def _flush_some(self, connection: socket.socket) -> bool:
        """Whether words still wait."""
        try:
            del self._backlog[: connection.send(self._backlog, _FLAGS)]
        except BlockingIOError:
            return True
        except OSError as error:
            self._fall_silent(error)
        return bool(self._backlog)

    def _fall_silent(self, error: OSError) -> None:
        connection, self._socket = self._socket, None
        assert connection is not None
        why = error.strerror or str(error)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            why = json.loads(connection.recv(4096, socket.MSG_DONTWAIT)).get("refused", why)
        connection.close()
        self._backlog.clear()
        _complain(f"the launcher has ended the connection: {why}")


_rank = _Rank()


def _after_fork() -> None:
    global _rank
    # A new object: another thread of the parent may have held the lock.
    parents, _rank = _rank, _Rank()
    parents.abandon()


os.register_at_fork(after_in_child=_after_fork)
