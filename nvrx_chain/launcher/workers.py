"""One worker process of a node: parked ahead of time, released as a rank, watched by a descriptor, ended as a group.

Each worker leads a session and a process group of its own, and is killed by the kernel when the launcher dies: that
signal follows the thread that started it, so workers are started from the main thread only. Touches: processes, pipes.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nvrx_chain.errors import NvrxError

_PARKED = Path(__file__).with_name("parked.py")
_RANK_PLACE, _RANK_ROOM = "NVRX_CHAIN_RANK_PLACE", 24
"""A variable of a parked worker in whose place /proc shows its rank later; see `parked.py`."""
_COLD = Path(__file__).with_name("cold.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """What a rank runs: `argv[0]` is a script, a module with `module`, or a program with `no_python`."""

    argv: tuple[str, ...]
    module: bool = False
    no_python: bool = False
    python: str = ""

    def command(self) -> list[str]:
        """The command line of a cold start."""
        if self.no_python:
            return list(self.argv)
        return [self.python, "-u", *(["-m"] if self.module else []), *self.argv]


class Preload(enum.Enum):
    """How far a parked worker is."""

    IMPORTING = "importing"
    READY = "ready"
    TAKEN = "taken"
    """It has become a rank."""
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Worker:
    """One process. `descriptor` (pidfd) is readable once it has ended."""

    local_rank: int
    process: subprocess.Popen[bytes]
    descriptor: int
    output: int | None
    """The reading end of its standard output and error; None when these are the launcher's own."""
    control: socket.socket | None = None
    """To a parked one, until it has become a rank."""
    preload: Preload = Preload.TAKEN
    why_failed: str = ""
    started_at: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self) -> bool:
        """Without taking its exit status: its process group keeps its number until that is taken."""
        found = os.waitid(os.P_PIDFD, self.descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found is not None

    def signal_group(self, number: signal.Signals) -> None:
        """Signal everything in its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> int:
        """Its exit code, negative for a signal, once it has ended; what is left of its group is killed first."""
        self.signal_group(signal.SIGKILL)
        code = self.process.wait()
        os.close(self.descriptor)
        self.close_control()
        return code

    def hear(self) -> None:
        """Read what a parked worker says of itself into `preload`. Does not wait."""
        if self.control is None:
            return
        try:
            said = self.control.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            said = b""
        for line in said.splitlines():
            words = json.loads(line)
            self.preload = Preload.TAKEN if "taken" in words else Preload.READY
            if "failed" in words:
                self.preload, self.why_failed = Preload.FAILED, str(words["failed"])
        if not said:
            self.preload, self.why_failed = Preload.FAILED, "it ended while it was importing"
        if self.preload in (Preload.TAKEN, Preload.FAILED):
            self.close_control()

    def release(self, entry: EntryPoint, changed: Mapping[str, str], unset: Sequence[str]) -> None:
        """Have a parked worker become a rank, at once or when its imports are done. `hear` says what comes of it."""
        assert self.control is not None
        order = {
            "module": entry.module,
            "argv": list(entry.argv),
            "command": entry.command(),
            "set": dict(changed),
            "unset": list(unset),
        }
        self.started_at = time.monotonic()
        # One that has ended is told by its descriptor and by `hear`.
        with contextlib.suppress(OSError):
            self.control.setblocking(True)
            self.control.settimeout(1.0)
            self.control.sendall(json.dumps(order).encode() + b"\n")
        self.control.setblocking(False)

    def close_control(self) -> None:
        """It says no more."""
        if self.control is not None:
            self.control.close()
            self.control = None


def start_cold(
    entry: EntryPoint,
    environment: Mapping[str, str],
    local_rank: int,
    prefix: Sequence[str] = (),
    *,
    capture_output: bool,
) -> Worker:
    """Start a rank from nothing. Raises NvrxError."""
    # Not by code between fork and exec: other threads of the launcher may hold any lock at that moment.
    argv = [sys.executable, "-I", "-S", str(_COLD), str(os.getpid()), *prefix, *entry.command()]
    return _start(argv, environment, local_rank, (), capture_output)


def park(
    entry: EntryPoint,
    preload: Sequence[str],
    environment: Mapping[str, str],
    local_rank: int,
    prefix: Sequence[str] = (),
    *,
    capture_output: bool,
) -> Worker:
    """Start an interpreter that imports `preload` and waits; see `parked.py`. Raises NvrxError."""
    ours, theirs = socket.socketpair()
    try:
        argv = [entry.python, "-u", str(_PARKED), str(theirs.fileno()), str(os.getpid()), ",".join(preload), ""]
        argv[-1] = " " * (_length(entry.command()) - _length(argv))
        place = {**environment, _RANK_PLACE: "." * _RANK_ROOM}
        worker = _start([*prefix, *argv], place, local_rank, (theirs.fileno(),), capture_output)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    worker.control, worker.preload = ours, Preload.IMPORTING
    return worker


def _length(words: Sequence[str]) -> int:
    """Bytes that words take in the memory of a process."""
    return sum(len(os.fsencode(word)) + 1 for word in words)


def _start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    local_rank: int,
    kept: tuple[int, ...],
    capture_output: bool,
) -> Worker:
    reading, writing = os.pipe2(os.O_CLOEXEC) if capture_output else (None, None)
    try:
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            pass_fds=kept,
            start_new_session=True,
        )
    except OSError as error:
        if reading is not None:
            os.close(reading)
        raise NvrxError(f"starting a worker: {error.strerror or error}", part=argv[0]) from error
    finally:
        if writing is not None:
            os.close(writing)
    return Worker(local_rank=local_rank, process=process, descriptor=os.pidfd_open(process.pid), output=reading)
