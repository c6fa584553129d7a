"""GPU memory after a stop: ranks may be started again when the dead ones have given theirs back.

Waits beside the rendezvous; only the release of the new ranks waits for it. Touches: NVML through `GpuLibrary`, /proc.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import NvrxError, UsageError
from nvrx_chain.launcher.gpu_facts import GpuLibrary, GpuMemory, NvmlAbsent

log = logging.getLogger(__name__)

FIRST_POLL_SECONDS = 0.02
LOOK_SECONDS = 30.0
"""The longest that one look may take: a driver that tears down a node's ranks answers late."""
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the kernel's first PID namespace (PROC_PID_INIT_INO): there NVML's pids are ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimSettings:
    """`timeout_seconds` 0 turns it off."""

    timeout_seconds: float = 50.0
    tolerance_mb: float = 512.0
    poll_seconds: float = 2.0
    """The longest pause between two looks; the first are shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """How it went. `held` is what is still held when the time was up, in words."""

    seconds: float
    held: tuple[str, ...] = ()
    unobserved: str | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing is known to be held."""
        return not self.held


def make_reclaim_settings(timeout_seconds: float, tolerance_mb: float, poll_seconds: float) -> ReclaimSettings:
    """Settings from what a user typed. Raises UsageError."""
    # Written so that a NaN is refused too.
    if not (0 <= timeout_seconds < 86400 and 0 <= tolerance_mb < 1e9 and 0 < poll_seconds < 3600):
        raise UsageError(
            "reading the GPU memory reclaim",
            part=f"timeout {timeout_seconds:g} s, tolerance {tolerance_mb:g} MB, poll interval {poll_seconds:g} s",
            hint="time-out and tolerance are 0 or more, the poll interval is more than 0",
        )
    return ReclaimSettings(timeout_seconds=timeout_seconds, tolerance_mb=tolerance_mb, poll_seconds=poll_seconds)


def knows_pids(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Whether NVML's pids are those of this process's PID namespace: not in a container with one of its own."""
    try:
        return os.stat(namespace).st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def find_held(
    devices: Collection[GpuMemory],
    dead: Collection[int],
    settings: ReclaimSettings,
    is_ours: Callable[[int], bool] | None,
) -> tuple[str, ...]:
    """What the dead still hold. `is_ours` tells a pid of the dead; None where pids mean nothing. Pure."""
    held = []
    for device in devices:
        if device.error is not None:
            continue  # the health check says so, and there is nothing to wait for
        if device.pids is not None and is_ours is not None:
            found = [pid for pid in device.pids if pid in dead or is_ours(pid)]
            if found:
                held.append(f"{device.name} is held by pid {', '.join(map(str, found))}")
        elif device.used_mb is not None and device.used_mb > settings.tolerance_mb:
            held.append(f"{device.name} has {device.used_mb:.0f} MB in use, over {settings.tolerance_mb:g} MB")
    return tuple(held)


def belongs_to_dead(pid: int, sessions: Collection[int], proc: Path = Path("/proc")) -> bool:
    """Whether a process that NVML lists has ended, or is of a session of the dead: ranks lead sessions of their own."""
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return not _is_there(pid)
    except OSError:
        return False
    return fields[0] in ("Z", "X") or int(fields[3]) in sessions


def _is_there(pid: int) -> bool:
    # /proc can be mounted so that it hides the processes of other users.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Reclaim:
    """Waits for the GPU memory of ranks that were stopped."""

    def __init__(self, settings: ReclaimSettings, gpus: GpuLibrary | None, *, pids_known: bool | None = None) -> None:
        self._settings = settings
        self._gpus = gpus
        self._pids_known = knows_pids() if pids_known is None else pids_known
        self._said_absent = False

    @property
    def is_needed(self) -> bool:
        """False where there is no GPU, or where it was turned off: then `wait` returns at once."""
        return self._gpus is not None and self._settings.timeout_seconds > 0

    def wait(self, dead: Collection[int]) -> Reclaimed:
        """Until nothing is held by `dead` (pids of ranks that have ended), or for the time-out. It logs and goes on."""
        started_at = time.monotonic()
        if self._gpus is None or not self.is_needed:
            return Reclaimed(seconds=0.0)
        deadline = started_at + self._settings.timeout_seconds
        never = threading.Event()
        while True:
            left = deadline - time.monotonic()
            try:
                held = self._look(self._gpus, dead, min(max(left, 1.0), LOOK_SECONDS))
            except NvrxError as error:
                return self._unobserved(error, time.monotonic() - started_at)
            seconds = time.monotonic() - started_at
            if not held:
                return Reclaimed(seconds=seconds)
            left = deadline - time.monotonic()
            if left <= 0:
                log.error("GPU memory was not given back after_seconds=%.1f held=%s", seconds, "; ".join(held))
                return Reclaimed(seconds=seconds, held=held)
            # In proportion to the wait so far: what was given back is seen at the latest a quarter of it later.
            pause = min(max(FIRST_POLL_SECONDS, seconds / 4), self._settings.poll_seconds)
            never.wait(min(pause, left))

    def begin(self, dead: Collection[int], post: Callable[[Reclaimed], None]) -> None:
        """As `wait`, in the background; the result is posted from a thread of its own, exactly once."""
        gone = frozenset(dead)
        threading.Thread(target=lambda: post(self.wait(gone)), name="reclaim", daemon=True).start()

    def _look(self, gpus: GpuLibrary, dead: Collection[int], seconds: float) -> tuple[str, ...]:
        devices = gpus.memory(seconds)
        is_ours = (lambda pid: belongs_to_dead(pid, dead)) if self._pids_known else None
        return find_held(devices, dead, self._settings, is_ours)

    def _unobserved(self, error: NvrxError, seconds: float) -> Reclaimed:
        # Whether NVML that hangs makes the node sick is for the health check to say.
        if not (isinstance(error, NvmlAbsent) and self._said_absent):
            log.warning("GPU memory cannot be observed, not waiting for it reason=%s", error)
        self._said_absent |= isinstance(error, NvmlAbsent)
        return Reclaimed(seconds=seconds, unobserved=str(error))
