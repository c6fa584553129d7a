"""The worker processes of one node: parked ahead of time, released as ranks, watched by descriptors, ended as groups.

Each worker leads a session and a process group of its own, and is killed by the kernel when the launcher dies. Touches:
processes, pipes, /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

_PARKED = Path(__file__).with_name("parked.py")
_PR_SET_PDEATHSIG = 1
_LIBRARY = ctypes.CDLL(None)


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


@dataclass(slots=True, kw_only=True)
class Worker:
    """One process. `descriptor` (pidfd) is readable once it has ended; `output` is its standard output and error."""

    local_rank: int
    process: subprocess.Popen[bytes]
    descriptor: int
    output: int
    control: socket.socket | None = None
    """To a parked one; None once it is a rank."""
    ready: bool = False
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
        if self.control is not None:
            self.control.close()
        return code


def start_cold(
    entry: EntryPoint, environment: Mapping[str, str], local_rank: int, prefix: Sequence[str] = ()
) -> Worker:
    """Start a rank from nothing. Raises OSError."""
    return _start([*prefix, *entry.command()], environment, local_rank, ())


def park(
    python: str, preload: Sequence[str], environment: Mapping[str, str], local_rank: int, prefix: Sequence[str] = ()
) -> Worker:
    """Start an interpreter that imports `preload` and waits; see `parked.py`. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        argv = [*prefix, python, "-u", str(_PARKED), str(theirs.fileno()), str(os.getpid()), *preload]
        worker = _start(argv, environment, local_rank, (theirs.fileno(),))
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    worker.control = ours
    return worker


def hear(worker: Worker) -> str | None:
    """Read what a parked worker says of itself; the reason when it is of no use, else None. Sets `ready`."""
    assert worker.control is not None
    try:
        said = worker.control.recv(4096)
    except BlockingIOError:
        return None
    if not said:
        return "it ended while it was importing"
    words = json.loads(said)
    worker.ready = bool(words.get("ready"))
    failed = words.get("failed")
    return str(failed) if failed is not None else None


def release(worker: Worker, entry: EntryPoint, changed: Mapping[str, str], unset: Sequence[str]) -> bool:
    """Make a rank of a parked worker; False when it is gone, which costs a cold start."""
    assert worker.control is not None
    order = {"module": entry.module, "argv": list(entry.argv), "set": dict(changed), "unset": list(unset)}
    control, worker.control = worker.control, None
    worker.started_at = time.monotonic()
    try:
        control.setblocking(True)
        control.sendall(json.dumps(order).encode() + b"\n")
    except OSError:
        return False
    finally:
        control.close()
    return True


def _start(argv: Sequence[str], environment: Mapping[str, str], local_rank: int, kept: tuple[int, ...]) -> Worker:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            pass_fds=kept,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Worker(local_rank=local_rank, process=process, descriptor=os.pidfd_open(process.pid), output=reading)


def _die_with_parent() -> None:
    # The signal follows the thread that forked: workers are started from the main thread only.
    _LIBRARY.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
