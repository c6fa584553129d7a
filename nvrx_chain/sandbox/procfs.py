"""Processes of this machine as /proc shows them: identity, state, family, namespace, environment. Only reads.

A process is identified by pid *and* start time (field 22 of /proc/PID/stat, clock ticks since boot, unchanged by
exec): a pid alone may belong to somebody else by the time it is used. Source: proc(5), pid_namespaces(7).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process and no later one with the same number."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process at one moment. `state` is the letter of /proc/PID/stat (`T` stopped, `Z` zombie)."""

    pid: int
    started: int
    parent: int
    state: str

    @property
    def id(self) -> ProcessId:
        return ProcessId(pid=self.pid, started=self.started)

    @property
    def is_dead(self) -> bool:
        """Nothing of it runs any more; a zombie only waits for its parent to read the exit code."""
        return self.state in ("Z", "X", "x")

    @property
    def is_stopped(self) -> bool:
        return self.state in ("T", "t")


def read_process(pid: int) -> Process | None:
    """One process, or None when there is none with that pid."""
    content = _read(pid, "stat")
    if content is None:
        return None
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    fields = content[content.rindex(b")") + 2 :].split()
    return Process(pid=pid, state=fields[0].decode("ascii"), parent=int(fields[1]), started=int(fields[19]))


def find_process(identity: ProcessId) -> Process | None:
    """The process of this identity while it runs; None when it is gone, a zombie, or its pid belongs to another."""
    process = read_process(identity.pid)
    if process is None or process.started != identity.started or process.is_dead:
        return None
    return process


def list_processes() -> tuple[Process, ...]:
    """Every process that is not dead, in the order of their pids."""
    pids = sorted(int(name) for name in os.listdir(PROC) if name.isdigit())
    found = (read_process(pid) for pid in pids)
    return tuple(process for process in found if process is not None and not process.is_dead)


def read_arguments(pid: int) -> tuple[str, ...]:
    """argv as the process has it now; empty for a kernel thread, a zombie or a process that is gone.

    A daemon that rewrites its title (slurmstepd) leaves one word, followed by empty ones that are dropped.
    """
    content = _read(pid, "cmdline")
    if not content:
        return ()
    return tuple(os.fsdecode(word) for word in content.rstrip(b"\0").split(b"\0"))


def read_environment(pid: int) -> dict[str, str]:
    """The environment that the process got at its exec (later changes do not show); empty when it is gone."""
    pairs = (os.fsdecode(entry).partition("=") for entry in (_read(pid, "environ") or b"").split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def read_executable(pid: int) -> str | None:
    """The path of the program that runs, as the kernel knows it; None when it is gone."""
    return _link(pid, "exe")


def read_pid_namespace(pid: int) -> str | None:
    """The pid namespace in which the process lives, as `pid:[4026532201]`; None when it is gone."""
    return _link(pid, "ns/pid")


def read_child_pid_namespace(pid: int) -> str | None:
    """The pid namespace of the children of a process, which for `unshare --pid --fork` is the new one.

    None when it is gone, and before its first child was born.
    """
    return _link(pid, "ns/pid_for_children")


# Even root may be refused (a security module, a process of an outer user namespace). Such a process cannot be proved
# to be anybody's, so it reads as gone.
_NOT_READABLE = (FileNotFoundError, ProcessLookupError, PermissionError)


def _link(pid: int, name: str) -> str | None:
    try:
        return os.readlink(PROC / str(pid) / name)
    except _NOT_READABLE:
        return None


def _read(pid: int, name: str) -> bytes | None:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except _NOT_READABLE:
        return None
