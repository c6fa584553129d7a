"""The loop of a watcher that stays: passes with jitter, back-off after a pass that failed, wake-ups, an orderly end.

A pass runs on a thread of its own and has a deadline: whatever hangs (a mount, a squeue, a state directory), the loop
goes on, says so and sends no heartbeat. A pass that hangs is never joined and no second one is started beside it.
Touches: threads, the socket of systemd.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from collections.abc import Callable

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.errors import NvrxError

log = logging.getLogger(__name__)

JITTER = 0.1
"""A pass starts up to this part of the interval early or late: a thousand watchers must not ask Slurm at once."""

BACK_OFF_FACTOR = 2.0
LONGEST_BACK_OFF_SECONDS = 300.0
STOP_SECONDS = 30.0
"""How long a pass that is under way may take after a SIGTERM."""

SHORTEST_GAP_SECONDS = 5.0
"""Between two passes, however many files change."""


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`deadline_seconds`: after this a pass counts as hung."""

    interval_seconds: float
    deadline_seconds: float


class SlurmSilent(NvrxError):
    """A pass is done, and Slurm did not answer in it: the next one is not due as soon."""


class Loop:
    """Runs passes until it is stopped. `run` is one pass and returns its exit code; what it raises is logged.

    After a pass that raised the pauses grow, and file events do not shorten them.
    """

    def __init__(
        self,
        run: Callable[[], int],
        settings: LoopSettings,
        clock: Clock,
        *,
        tell_service_manager: Callable[[str], None] = lambda _state: None,
    ) -> None:
        self._run = run
        self._settings = settings
        self._clock = clock
        self._tell = tell_service_manager
        self._stop = threading.Event()
        self._alarm = threading.Event()
        self._running: _Pass | None = None
        self._failures = 0

    def stop(self) -> None:
        """End after the present pass. Not for a signal handler itself (see nvrx_chain.bell)."""
        self._stop.set()
        self._alarm.set()

    def wake(self) -> None:
        """Something changed: do not wait for the interval to end."""
        self._alarm.set()

    def run(self) -> None:
        """Run until stopped."""
        self._tell("READY=1")
        while not self._stop.is_set():
            # What changes from here on may not be in the pass, and wakes the next one.
            self._alarm.clear()
            self._one_pass()
            # A burst of file events is one pass, not one each: this wait hears of a stop only.
            self._clock.wait(self._stop, min(SHORTEST_GAP_SECONDS, self._settings.interval_seconds))
            if not self._stop.is_set():
                # File events must not drive ever more questions to a controller that is in trouble.
                self._clock.wait(self._stop if self._failures else self._alarm, self._pause())
        self._tell("STOPPING=1")

    def _one_pass(self) -> None:
        if self._running is None:
            self._running = _Pass(self._run)
            self._running.start()
        if not self._running.wait(self._clock, self._settings.deadline_seconds, self._stop):
            if self._stop.is_set():
                log.warning("stopped while a pass was under way; it is left behind")
                return
            self._failures += 1
            log.error(
                "a pass has not ended in seconds=%.0f; no heartbeat is sent and no other pass is started beside it",
                self._settings.deadline_seconds,
            )
            return
        self._failures = self._failures + 1 if self._running.failed else 0
        self._running = None
        self._tell("WATCHDOG=1")

    def _pause(self) -> float:
        interval = self._settings.interval_seconds
        if self._failures:
            interval = min(
                max(LONGEST_BACK_OFF_SECONDS, interval), interval * BACK_OFF_FACTOR ** min(self._failures, 16)
            )
        return interval * random.uniform(1 - JITTER, 1 + JITTER)


class _Pass:
    """One pass on its thread."""

    def __init__(self, run: Callable[[], int]) -> None:
        self._run = run
        self._ended = threading.Event()
        self.failed = False

    def start(self) -> None:
        threading.Thread(target=self._work, name="pass", daemon=True).start()

    def wait(self, clock: Clock, seconds: float, stop: threading.Event) -> bool:
        """Whether it has ended, after at most `seconds`, or `STOP_SECONDS` once `stop` is set."""
        until = clock.monotonic() + seconds
        while not self._ended.is_set():
            now = clock.monotonic()
            if stop.is_set():
                until = min(until, now + STOP_SECONDS)
            if now >= until:
                return False
            if stop.is_set():
                return clock.wait(self._ended, until - now) or self._ended.is_set()
            clock.wait(self._ended, min(1.0, until - now))
        return True

    def _work(self) -> None:
        try:
            self._run()
        except SlurmSilent as error:
            self.failed = True
            log.warning("%s", error)
        except NvrxError as error:
            self.failed = True
            log.error("a pass failed: %s", error)
        except Exception:
            self.failed = True
            log.exception("a pass broke; the next one is tried after a pause")
        finally:
            self._ended.set()


def tell_systemd(state: str) -> None:
    """sd_notify(3): a datagram to $NOTIFY_SOCKET, nothing where there is none."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(1.0)
            # A leading @ stands for the abstract name space.
            channel.connect("\0" + address[1:] if address.startswith("@") else address)
            channel.sendall(state.encode())
    except OSError as error:
        log.warning("the service manager was not told state=%s error=%s", state, error)
