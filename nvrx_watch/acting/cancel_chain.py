"""CANCEL_CHAIN: a no-restart verdict that nobody carried out; cancel what waits of the chain. Touches: Slurm, verdict.

Never a task that runs, and never on the word of an exit code: accounting cuts codes, and other programs end with 93.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace

from nvrx_chain.clock import format_time
from nvrx_chain.errors import IdentityError, Unobserved
from nvrx_chain.records.control import ChainOutcome, Closed, NoRestart
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.model import QueuedTask, QueueReading
from nvrx_watch.acting.cancelling import cancel_by_id, read_rows
from nvrx_watch.acting.control_files import decide_chain
from nvrx_watch.acting.deed import Deed, failed, nothing_left, plain, refused, would_ask
from nvrx_watch.acting.desk import ActionDesk
from nvrx_watch.acting.own_jobs import KnownJobs, is_unnamed, known_jobs, waits_by_own_id
from nvrx_watch.action_model import ActionState
from nvrx_watch.model import ActionRequest, Snapshot

log = logging.getLogger(__name__)


class NoRestartWitness(msgspec.Struct, frozen=True, kw_only=True):
    """Who says that a restart is useless. `is_file`: the verdict file that a launcher's wrapper wrote."""

    array_job_id: int | None
    cause: str
    is_file: bool


class WaitingTasks(msgspec.Struct, frozen=True, kw_only=True):
    """What of a chain waits and may be cancelled, the last generation first, and why the rest was left alone."""

    array_job_ids: tuple[int, ...]
    specs: tuple[str, ...]
    left_alone: tuple[str, ...]


def find_witness(snapshot: Snapshot) -> NoRestartWitness | None:
    """The no-restart verdict of this very chain, None when no file states one. Pure."""
    for one in snapshot.generations:
        if isinstance(one.no_restart, NoRestart) and one.no_restart.array_job_id == one.array_job_id:
            return NoRestartWitness(array_job_id=one.array_job_id, cause=one.no_restart.cause, is_file=True)
    verdict = snapshot.verdict
    if isinstance(verdict, ChainOutcome) and verdict.chain_id == snapshot.subject.chain_id:
        return _spoken_by(verdict) or _closed_so(snapshot)
    return _closed_so(snapshot)


def _spoken_by(verdict: ChainOutcome) -> NoRestartWitness | None:
    if verdict.verdict is not Verdict.NO_RESTART:
        return None
    return NoRestartWitness(array_job_id=verdict.array_job_id, cause=verdict.why, is_file=False)


def _closed_so(snapshot: Snapshot) -> NoRestartWitness | None:
    for one in snapshot.generations:
        closed = one.closed
        if not isinstance(closed, Closed) or closed.array_job_id != one.array_job_id:
            continue
        if closed.outcome is Outcome.NO_RESTART:
            cause = closed.evidence[0] if closed.evidence else closed.outcome.value
            return NoRestartWitness(array_job_id=one.array_job_id, cause=cause, is_file=False)
    return None


def choose_waiting(snapshot: Snapshot, reading: QueueReading, known: KnownJobs) -> WaitingTasks:
    """The waiting tasks of every generation of which nothing runs. Pure.

    The last generation comes first: one that ends lets the next one start.
    """
    jobs: list[int] = []
    specs: list[str] = []
    left_alone: list[str] = []
    for one in sorted(snapshot.generations, key=lambda one: (one.sequence, one.array_job_id), reverse=True):
        try:
            rows = known.rows(reading, one.array_job_id)
        except IdentityError as error:
            left_alone.append(error.part or error.message)
            continue
        waiting = [row.spec for row in rows if waits_by_own_id(row)]
        if waiting and _runs(rows):
            left_alone.append(f"job {one.array_job_id} runs")
        elif waiting:
            jobs.append(one.array_job_id)
            specs += waiting
        if any(is_unnamed(row) for row in rows):
            left_alone.append(f"tasks of job {one.array_job_id} that Slurm does not name one by one")
    return WaitingTasks(array_job_ids=tuple(jobs), specs=tuple(specs), left_alone=tuple(left_alone))


def cancel_chain(_request: ActionRequest, snapshot: Snapshot, desk: ActionDesk) -> Deed:
    """Write the verdict, cancel what waits, read again. Raises RecordError when the verdict cannot be written."""
    witness = find_witness(snapshot)
    if witness is None:
        return refused("no file of this chain says that a restart is useless")
    if isinstance(snapshot.verdict, Unobserved):
        return failed(f"this pass could not read the verdict of the chain: {snapshot.verdict.reason}")
    known = known_jobs(snapshot)
    reading = desk.client.queue(snapshot.subject.user)
    if isinstance(reading, Unobserved):
        return failed(f"the queue could not be read again: {reading.reason}")
    found = choose_waiting(snapshot, reading, known)
    note = f"left alone: {plain('; '.join(found.left_alone))}" if found.left_alone else ""
    if desk.rights.dry_run:
        return would_ask(found.specs, note) if found.specs else nothing_left(note or "nothing of the chain waits")
    hindrance = _decide(witness, snapshot, desk)
    if hindrance is not None:
        return hindrance
    if not found.specs:
        return refused(note) if found.left_alone else nothing_left("nothing of the chain waits any more")
    read = read_rows(desk, known, found.array_job_ids)
    deed = cancel_by_id(desk, found.specs, read, pending_only=True).deed()
    if not found.left_alone:
        return deed
    state = ActionState.INCOMPLETE if deed.state is ActionState.DONE else deed.state
    return replace(deed, state=state, why="; ".join(text for text in (deed.why, note) if text))


def _runs(rows: tuple[QueuedTask, ...]) -> bool:
    return any(not row.state.is_terminal and not row.state.is_pending for row in rows)


def _decide(witness: NoRestartWitness, snapshot: Snapshot, desk: ActionDesk) -> Deed | None:
    """Put the verdict on disk before the first cancel: what starts in spite of the cancels then leaves at once."""
    subject = snapshot.subject
    if not (subject.is_ours and witness.is_file) or subject.chain_id is None or snapshot.verdict is not None:
        return None
    if desk.rights.uid not in (subject.uid, 0):
        return refused("only the owner and root can write the verdict that the tasks of this chain believe")
    outcome = ChainOutcome(
        chain_id=subject.chain_id,
        verdict=Verdict.NO_RESTART,
        array_job_id=witness.array_job_id,
        by=desk.signature,
        why=witness.cause,
        evidence=(f"control/no_restart.json of generation {witness.array_job_id}",),
        decided_at=format_time(desk.clock.now()),
    )
    won = decide_chain(subject, outcome, desk.files)
    if isinstance(won, Unobserved):
        return failed(f"writing the verdict: {won.reason}")
    log.info("verdict no_restart chain_id=%s written=%s", subject.chain_id, won)
    return None
