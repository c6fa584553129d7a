"""What ranks leave behind: processes that made a session of their own and outlive their rank. Touches: /proc, signals.

The launcher is a child subreaper, so such a process becomes its child, and is known by the mark in its environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS = 2.0
SWEEP_PAUSE_SECONDS = 0.005


def become_subreaper() -> None:
    """Adopt what loses its parent below this process (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans(mark: str, spared: Collection[int], sessions: Collection[int]) -> list[int]:
    """Kill every child of this process with `mark` (`NAME=value`) that is not spared; pids that did not go in time.

    Of children that have ended only those of `sessions`, the ranks' own, and those that were killed here are taken:
    the exit status of any other belongs to whoever in the launcher started it.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    killed: set[int] = set()
    while left := [
        pid for pid in _children() if pid not in spared and (pid in killed or _is_orphan(pid, mark, sessions))
    ]:
        if time.monotonic() > deadline:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        killed.update(left)
        # A dead parent's children are adopted a moment after: look until there is nothing new.
        time.sleep(SWEEP_PAUSE_SECONDS)
    return []


def _children() -> list[int]:
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
    return found


def _is_orphan(pid: int, mark: str, sessions: Collection[int]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        if environment:
            return mark.encode() in environment.split(b"\0")
        # One that has ended shows no environment any more.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3]) in sessions
    except OSError:
        return False
