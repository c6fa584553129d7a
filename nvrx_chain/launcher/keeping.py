"""Keeps the records of a job on its rendezvous host: each cycle before its workers start, each end before it is heard.

Touches: the files of `cycle_files` and `outcome_file`, in their threads.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.launcher.cycle_files import FLUSH_SECONDS, CycleFiles
from nvrx_chain.launcher.events import Cause, Ended, Event, Filled, Opened
from nvrx_chain.launcher.judge import JobJudge
from nvrx_chain.launcher.outcome_file import write_outcome
from nvrx_chain.launcher.verdict import Attendance
from nvrx_chain.launcher.writing import Written
from nvrx_chain.records.cycle_info import CycleDirectory, CycleEnd, CycleFacts, ExcludedGroup

log = logging.getLogger(__name__)

RECORD_SECONDS = 1.0
"""Workers wait so long for their record at most: a file system that hangs delays records, not training."""
OUTCOME_SECONDS = 5.0
"""The end of the job waits so long for its file at most."""


class JobRecords:
    """The `Keeper` of a job. `place` None: nothing is written, and only the judge learns how things go.

    `log_file_of`: the application log of a cycle, or "".
    """

    def __init__(
        self,
        place: CycleDirectory | None,
        *,
        run_id: str,
        judge: JobJudge | None = None,
        log_file_of: Callable[[int], str] = lambda cycle: "",
    ) -> None:
        self._files = None if place is None else CycleFiles(place)
        self._lock = threading.Lock()
        self._run_id = run_id
        self._judge = judge
        self._log_file_of = log_file_of
        self._facts: CycleFacts | None = None
        self._cycle = -1
        self._opened_at: float | None = None
        self._filled_at = 0.0

    def prepare(self, within_seconds: float = FLUSH_SECONDS) -> None:
        """As `CycleFiles.prepare`: before the job starts. Raises RecordError."""
        if self._files is not None:
            self._files.prepare(within_seconds)

    def before(self, event: Filled | Ended, attendance: Attendance) -> None:
        """As `Keeper.before`."""
        if self._files is None:
            return
        if isinstance(event, Filled):
            with self._lock:
                written = self._begin(self._files, event, attendance)
            if not written.wait(RECORD_SECONDS):
                log.error("cycle %s starts before its record is on disk", event.round)
            return
        path, run_id, cycle = self._files.place.outcome, self._run_id, self._cycle
        written = self._files.do("the outcome", lambda: _keep_outcome(path, event, run_id=run_id, cycle=cycle))
        if not written.wait(OUTCOME_SECONDS):
            log.error("the job ends without its outcome on disk reason=%s", event.reason.value)

    def heard(self, event: Event) -> None:
        """As `Keeper.heard`."""
        if isinstance(event, Filled):
            if self._judge is not None:
                self._judge.began(event.round)
            self._filled_at = time.monotonic()
        elif isinstance(event, Opened):
            self._opened_at = time.monotonic()
            self._finish(_end_by_failure(event.cause))
        elif isinstance(event, Ended):
            log.info("the job ends reason=%s exit_code=%s by=%s %s", *_words(event))
            self._finish(CycleEnd(reason=event.reason.value, agent_id=event.by, detail=event.detail))

    def close(self, seconds: float = FLUSH_SECONDS) -> bool:
        """At the very end of the host: end the running cycle, and wait until all is written, so long at most."""
        return self._files is None or self._files.close(_now(), seconds)

    def _begin(self, files: CycleFiles, filled: Filled, attendance: Attendance) -> Written:
        now = _now()
        members = attendance.members
        active = [members[agent].address if agent in members else agent for agent in filled.active]
        # Excluded ones are no longer members, and a node with a launcher that trains is no spare.
        waiting = [member.address for agent, member in members.items() if agent not in filled.active]
        standby = sorted(set(waiting) - set(active))
        place = files.place
        self._cycle = filled.round
        fill_seconds = None if self._opened_at is None else time.monotonic() - self._opened_at
        self._facts = CycleFacts(
            job_id=place.job_id,
            attempt_index=place.attempt,
            cycle_number=filled.round,
            started_at=format_time(now),
            active=filled.active,
            excluded=tuple(
                ExcludedGroup(group=task.group, nodes=task.nodes, why=task.why) for task in attendance.excluded
            ),
            fill_seconds=fill_seconds,
        )
        written = files.start(
            filled.round, now, active=active, standby=standby, log_file=self._log_file_of(filled.round)
        )
        files.keep_facts(self._facts)
        return written

    def _finish(self, end: CycleEnd) -> None:
        with self._lock:
            facts, self._facts = self._facts, None
            if facts is None or self._files is None:
                return
            now = _now()
            self._files.end(now)
            run_seconds = time.monotonic() - self._filled_at
            ended = msgspec.structs.replace(facts, ended_at=format_time(now), run_seconds=run_seconds, end=end)
            self._files.keep_facts(ended)


def _keep_outcome(path: Path, ended: Ended, *, run_id: str, cycle: int) -> None:
    if not write_outcome(path, ended, run_id=run_id, cycle=cycle):
        log.error("there is an outcome already, it stays path=%s", path)


def _words(ended: Ended) -> tuple[str, int, str, str]:
    return ended.reason.value, ended.exit_code, ended.by, ended.detail


def _end_by_failure(cause: Cause) -> CycleEnd:
    code = cause.exit_code
    killed = code is not None and code < 0
    return CycleEnd(
        reason=cause.kind,
        agent_id=cause.agent_id,
        node=cause.node,
        rank=cause.rank,
        exit_code=None if killed else code,
        signal=_signal_name(-code) if code is not None and killed else "",
        section=cause.section,
        error_file=cause.error_file,
        detail=cause.detail,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _now() -> datetime:
    return datetime.now(timezone.utc)
