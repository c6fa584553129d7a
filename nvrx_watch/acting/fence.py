"""FENCE: a task 0 that is proven dead holds up its chain; close its generation and take its tasks away.

Closing asks the tasks to leave and needs no proof, yet the watcher closes only with proof: it cannot see the ranks.
What the generation's own peers do after a closed file, this does where no peer is left. Touches: Slurm, closed.json.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Sequence

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.liveness import Life
from nvrx_chain.records.control import Closed, Lease
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.slurm.model import QueuedTask
from nvrx_watch.acting.cancelling import SLOW_POLL_SECONDS, Cancelled, ReadRows, blocks, cancel_by_id, read_rows
from nvrx_watch.acting.control_files import NO_TASK, ControlFiles, LeftTasks, control_files, read_writer_stamp
from nvrx_watch.acting.deed import Deed, failed, nothing_left, refused, would_ask
from nvrx_watch.acting.desk import ActionDesk
from nvrx_watch.acting.own_jobs import KnownJobs, is_unnamed, known_jobs, waits_by_own_id
from nvrx_watch.acting.proof import Proof, Witness, prove_death
from nvrx_watch.action_model import ActionState
from nvrx_watch.model import ActionRequest, Snapshot

log = logging.getLogger(__name__)

DEFAULT_KILL_WAIT_SECONDS = 30.0
LONGEST_PATIENCE_SECONDS = 600.0
_WATCHER = "nvrx-watch on "


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """One generation to fence."""

    job: int
    manifest: ChainManifest
    known: KnownJobs
    files: ControlFiles
    read: ReadRows
    desk: ActionDesk

    def row_of_zero(self) -> QueuedTask | Unobserved | None:
        rows = self.read()
        if isinstance(rows, Unobserved):
            return rows
        of_zero = sorted((row for row in rows if row.array_task_id == 0), key=lambda row: row.state.is_terminal)
        return of_zero[0] if of_zero else None

    def lease_of_zero(self) -> Lease | Unobserved | None:
        if self.desk.read_lease is None:
            return self.files.lease(0)
        lease = self.desk.read_lease(self.job, 0)
        if isinstance(lease, Lease) and lease.array_job_id != self.job:
            return Unobserved(f"it is of job {lease.array_job_id}")
        return lease


def fence(request: ActionRequest, snapshot: Snapshot, desk: ActionDesk) -> Deed:
    """Prove, close, cancel, read again. Raises IdentityError, RecordError."""
    case = _open_case(request, snapshot, desk)
    if isinstance(case, Deed):
        return case
    closed = case.files.closed()
    if isinstance(closed, Unobserved):
        return refused(f"whether the generation is closed: {closed.reason}")
    proof = prove_death(
        Witness(
            client=desk.client,
            clock=desk.clock,
            read_row=case.row_of_zero,
            read_lease=case.lease_of_zero,
            thresholds=case.manifest.thresholds,
            may_nudge=not desk.rights.dry_run,
        )
    )
    if not proof.is_dead and not proof.needs_nudge:
        text = f"no proof of death: {proof.judgement.evidence}"
        return refused(text) if proof.judgement.life is Life.ALIVE else failed(text)
    rows = case.read()
    if isinstance(rows, Unobserved):
        return failed(f"the queue could not be read again: {rows.reason}")
    if not any(_is_in_the_way(row) for row in rows):
        return nothing_left(f"nothing of job {case.job} is left: {proof.judgement.evidence}")
    if desk.rights.dry_run:
        first = [row.spec for row in rows if waits_by_own_id(row) or (row.array_task_id == 0 and blocks(row))]
        return would_ask(tuple(first), proof.judgement.evidence)
    closing = _close(case, closed, proof)
    if isinstance(closing, Unobserved):
        return failed(f"closing the generation: {closing.reason}")
    return _Clearing(case=case, proof=proof, closing=closing).run()


def _open_case(request: ActionRequest, snapshot: Snapshot, desk: ActionDesk) -> _Case | Deed:
    job, manifest = request.array_job_id, snapshot.subject.manifest
    if job is None or manifest is None or snapshot.generation(job) is None:
        return refused(f"this pass did not see job {job} as one of the chain's")
    if isinstance(snapshot.nodes, Unobserved):
        return failed(f"this pass could not see the nodes: {snapshot.nodes.reason}")
    files = control_files(snapshot.subject, job, desk.files)
    if isinstance(files, Unobserved):
        return refused(files.reason)
    known = known_jobs(snapshot)
    reading = desk.client.queue(snapshot.subject.user)
    if isinstance(reading, Unobserved):
        return failed(f"the queue could not be read again: {reading.reason}")
    if not known.rows(reading, job):
        return nothing_left(f"Slurm lists nothing of job {job}")
    read = read_rows(desk, known, (job,))
    return _Case(job=job, manifest=manifest, known=known, files=files, read=read, desk=desk)


def _is_in_the_way(row: QueuedTask) -> bool:
    return row.state.is_pending or blocks(row)


class _Closing(enum.Enum):
    """Who closed the generation, and when: that says which running tasks may be taken besides task 0."""

    NOW = "every task that has not left when its time to leave is over"
    BY_A_WATCHER_BEFORE = "these, and tasks that left and did not end: a fence that broke off is taken up again"
    BY_SOMEBODY_ELSE = "tasks that left and did not end; the others are for whoever closed it"

    def may_take(self, array_task_id: int, left: LeftTasks) -> bool:
        """Whether a running peer may be cancelled: its ranks are gone, or it had its time and its host is dead."""
        if self is not _Closing.NOW and array_task_id in left.proven:
            return True
        return self is not _Closing.BY_SOMEBODY_ELSE and array_task_id not in left.named


def _close(case: _Case, closed: Closed | None, proof: Proof) -> _Closing | Unobserved:
    """Close the generation unless it is."""
    if closed is None:
        won = case.files.close(_closed_record(case, proof))
        if isinstance(won, Unobserved):
            return won
        if won:
            return _Closing.NOW
        log.info("somebody else closed the generation array_job_id=%s", case.job)
        found = case.files.closed()
        if found is None or isinstance(found, Unobserved):
            return found or Unobserved("closed.json is there and cannot be read")
        closed = found
    by_a_watcher = closed.outcome is Outcome.LEASE_LOST and closed.closed_by.startswith(_WATCHER)
    return _Closing.BY_A_WATCHER_BEFORE if by_a_watcher else _Closing.BY_SOMEBODY_ELSE


def _closed_record(case: _Case, proof: Proof) -> Closed:
    stamp = read_writer_stamp(case.desk.host)
    return Closed(
        array_job_id=case.job,
        array_task_id=NO_TASK,
        restart_count=0,
        outcome=Outcome.LEASE_LOST,
        exit_code=None,
        closed_by=case.desk.signature,
        closed_at=format_time(case.desk.clock.now()),
        evidence=(proof.judgement.evidence,),
        leases={"0": proof.lease} if proof.lease is not None else {},
        **msgspec.structs.asdict(stamp),
    )


class _Clearing(msgspec.Struct, kw_only=True):
    """Pending tasks first, so that no freed slot starts a spare; then task 0; then whoever had its time to leave."""

    case: _Case
    proof: Proof
    closing: _Closing
    asked: list[str] = msgspec.field(default_factory=list)
    texts: list[str] = msgspec.field(default_factory=list)
    refusals: bool = False
    blind: bool = False
    began: float = 0.0

    def run(self) -> Deed:
        self.began = self.case.desk.clock.monotonic()
        # What a step could not finish the next pass takes up: it finds the generation closed.
        if self._take_pending() and self._take_zero():
            self._take_others()
        return self._report()

    def _take_pending(self) -> bool:
        rows = self._look()
        specs = [row.spec for row in rows if waits_by_own_id(row) and row.array_task_id != 0]
        if any(is_unnamed(row) for row in rows):
            self.texts.append("tasks that Slurm does not name one by one were left alone")
        result = self._cancel(specs, pending_only=True)
        return not self.blind and not set(result.still_there) - set(result.started)

    def _take_zero(self) -> bool:
        rows, proven = self._look(), self.proof.row
        row = next((row for row in rows if row.array_task_id == 0 and not row.state.is_terminal), None)
        if self.blind or row is None or proven is None:
            return not self.blind
        if (row.job_id, row.started_at) != (proven.job_id, proven.started_at) or row.state.is_pending:
            self.texts.append(f"{row.spec} was started anew and was left alone")
            return False
        if not blocks(row):
            return True
        return not self._cancel([row.spec], pending_only=False).still_there and not self.blind

    def _take_others(self) -> None:
        if self.closing is not _Closing.BY_SOMEBODY_ELSE:
            self._wait_for_leaving()
        if self.blind:
            # Nobody's time is up while it is not known who is still there.
            return
        left = self.case.files.left()
        if isinstance(left, Unobserved):
            self.texts.append(f"who has left is not known: {left.reason}")
            return
        specs = [
            row.spec
            for row in self._look()
            if row.array_task_id and row.is_array and blocks(row) and self.closing.may_take(row.array_task_id, left)
        ]
        self._cancel(specs, pending_only=False)

    def _wait_for_leaving(self) -> None:
        """The time in which a task that lives leaves by itself: its drain, and KillWait for what it was told."""
        clock, never = self.case.desk.clock, threading.Event()
        patience = max(0.0, self.case.manifest.thresholds.drain) + _kill_wait(self.case.desk)
        until = self.began + min(patience, LONGEST_PATIENCE_SECONDS)
        while clock.monotonic() < until and any(blocks(row) for row in self._look()):
            clock.wait(never, SLOW_POLL_SECONDS)

    def _cancel(self, specs: Sequence[str], *, pending_only: bool) -> Cancelled:
        if not specs:
            return Cancelled(asked=())
        result = cancel_by_id(self.case.desk, specs, self.case.read, pending_only=pending_only)
        self.asked += [spec for spec in specs if spec not in self.asked]
        if result.refusal:
            self.texts.append(result.refusal)
            self.refusals = True
        self._note_blind(result.blind)
        return result

    def _look(self) -> tuple[QueuedTask, ...]:
        rows = self.case.read()
        if isinstance(rows, Unobserved):
            self._note_blind(rows.reason)
            return ()
        return rows

    def _note_blind(self, why: str) -> None:
        if why and not self.blind:
            self.blind = True
            self.texts.append(f"the queue could not be read: {why}")

    def _report(self) -> Deed:
        clock, never = self.case.desk.clock, threading.Event()
        give_up_at = clock.monotonic() + self.case.desk.verify_seconds
        rows = self.case.read()
        while not isinstance(rows, Unobserved) and any(_is_in_the_way(row) for row in rows):
            if self.blind or clock.monotonic() + SLOW_POLL_SECONDS > give_up_at:
                break
            clock.wait(never, SLOW_POLL_SECONDS)
            rows = self.case.read()
        why = "; ".join([self.proof.judgement.evidence, *self.texts])
        if isinstance(rows, Unobserved):
            why += f"; the queue could not be read afterwards: {rows.reason}"
            return Deed(state=ActionState.FAILED, asked=tuple(self.asked), why=why)
        there = tuple(row.spec for row in rows if _is_in_the_way(row))
        state = ActionState.INCOMPLETE if there else ActionState.DONE
        if there and self.refusals:
            state = ActionState.FAILED
        gone = tuple(spec for spec in self.asked if spec not in there)
        return Deed(state=state, asked=tuple(self.asked), gone=gone, still_there=there, why=why)


def _kill_wait(desk: ActionDesk) -> float:
    config = desk.client.config()
    if isinstance(config, Unobserved) or config.kill_wait_seconds is None:
        return DEFAULT_KILL_WAIT_SECONDS
    return float(config.kill_wait_seconds)
