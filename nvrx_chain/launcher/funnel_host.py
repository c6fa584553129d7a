"""The launcher's side of the one writer of the logs: it holds the port and the journal, and starts the writer anew.

Both outlive a writer that crashed: clients wait in the backlog of the port, and the journal tells its successor what
stands in the files. Touches: a TCP port, memory files, one child process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import msgspec

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.funnel_journal import new_memory_files
from nvrx_chain.launcher.funnel_server import READY, Orders
from nvrx_chain.launcher.log_settings import LogPlaces

log = logging.getLogger(__name__)

START_SECONDS = 30.0
"""Imports from a slow file system included."""
BACKLOG = 1024
STEADY_SECONDS = 60.0
PAUSE_MAX_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelSettings:
    """What the writer is started with. `port` 0 is a free one."""

    places: LogPlaces
    port: int = 0
    linger_seconds: float = 2.0
    """How long a writer whose launcher is gone still takes what other nodes send."""


class FunnelServer:
    """The writer, as long as the launcher lives. For the thread that steers the launcher."""

    def __init__(self, settings: FunnelSettings, secret: str) -> None:
        self._settings = settings
        self._secret = secret
        self._listener = socket.create_server(("", settings.port), backlog=BACKLOG)
        self._journal = new_memory_files()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._deaths = 0
        self.descriptor = -1
        """pidfd of the writer, readable when it has ended. Another one after `restart`."""

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self._listener.getsockname()[1])

    @property
    def pid(self) -> int:
        """Of the writer."""
        return 0 if self._process is None else self._process.pid

    def has_ended(self) -> bool:
        """Whether there is no writer now; clients keep their lines meanwhile."""
        return self._process is None or self._process.poll() is not None

    def pause_seconds(self) -> float:
        """How long to wait before `restart`: nothing after a single death, more when one follows the other."""
        if time.monotonic() - self._started_at > STEADY_SECONDS:
            self._deaths = 0
        return 0.0 if not self._deaths else min(PAUSE_MAX_SECONDS, 0.25 * 2.0**self._deaths)

    def restart(self) -> None:
        """Start another writer in place of one that has ended; does not wait for it. Raises NvrxError."""
        if not self.has_ended():
            return
        code = self._forget()
        log.warning("the log writer ended and is started again exit_code=%s", code)
        self._deaths = self._deaths + 1 if time.monotonic() - self._started_at <= STEADY_SECONDS else 1
        os.close(self._start())

    def stop(self, within_seconds: float) -> bool:
        """Let the writer finish what is on the way and end; kills it after that time, which is False."""
        self._listener.close()
        for descriptor in self._journal:
            os.close(descriptor)
        if self._process is None:
            return True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self._forget() == 0

    def start(self) -> None:
        """Start the first writer and wait until it serves. Raises NvrxError."""
        ready = self._start()
        try:
            readable, _, _ = select.select([ready], [], [], START_SECONDS)
            said = os.read(ready, len(READY)) if readable else b""
        finally:
            os.close(ready)
        if said != READY:
            assert self._process is not None
            self._process.kill()
            code = self._process.wait()
            hint = f"it ended with {code}" if readable else f"not ready within {START_SECONDS:g} s"
            raise NvrxError("starting the log writer", hint=hint)

    def _start(self) -> int:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        orders = Orders(
            secret=self._secret,
            listener=self._listener.fileno(),
            journal=self._journal,
            ready=writing,
            parent=os.getpid(),
            linger_seconds=self._settings.linger_seconds,
            places=self._settings.places,
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "nvrx_chain.launcher.funnel_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(self._listener.fileno(), *self._journal, writing),
                start_new_session=True,
                restore_signals=True,
            )
        except OSError as error:
            os.close(reading)
            raise NvrxError("starting the log writer", hint=error.strerror or str(error)) from error
        finally:
            os.close(writing)
        self._started_at = time.monotonic()
        self.descriptor = os.pidfd_open(self._process.pid)
        assert self._process.stdin is not None
        # The secret travels in a pipe: a command line and an environment can be read by others.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(orders) + b"\n")
            self._process.stdin.flush()
        return reading

    def _forget(self) -> int | None:
        if self._process is None:
            return None
        code = self._process.poll()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self._process = -1, None
        return code


def start_funnel_server(settings: FunnelSettings, secret: str) -> FunnelServer:
    """Start the one writer of the job's logs on this node; it serves when this returns. Raises NvrxError.

    To be called by the thread that lives as long as the launcher: the kernel ties the writer's life to it.
    """
    try:
        server = FunnelServer(settings, secret)
    except OSError as error:
        raise NvrxError(
            "listening for log lines of other nodes", part=f"port {settings.port}", hint=error.strerror or str(error)
        ) from error
    try:
        server.start()
    except NvrxError:
        server.stop(0.0)
        raise
    return server
