"""The processes below this one: which of them are ranks, how to end them all and prove it; and the end of another one.

The wrapper is a child subreaper, so a rank whose launcher died is still below it. Touches: /proc, signals.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from pathlib import Path

import psutil

from nvrx_chain.clock import Clock
from nvrx_chain.generation.identity import read_process_start

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.05


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
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            # A rank that became another user: it shows again among what still lives.
            log.warning("not allowed to signal pid=%s signal=%s", process.pid, number.name)


def kill_tree(clock: Clock, seconds: float) -> list[psutil.Process]:
    """SIGKILL everything below until nothing is left, at most `seconds`. Returns what still lives (stuck in I/O).

    It only looks, and never waits for a child as psutil would: that takes the exit code away from who started it, and
    a launcher that was killed would seem to have exited with 0.
    """
    never = threading.Event()
    deadline = clock.monotonic() + seconds
    while left := descendants():
        if clock.monotonic() > deadline:
            break
        # A stopped process dies of KILL too; a fork can race with one sweep, so sweep until a look finds nothing.
        signal_all(left, signal.SIGKILL)
        clock.wait(never, SWEEP_SECONDS)
    return left


def reap_orphans(spared: int) -> None:
    """Take the exit status of adopted descendants that have ended; of `spared` somebody else takes it.

    A subreaper that runs for weeks would otherwise fill the process table with the dead of every restart.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == spared:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)


def ranks_that_catch(number: signal.Signals) -> list[psutil.Process]:
    """The topmost processes with a rank in their environment (else: of all) that have a handler for `number`.

    A process without a handler would die of the signal: the launcher, or a shell between it and its rank. What a rank
    started itself inherits its handlers, and must not save beside it.
    """
    below = descendants()
    parents = {process.pid: _parent_id(process) for process in below}
    ranks = [process for process in below if _is_rank(process)]
    catching = [process for process in ranks or below if catches(process.pid, number)]
    ids = {process.pid for process in catching}
    return [process for process in catching if not _has_ancestor(process.pid, ids, parents)]


def _has_ancestor(pid: int, among: set[int], parents: dict[int, int | None]) -> bool:
    above = parents.get(pid)
    while above is not None:
        if above in among:
            return True
        above = parents.get(above)
    return False


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
        environment = process.environ()
        # A worker that was parked shows its rank later than its place on the node.
        return "RANK" in environment or "LOCAL_RANK" in environment
    except (psutil.Error, OSError):
        return False


def _parent_id(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None
