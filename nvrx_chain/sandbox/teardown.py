"""Ending a sandbox, whole, half-started or broken: jobs, daemons, nodes, files; then looking whether anything is left.

Touches: processes that are proved to be the sandbox's, its two directories.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.clock import Clock
from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.bringup import Site
from nvrx_chain.sandbox.config import CONTROLLER, Place
from nvrx_chain.sandbox.members import describe, find_members
from nvrx_chain.sandbox.processes import poll, send_signal
from nvrx_chain.sandbox.procfs import Process, ProcessId, find_process
from nvrx_chain.sandbox.record import SandboxState

_END_SECONDS = 20.0
_ASK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DownReport:
    """What `down` found. `jobs_killed` did not end within the grace time and went with their nodes."""

    directory: Path
    was_there: bool
    jobs_killed: tuple[str, ...] = ()
    processes_ended: int = 0


def end_jobs(site: Site, grace_seconds: float) -> tuple[str, ...]:
    """scancel everything and wait until the queue is empty; returns the jobs that are still there.

    A controller that is dead, stopped or deaf is not asked: its jobs end with their nodes.
    """
    daemon = site.state.daemon(CONTROLLER)
    process = find_process(daemon.id) if daemon else None
    if process is None or process.is_stopped or grace_seconds <= 0:
        return ()
    left: tuple[str, ...] = ()

    def queue_is_empty() -> bool:
        nonlocal left
        left = site.controller.live_jobs(timeout_seconds=_ASK_SECONDS)
        return not left

    # Whatever the controller does not do now is done by ending the nodes.
    with contextlib.suppress(SandboxError):
        if not queue_is_empty():
            site.controller.cancel_everything(timeout_seconds=_ASK_SECONDS)
            poll(site.clock, queue_is_empty, grace_seconds)
    return left


def end_processes(state: SandboxState, clock: Clock) -> int:
    """SIGKILL every process of the sandbox until there is none; returns how many there were.

    Raises SandboxError that names what cannot be killed. SIGKILL also ends what is stopped, and nothing is kept that
    a slower end would save.
    """
    ended: set[ProcessId] = set()
    left: tuple[Process, ...] = ()

    def all_gone() -> bool:
        nonlocal left
        left = find_members(state)
        for process in left:
            ended.add(process.id)
            send_signal(process.id, signal.SIGKILL)
        return not left

    if not poll(clock, all_gone, _END_SECONDS):
        raise SandboxError(
            f"ending a sandbox: still there after SIGKILL and {_END_SECONDS:g} s",
            part="; ".join(describe(process) for process in left),
            hint="they hang in the kernel, as in a dead mount; repeat it when they are gone",
        )
    return len(ended)


def remove_files(place: Place, *, created_directory: bool, keep_logs: bool) -> None:
    """Remove what the sandbox wrote; the user's directory too when we made it and nothing else is in it."""
    try:
        _remove_data(place.data, keep_logs=keep_logs)
        # Last, since this is what makes the sandbox known: a removal that is cut short can be repeated.
        if place.runtime.exists():
            _remove_tree(place.runtime)
    except OSError as error:
        raise SandboxError(
            f"removing a sandbox: {error.strerror}",
            part=str(error.filename),
            hint="mend it, then repeat `sandbox down`",
        ) from error
    # What users left on the shared file system is theirs.
    with contextlib.suppress(OSError):
        place.shared.rmdir()
    if created_directory and not keep_logs:
        # Somebody else's files may be in it by now.
        with contextlib.suppress(OSError):
            place.directory.rmdir()


def _remove_data(data: Path, *, keep_logs: bool) -> None:
    if not data.exists():
        return
    if not keep_logs:
        _remove_tree(data)
        return
    for entry in data.iterdir():
        if entry.name != "log":
            _remove_tree(entry)


def _remove_tree(path: Path) -> None:
    """Remove a directory, also while somebody else does: whoever looks for sandboxes clears what dead ones left."""

    def on_error(_function: object, _path: str, what: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(what[1], FileNotFoundError):
            raise what[1]

    shutil.rmtree(path, onerror=on_error)
