"""The brake: a chain whose generations fail without a new checkpoint is held, not burned.

`judge_brake` is pure. `hold_chain` writes `hold.json`, holds the queued generations and reads the queue again.
Touches: Slurm, `hold.json`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nvrx_chain.clock import format_time, parse_time
from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.records.control import GenerationRecord, Hold
from nvrx_chain.records.outcome import BRAKE_COUNTS
from nvrx_chain.records.progress import UNREADABLE
from nvrx_chain.slurm.identity import verify_task

log = logging.getLogger(__name__)

SHORT_FAILURES = 2
ANY_FAILURES = 3
POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeDecision:
    """Hold the chain, and why."""

    why: str


def judge_brake(
    records: Sequence[GenerationRecord], released_at: datetime | None, brake_seconds: float
) -> BrakeDecision | None:
    """Whether the newest generations failed too often in a row. `records` in order, the newest last.

    Two that ran shorter than `brake_seconds` each, or three of any length, without a new checkpoint iteration. Only
    generations that ended after the last release count. One that ended otherwise (a lost node, a scancel), or whose
    iteration is unreadable, neither counts nor clears; a new checkpoint clears.
    """
    failures: list[GenerationRecord] = []
    for record in reversed(records):
        ended_at = parse_time(record.ended_at)
        if released_at is not None and (ended_at is None or ended_at <= released_at):
            break
        if record.outcome is None or _progress_unknown(record):
            continue
        if _made_progress(record):
            break
        if record.outcome in BRAKE_COUNTS:
            failures.append(record)
    short = [record for record in failures[:SHORT_FAILURES] if (record.run_seconds or 0.0) < brake_seconds]
    if len(short) == SHORT_FAILURES:
        return BrakeDecision(why=f"{SHORT_FAILURES} generations in a row failed within {brake_seconds:.0f} s each")
    if len(failures) >= ANY_FAILURES:
        return BrakeDecision(why=f"{ANY_FAILURES} generations in a row failed without a new checkpoint")
    return None


def _progress_unknown(record: GenerationRecord) -> bool:
    return UNREADABLE in (record.iteration_at_start, record.iteration_at_end)


def _made_progress(record: GenerationRecord) -> bool:
    if record.launched_at is None:
        # It knows no iteration at its start, and whatever is there at its end is not its own.
        return False
    return (record.iteration_at_end or 0) > (record.iteration_at_start or 0)


def records_for_brake(context: TaskContext) -> list[GenerationRecord]:
    """The records of this chain_id up to and including this generation, in order."""
    jobs = [*reversed(context.chain.earlier_generations(context.array_job_id)), context.array_job_id]
    records = (context.chain.record_of(job) for job in jobs)
    return [record for record in records if record is not None and record.chain_id == context.manifest.chain_id]


def last_release(context: TaskContext) -> datetime | None:
    """When the chain was last released, None when it never was."""
    hold = context.chain.hold()
    return parse_time(hold.released_at) if hold is not None else None


def brake_if_needed(context: TaskContext) -> bool:
    """Judge, and hold the chain when it must be. True when the chain is now held (verified or not)."""
    decision = judge_brake(records_for_brake(context), last_release(context), context.thresholds.brake)
    if decision is None:
        return False
    verified = hold_chain(context, decision.why, context.thresholds.teardown)
    log.error("chain held why=%s verified=%s", decision.why, verified)
    return True


def hold_chain(context: TaskContext, why: str, seconds: float) -> bool:
    """Write the hold, hold every queued generation, read again. True when the queue shows them held."""
    queued = _queued_generations(context)
    present = context.chain.hold()
    if present is None or present.released_at is not None:
        # The operator's own hold says why better than we could.
        context.chain.write_hold(
            Hold(
                chain_id=context.manifest.chain_id,
                by=f"brake in {context.identity.spec} on {context.identity.host}",
                why=why,
                held_at=format_time(context.clock.now()),
                array_job_ids=tuple(queued or ()),
            )
        )
    never = threading.Event()
    deadline = context.clock.monotonic() + seconds
    while queued is None or queued:
        for job in queued or ():
            try:
                context.client.hold([str(job)])
            except NvrxError as error:
                log.warning("hold failed, it is tried again array_job_id=%s error=%s", job, error)
        queued = _queued_generations(context)
        if queued is None or queued:
            # Terminated: KillWait is short, and the generation is still to be closed. The next task 0 holds again.
            if context.clock.monotonic() > deadline or context.signals.terminated:
                return False
            context.clock.wait(never, POLL_SECONDS)
    return True


def _queued_generations(context: TaskContext) -> list[int] | None:
    """Later generations with pending tasks that are not held; None when Slurm does not answer."""
    reading = context.client.queue(context.manifest.user)
    if isinstance(reading, Unobserved):
        log.warning("the queue could not be read: %s", reading.reason)
        return None
    identity = context.chain_identity()
    jobs = {
        row.array_job_id
        for row in reading.tasks
        if row.state.is_pending
        and row.array_job_id != context.array_job_id
        and not row.reason.startswith("JobHeld")
        and verify_task(row, identity) is None
    }
    return sorted(jobs)
