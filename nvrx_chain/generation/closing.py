"""The last steps of task 0 whatever happened: closed file, verdict, record, brake, queue. In this order.

The closed file comes before any Slurm call, so that peers leave also while the controller is away; the chain's verdict
comes before the cancels, so that a later generation that starts all the same refuses to run. Touches: control/, the
chain's outcome, the record, Slurm.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import ExitCode, NvrxError, Unobserved
from nvrx_chain.generation import brake, teardown
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.records.control import ChainOutcome, Ending, GenerationRecord
from nvrx_chain.records.cycle_info import count_cycles
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.outcome import BRAKE_COUNTS, CHAIN_VERDICT, TEARDOWN, Outcome, TeardownAction, Verdict
from nvrx_chain.records.progress import read_iteration, recorded_iteration

log = logging.getLogger(__name__)

EXIT_CODES: dict[Outcome, ExitCode] = {
    Outcome.COMPLETED: ExitCode.DONE,
    Outcome.NO_RESTART: ExitCode.NO_RESTART,
    Outcome.FAILED: ExitCode.FAILED,
    Outcome.UNFINISHED: ExitCode.DONE,
    Outcome.WALLTIME: ExitCode.DONE,
    Outcome.TERMINATED: ExitCode.TERMINATED,
    Outcome.PREEMPTED: ExitCode.TERMINATED,
    Outcome.LEASE_LOST: ExitCode.HOST_LOST,
    Outcome.RENDEZVOUS_LOST: ExitCode.HOST_LOST,
    Outcome.SUPERSEDED: ExitCode.REFUSED,
    Outcome.STUCK: ExitCode.FAILED,
    Outcome.REFUSED: ExitCode.REFUSED,
    Outcome.HELD: ExitCode.HELD,
    Outcome.NOT_ASSEMBLED: ExitCode.NOT_ASSEMBLED,
}
"""What task 0 exits with."""


_BY_THE_PEERS = frozenset({TeardownAction.CANCEL_GENERATION, TeardownAction.LEAVE_THEN_CANCEL})
"""Peers closed over the head of task 0 and cancel whoever stays; it would wait for its own end, and block the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationEnd:
    """How this generation ended, as task 0 knows it. Seconds on the monotonic clock."""

    outcome: Outcome
    evidence: tuple[str, ...]
    exit_code: int | None = None
    launched_at: str | None = None
    run_seconds: float | None = None
    iteration_at_start: int | None = None
    signalled: bool = False
    near_wall: bool = False
    ranks_gone: bool = True
    chain_is_over: bool = False
    closed_first: bool = False
    """This process wrote `closed.json`: nobody was faster."""


def close_now(context: TaskContext, end: GenerationEnd) -> GenerationEnd:
    """Publish the outcome; when somebody else closed the generation first, theirs counts."""
    won = context.board.close(end.outcome, exit_code=end.exit_code, evidence=end.evidence, leases=context.leases_seen())
    if won:
        return replace(end, closed_first=True)
    closed = context.chain.closed_of(context.array_job_id)
    if closed is not None and closed.outcome is not end.outcome:
        log.info("closed by another outcome=%s by=%s", closed.outcome.value, closed.closed_by)
        return replace(end, outcome=closed.outcome, evidence=(*closed.evidence, *end.evidence))
    return end


def decide_chain(context: TaskContext, end: GenerationEnd) -> None:
    """Write the chain's verdict when this outcome ends the chain, or when no generation is left to take over."""
    if end.chain_is_over:
        return
    verdict, ending = CHAIN_VERDICT.get(end.outcome), find_ending(context, end)
    by, why = f"{context.identity.spec} on {context.identity.host}", end.evidence[0] if end.evidence else None
    if ending is not None:
        verdict, by, why = Verdict.CANCELLED, ending.by, ending.why
    elif verdict is None and is_last_generation(context) and end.outcome is not Outcome.SUPERSEDED:
        verdict = Verdict.EXHAUSTED
    if verdict is None:
        return
    context.chain.decide(
        ChainOutcome(
            chain_id=context.manifest.chain_id,
            verdict=verdict,
            array_job_id=context.array_job_id,
            by=by,
            why=why or end.outcome.value,
            evidence=end.evidence,
            decided_at=format_time(context.clock.now()),
        )
    )


def find_ending(context: TaskContext, end: GenerationEnd) -> Ending | None:
    """The order that this generation is the last, None when there is none or its own outcome says more."""
    if end.outcome in CHAIN_VERDICT or end.outcome is Outcome.SUPERSEDED:
        return None
    return context.chain.ending()


def is_last_generation(context: TaskContext) -> bool:
    """Whether no later generation was submitted. A submission that is still under way may become one."""
    return context.chain.is_last(context.array_job_id)


def write_record(context: TaskContext, end: GenerationEnd, started_at: str, *, ended: bool) -> None:
    """Write or complete `record.json`."""
    iteration = recorded_iteration(read_iteration(context.iteration_file))
    record = GenerationRecord(
        chain_id=context.manifest.chain_id,
        started_at=started_at,
        launched_at=end.launched_at,
        ended_at=format_time(context.clock.now()) if ended else None,
        outcome=end.outcome if ended else None,
        exit_code=end.exit_code,
        signalled=end.signalled,
        near_wall=end.near_wall,
        iteration_at_start=end.iteration_at_start,
        iteration_at_end=iteration if ended else None,
        cycles=count_cycles(context.board.directory),
        run_seconds=end.run_seconds,
        evidence=end.evidence if ended else (),
        drained_tasks=_drained_tasks(context),
        **context.identity.stamp(),
    )
    write_atomic(context.board.directory.record, encode_record(record))


def complete_record(context: TaskContext, end: GenerationEnd) -> None:
    """Complete the record that a dead task 0 left open, for the brake and for people. Never fails the closer."""
    record = context.chain.record_of(context.array_job_id)
    if record is None or record.ended_at is not None:
        return
    iteration = recorded_iteration(read_iteration(context.iteration_file))
    completed = msgspec.structs.replace(
        record,
        ended_at=format_time(context.clock.now()),
        outcome=end.outcome,
        iteration_at_end=iteration,
        cycles=count_cycles(context.board.directory),
        evidence=end.evidence,
        drained_tasks=_drained_tasks(context),
    )
    try:
        write_atomic(context.board.directory.record, encode_record(completed))
    except NvrxError as error:
        log.warning("the record could not be completed: %s", error)


def _drained_tasks(context: TaskContext) -> tuple[int, ...]:
    found = context.board.indexed("drained")
    return () if isinstance(found, Unobserved) else found


def settle_queue(context: TaskContext, end: GenerationEnd) -> None:
    """Release, brake or cancel, as the outcome says."""
    ending = find_ending(context, end)
    action = TeardownAction.CANCEL_REST if end.chain_is_over or ending is not None else TEARDOWN[end.outcome]
    if action in _BY_THE_PEERS:
        action = TeardownAction.RELEASE_SPARES
    teardown.carry_out(context, action, seconds=context.thresholds.teardown)
    if end.outcome in BRAKE_COUNTS and ending is None:
        try:
            brake.brake_if_needed(context)
        except NvrxError as error:
            # The next generation's task 0 judges the same records again before it launches anything.
            log.error("the brake could not be set: %s", error)
