"""The processes below this one: which of them are ranks, how to end them all and prove it; and the end of another one.

The wrapper is a child subreaper, so a rank whose launcher died is still below it. Touches: /proc, signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil

from nvrx_chain.generation.identity import read_process_start


def descendants() -> list[psutil.Process]:
    """Every live process below this one; zombies are dead."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send one signal to each; psutil checks the start time, so a reused pid is never hit."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def kill_tree(seconds: float) -> list[psutil.Process]:
    """SIGKILL everything below until nothing is left, at most `seconds`. Returns what still lives (stuck in I/O)."""
    left = descendants()
    while left:
        # A stopped process dies of KILL too; a fork can race with one sweep, so sweep until a look finds nothing.
        signal_all(left, signal.SIGKILL)
        step = min(seconds, 1.0)
        _, alive = psutil.wait_procs(left, timeout=step)
        seconds -= step if alive else 0.0
        left = descendants()
        if seconds <= 0:
            break
    return left


def ranks_that_catch(number: signal.Signals) -> list[psutil.Process]:
    """The topmost processes with RANK in their environment (else: all children) that have a handler for `number`.

    A rank without a handler would die of the signal, and a launcher is not meant by it.
    """
    below = descendants()
    ranks = [process for process in below if _is_rank(process)]
    ids = {process.pid for process in ranks}
    topmost = [process for process in ranks if _parent_id(process) not in ids]
    candidates = topmost or below
    return [process for process in candidates if catches(process.pid, number)]


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for the signal (proc(5), SigCgt)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (int(number) - 1) & 1)
    return False


def open_process(pid: int, started_at: int) -> int | None:
    """A descriptor that becomes readable when this process ends (pidfd_open(2)); None when there is no such process.

    `started_at` in clock ticks since boot tells it from a namesake, be it later or of another PID namespace.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        # After the descriptor: from now on the number cannot pass to another process unnoticed.
        is_same = read_process_start(pid) == started_at
    except OSError:
        is_same = False
    if is_same:
        return descriptor
    os.close(descriptor)
    return None


def _is_rank(process: psutil.Process) -> bool:
    try:
        return "RANK" in process.environ()
    except (psutil.Error, OSError):
        return False


def _parent_id(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None
