"""Runs a program that may hang, print without end, or leave children behind, for so many seconds and no longer.

Touches: processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CHILD = Path(__file__).with_name("bounded_child.py")
_AFTER_KILL_SECONDS = 0.3
_REAP_PAUSE_SECONDS = 0.002
_KEPT_BYTES = 4096
_LONGEST_LINE = 300
_PIPE_READS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended. `exit_code` is None when its time was up, negative for a signal."""

    exit_code: int | None
    last_line: str
    start_error: str | None = None
    """Why it could not be started; then nothing else counts."""


class BoundedProgram:
    """One program that is run again and again. One that cannot be killed is left behind, and then no other starts."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self._stuck: subprocess.Popen[bytes] | None = None

    def run(self, environ: Mapping[str, str], seconds: float) -> Ran:
        """Run it. Its standard output and error count together; of its children none is left."""
        if self._stuck is not None and self._stuck.poll() is None:
            # Dead mounts hold what touches them: one process that hangs is enough.
            return Ran(exit_code=None, last_line="an earlier run still hangs")
        self._stuck = None
        deadline = time.monotonic() + seconds
        reading, writing = os.pipe()
        try:
            process = self._start(environ, writing)
        except OSError as error:
            os.close(reading)
            return Ran(exit_code=None, last_line="", start_error=f"{error.strerror or error}")
        finally:
            os.close(writing)
        try:
            return self._follow(process, reading, deadline)
        finally:
            os.close(reading)

    def _start(self, environ: Mapping[str, str], told: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD), str(os.getpid()), str(told), *self.argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            pass_fds=(told,),
            start_new_session=True,
        )

    def _follow(self, process: subprocess.Popen[bytes], told: int, deadline: float) -> Ran:
        assert process.stdout is not None
        output = process.stdout.fileno()
        os.set_blocking(output, False)
        ended = os.pidfd_open(process.pid)
        try:
            kept = _listen(output, ended, deadline)
            has_ended = is_readable(ended, 0)
            self._end(process)
            kept = _drain(output, kept)
        finally:
            os.close(ended)
            process.stdout.close()
        if not has_ended:
            return Ran(exit_code=None, last_line=_last_line(kept))
        told_error = _read_error(told)
        if told_error is not None:
            return Ran(exit_code=None, last_line="", start_error=told_error)
        return Ran(exit_code=process.returncode, last_line=_last_line(kept))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # Before its exit status is taken: until then the number of its group is nobody else's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(_AFTER_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck = process
            return
        _reap_group(process.pid)


def is_readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or an end, within so many seconds."""
    # Not select(2): on a rendezvous host descriptors go beyond its 1024.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _listen(output: int, ended: int, deadline: float) -> bytes:
    """The end of what a program prints, until it has ended or its time is up.

    Not until its output ends: a child in the background may hold that open for ever.
    """
    kept = b""
    poll = select.poll()
    poll.register(output, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
        if output in ready:
            found = _read(output)
            kept = (kept + found)[-_KEPT_BYTES:]
            if not found:
                poll.unregister(output)
        if ended in ready:
            break
    return kept


def _reap_group(group: int) -> None:
    """Take the exit status of its killed children: those of a launcher that is a child subreaper are ours now."""
    deadline = time.monotonic() + _AFTER_KILL_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(_REAP_PAUSE_SECONDS)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return b""


def _drain(output: int, kept: bytes) -> bytes:
    # As much as a pipe holds and no more: a child with a session of its own may still print, and without end.
    for _ in range(_PIPE_READS):
        found = _read(output)
        if not found:
            break
        kept = (kept + found)[-_KEPT_BYTES:]
    return kept


def _read_error(told: int) -> str | None:
    os.set_blocking(told, False)
    number = _read(told)
    return os.strerror(int(number)) if number else None


def _last_line(output: bytes) -> str:
    """For people: without what would move a terminal's cursor."""
    lines = [line.strip() for line in output.decode(errors="backslashreplace").splitlines() if line.strip()]
    shown = "".join(letter if letter.isprintable() else "?" for letter in lines[-1]) if lines else ""
    return shown[:_LONGEST_LINE]
