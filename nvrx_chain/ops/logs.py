"""`nvrx-chain logs`: the last lines of a generation's logs, and with `-f` what comes after them, across hand-offs.

A change in a directory only wakes a look; the look reads everything, and comes by itself every second, because inotify
sees no write of another node. Touches: the logs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from nvrx_chain.clock import Clock
from nvrx_chain.errors import RecordError, UsageError
from nvrx_chain.ops.chain import OpenChain
from nvrx_chain.ops.log_files import Cursor, LogDirectory, LogFile
from nvrx_chain.ops.resolve import Resolved
from nvrx_chain.slurm.array import render_array_spec

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
BREATH_SECONDS = 0.2
"""Between two looks at least: a busy log would wake them without end."""
QUIET_SECONDS = 10.0
"""For so long nothing must have come after the end: the attributes of a file on NFS lag a few seconds."""

Emit = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """Which logs: of one generation (None: the newest, and with following those after it), of one task (None: all).

    `cycle`: only what the workload wrote in this restart cycle.
    """

    array_job_id: int | None = None
    array_task_id: int | None = None
    lines: int = 20
    cycle: int | None = None

    def find(self, directory: LogDirectory, array_job_id: int) -> tuple[LogFile, ...]:
        """The logs of a generation that are asked for."""
        files = directory.find(array_job_id, self.array_task_id)
        return files if self.cycle is None else tuple(file for file in files if file.cycle == self.cycle)


def print_tail(chain: OpenChain, request: LogRequest, emit: Emit) -> None:
    """Emit (label, line) for the last lines of each log. Raises RecordError when there is no log yet."""
    directory = LogDirectory(chain.directory, chain.manifest.uid)
    job = request.array_job_id if request.array_job_id is not None else _newest(chain, directory, request)
    files = request.find(directory, job) if job is not None else ()
    if not files:
        raise RecordError(_nothing(chain, request, directory, job), hint="-f waits for it")
    for file in files:
        lines, cursor = directory.read_tail(file, request.lines)
        shown = [*lines, *cursor.finish()]
        for line in shown[max(0, len(shown) - request.lines) :]:
            emit(file.label, line)


def choose_logs(
    found: Resolved, array_job_id: int | None, array_task_id: int | None, lines: int, cycle: int | None = None
) -> LogRequest:
    """The request of a command line; a chain that was named by a job means the logs of that job.

    Raises UsageError when the chain has no such generation.
    """
    wanted = array_job_id if array_job_id is not None else found.array_job_id
    known = [generation.array_job_id for generation in found.chain.files.generations()]
    if wanted is not None and wanted not in known:
        shown = " ".join(str(job) for job in known) or "none"
        raise UsageError(
            f"reading logs: chain {found.chain.manifest.job_name} has no generation {wanted}", hint=f"it has: {shown}"
        )
    named_task = found.array_task_id if wanted == found.array_job_id else None
    return LogRequest(
        array_job_id=wanted,
        array_task_id=array_task_id if array_task_id is not None else named_task,
        lines=lines,
        cycle=cycle,
    )


def _newest(chain: OpenChain, directory: LogDirectory, request: LogRequest) -> int | None:
    """The generation that was submitted last of those that have a log."""
    for generation in reversed(chain.files.generations()):
        if directory.find(generation.array_job_id, request.array_task_id):
            return generation.array_job_id
    return None


def _nothing(chain: OpenChain, request: LogRequest, directory: LogDirectory, job: int | None) -> str:
    of_task = "" if request.array_task_id is None else f" of task {request.array_task_id}"
    named = f"chain {chain.manifest.job_name}" if request.array_job_id is None else f"generation {request.array_job_id}"
    if request.cycle is None or job is None:
        return f"reading logs: {named} has no log{of_task} yet"
    cycles = sorted({file.cycle for file in directory.find(job, request.array_task_id) if file.cycle is not None})
    if not cycles:
        return f"reading logs: generation {job} has no log{of_task} of a single cycle: its launcher keeps none"
    shown = render_array_spec(cycles)
    return f"reading logs: generation {job} has no log{of_task} of cycle {request.cycle}; it has those of {shown}"


@dataclass(slots=True, kw_only=True)
class Follower:
    """Emits the last lines, then everything that comes, until the chain (or the one generation) has ended."""

    chain: OpenChain
    request: LogRequest
    clock: Clock
    emit: Emit
    wake: threading.Event
    _cursors: dict[tuple[str, ...], tuple[LogFile, Cursor]] = field(default_factory=dict)
    _first: int | None = None

    def run(self) -> None:
        """Follow. Has no deadline: it ends with the chain, or when the reader interrupts it."""
        directory = LogDirectory(self.chain.directory, self.chain.manifest.uid)
        self._first = self.request.array_job_id or _newest(self.chain, directory, self.request)
        for file in self.request.find(directory, self._first) if self._first is not None else ():
            lines, cursor = directory.read_tail(file, self.request.lines)
            self._cursors[(*file.directory, file.name)] = (file, cursor)
            self._emit(file, lines)
        quiet_since = self.clock.monotonic()
        while True:
            if self._look(directory) or not self._is_over():
                quiet_since = self.clock.monotonic()
            elif self.clock.monotonic() - quiet_since >= QUIET_SECONDS:
                break
            self.clock.wait(threading.Event(), BREATH_SECONDS)
            self.clock.wait(self.wake, POLL_SECONDS - BREATH_SECONDS)
            self.wake.clear()
        for file, cursor in self._cursors.values():
            self._emit(file, cursor.finish())

    def _look(self, directory: LogDirectory) -> bool:
        """Emit what is new. True when there was anything."""
        grew = False
        for job in self._generations():
            for file in self.request.find(directory, job):
                _, cursor = self._cursors.setdefault((*file.directory, file.name), (file, Cursor()))
                if file.size == cursor.offset:
                    continue
                before = cursor.offset
                for line in directory.read_new(file, cursor):
                    self.emit(file.label, line)
                grew = grew or cursor.offset != before
        return grew

    def _generations(self) -> tuple[int, ...]:
        """The one that was asked for, or the one it began with and all after it."""
        if self.request.array_job_id is not None:
            return (self.request.array_job_id,)
        known = [generation.array_job_id for generation in self.chain.files.generations()]
        return tuple(known[known.index(self._first) :] if self._first in known else known)

    def _is_over(self) -> bool:
        """Whether nothing more can come: a verdict, or the (last) generation is closed."""
        try:
            if self.chain.verdict() is not None:
                return True
        except RecordError as error:
            log.debug("no verdict is believed: %s", error)
        known = self.chain.files.generations()
        last = self.request.array_job_id or (known[-1].array_job_id if known else None)
        if last is None or (self.request.array_job_id is None and self.chain.files.open_intents()):
            return False
        return self.chain.files.closed_of(last) is not None

    def _emit(self, file: LogFile, lines: list[str]) -> None:
        for line in lines:
            self.emit(file.label, line)
