"""A monitor with real processes as its ranks, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from nvrx_chain.launcher.hang_limits import HangLimits
from nvrx_chain.launcher.mailbox import Mailbox
from nvrx_chain.launcher.monitor import Monitor, Sign

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 20.0
S = TypeVar("S", bound=Sign)


class Voice:
    """A rank in this process that says what it is given, well-formed or not."""

    def __init__(self, path: str, *, hello: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            # With a time-out a full queue of the listener would be an error.
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(PATIENCE_SECONDS)
        if hello:
            self.say(b'{"do":"hello"}\n')

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def was_ended(self) -> bool:
        """Whether the monitor ends this connection."""
        try:
            return self.socket.recv(65536) == b""
        except ConnectionResetError:
            return True

    def answer(self) -> bytes:
        with self.socket.makefile("rb") as file:
            return file.readline()


class Lab:
    """One node: a monitor, what it said, and processes that speak for its ranks."""

    def __init__(self, limits: HangLimits, local_ranks: int = 1, directory: Path | None = None) -> None:
        self.mail: Mailbox[Sign] = Mailbox()
        self.monitor = Monitor(limits, local_ranks, self.mail.post, directory=directory)
        self.environments = self.monitor.new_cycle(0)
        self.signs: list[Sign] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.voices: list[Voice] = []

    def path(self, local_rank: int = 0) -> str:
        return self.environments[local_rank]["NVRX_CHAIN_RANK_SOCKET"]

    def run(self, script: str, local_rank: int = 0, *, connects: bool = True) -> subprocess.Popen[str]:
        """Start a rank with this text. It says `print()` lines on its output; `speak` waits for one."""
        start = "from nvrx_chain.launcher import client\nclient.connect()\n" if connects else ""
        text = f"import os, signal, sys, time\n{start}{script}"
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", text],
            cwd=ROOT,
            env={**os.environ, **self.environments[local_rank]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.monitor.started(local_rank, time.monotonic())
        self.processes.append(process)
        return process

    def voice(self, local_rank: int = 0, *, hello: bool = True) -> Voice:
        """A rank of this process."""
        self.voices.append(Voice(self.path(local_rank), hello=hello))
        return self.voices[-1]

    def await_sign(self, kind: type[S], *, within: float = PATIENCE_SECONDS) -> S:
        """The first sign of this kind, which is then taken."""
        deadline = time.monotonic() + within
        while True:
            for sign in self.signs:
                if isinstance(sign, kind):
                    self.signs.remove(sign)
                    return sign
            assert time.monotonic() < deadline, f"no {kind.__name__} came; {self.signs}"
            self.signs += self.mail.wait(deadline - time.monotonic())

    def stays_silent(self, seconds: float, kind: type[Sign]) -> bool:
        """Whether no sign of this kind comes within this time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.signs += self.mail.wait(deadline - time.monotonic())
        return not any(isinstance(sign, kind) for sign in self.signs)

    def close(self) -> None:
        for voice in self.voices:
            voice.socket.close()
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE_SECONDS)
        self.monitor.close()
        self.mail.close()


@contextmanager
def lab(limits: HangLimits, local_ranks: int = 1, directory: Path | None = None) -> Iterator[Lab]:
    place = Lab(limits, local_ranks, directory)
    try:
        yield place
    finally:
        place.close()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a rank printed."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    """Let a rank that waits in `sys.stdin.readline()` go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
