"""Is the chain over, about to be over, or held? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_chain.clock import parse_time, render_age
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome, Closed, Ending
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.states import JobState
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import (
    active_hold,
    final_verdict,
    has_seen_jobs,
    holds_node,
    later_jobs,
    outcome_of,
    seconds_since,
    task_zero_end,
)
from nvrx_watch.detectors.wording import chain_command, count, listed, resume_command, safe
from nvrx_watch.memory import QUEUE_EMPTY_NAME, lease_name, waiting_name
from nvrx_watch.model import ActionKind, ActionRequest, Finding, Generation, Queue, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

_WANTED_ENDS = frozenset(
    {Outcome.COMPLETED, Outcome.WALLTIME, Outcome.TERMINATED, Outcome.PREEMPTED, Outcome.SUPERSEDED}
)
"""A generation that ended so did not fail: then the chain was too short."""


def find_chain_exhausted(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Nothing of the chain is left in the queue, and training is not finished."""
    queue, verdict = snapshot.queue, final_verdict(snapshot)
    if not snapshot.generations:
        return
    if verdict is not None:
        # The chain's own word needs no queue; one that shows life all the same contradicts it.
        if verdict.verdict is Verdict.EXHAUSTED and (isinstance(queue, Unobserved) or not _is_live(queue)):
            yield _exhausted(snapshot, _why_exhausted(snapshot), resume_command(snapshot.subject))
        return
    if isinstance(queue, Unobserved):
        return
    if (
        isinstance(snapshot.verdict, Unobserved)
        or snapshot.ending is not None
        or active_hold(snapshot) is not None
        or isinstance(snapshot.hold, Unobserved)
    ):
        return
    memory = snapshot.memory
    seen_empty = memory.value(QUEUE_EMPTY_NAME) == "yes" and memory.looks(QUEUE_EMPTY_NAME) >= thresholds.dry_passes
    if _is_live(queue) or not seen_empty or not has_seen_jobs(snapshot) or _lease_moves(snapshot, thresholds):
        return
    extend = chain_command(snapshot.subject, "extend --by 1")
    yield _exhausted(snapshot, _why_exhausted(snapshot), extend or "submit the batch script again")


def _is_live(queue: Queue) -> bool:
    return any(queue.alive(job) for job in queue.arrays) or bool(queue.doubtful) or bool(queue.foreign)


def _lease_moves(snapshot: Snapshot, thresholds: WatchThresholds) -> bool:
    """Whether a task of the newest generations still writes: then squeue answers for another cluster, or filters."""
    for generation in snapshot.generations[-2:]:
        for task in generation.leases:
            name = lease_name(generation.array_job_id, task)
            still = snapshot.memory.steady_seconds(name, snapshot.taken_at)
            if snapshot.memory.changes(name) and still is not None and still < thresholds.lease_stale:
                return True
    return False


def _why_exhausted(snapshot: Snapshot) -> str:
    """One clause that tells a person's cancel, a failure and a chain that was too short apart."""
    for generation in reversed(snapshot.generations):
        outcome = outcome_of(snapshot, generation)
        end = task_zero_end(snapshot, generation.array_job_id)
        if outcome in (None, Outcome.TERMINATED) and end is not None and _is_a_person(snapshot, end.cancelled_by):
            return f"generation {generation.array_job_id} was cancelled by uid {end.cancelled_by}"
        if end is not None and end.state is JobState.CANCELLED and not _ran(snapshot, generation):
            return f"generation {generation.array_job_id} was cancelled before it started"
        if outcome is not None and outcome not in _WANTED_ENDS:
            return f"the last generation {generation.array_job_id} ended as {outcome.value}"
        if outcome is not None:
            return f"it ran out of depth, the last generation {generation.array_job_id} ended as {outcome.value}"
    return "it ran out of depth"


def _is_a_person(snapshot: Snapshot, uid: int | None) -> bool:
    """Whether somebody cancelled it. Slurm itself cancels as uid 0, which says nothing unless the chain is root's."""
    return uid is not None and (uid != 0 or snapshot.subject.uid == 0)


def _ran(snapshot: Snapshot, generation: Generation) -> bool:
    rows = snapshot.queue.rows(generation.array_job_id) if isinstance(snapshot.queue, Queue) else ()
    return generation.has_begun_on_disk or not rows or any(row.nodelist for row in rows)


def _exhausted(snapshot: Snapshot, why: str, command: str) -> Finding:
    jobs = tuple(one.array_job_id for one in snapshot.generations)
    outcomes = [(one.array_job_id, outcome_of(snapshot, one)) for one in snapshot.generations]
    # Of a chain without a manifest nobody knows when its training is finished; one that completed may well be.
    may_be_done = not snapshot.subject.is_ours and bool(outcomes) and outcomes[-1][1] is Outcome.COMPLETED
    unfinished = "" if may_be_done else " and training is not finished"
    ends = listed(f"{job} {outcome.value if outcome is not None else 'unknown'}" for job, outcome in outcomes[-8:])
    return Finding(
        detector="chain_exhausted",
        severity=Severity.WARNING if may_be_done else Severity.CRITICAL,
        scope="chain",
        title=f"nothing of the chain is left in the queue{unfinished}: {why}",
        details=(f"{count(len(jobs), 'generation')} submitted, the last ones: {ends}", *_last_words(snapshot)),
        advice=f"go on with: {command}",
        array_job_ids=jobs[-1:],
    )


def _last_words(snapshot: Snapshot) -> Iterator[str]:
    """Why the newest generation that left a word ended, and where to read on."""
    for generation in reversed(snapshot.generations):
        if isinstance(generation.closed, Closed):
            why = "; ".join(safe(line) for line in generation.closed.evidence[:2]) or "no reason was written down"
            yield f"{generation.array_job_id} was closed as {generation.closed.outcome.value}: {why}"
            logs = chain_command(snapshot.subject, f"logs {generation.array_job_id}_0")
            if logs:
                yield f"read on: {logs}"
            return


def find_chain_completed(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The chain has a final verdict, and not that it ran dry."""
    verdict = final_verdict(snapshot)
    if verdict is None or verdict.verdict is Verdict.EXHAUSTED:
        return
    word = verdict.verdict.value
    advice = "nothing is left to do"
    if verdict.verdict is Verdict.NO_RESTART:
        advice = f"mend the cause, then: {resume_command(snapshot.subject)}"
    elif verdict.verdict is Verdict.CANCELLED:
        advice = f"to go on: {resume_command(snapshot.subject)}"
    yield Finding(
        detector="chain_completed",
        severity=Severity.INFO,
        scope="chain" if verdict.verdict is Verdict.COMPLETED else word,
        title=_title(verdict),
        details=tuple(safe(line) for line in verdict.evidence[:3]),
        advice=advice,
        array_job_ids=(verdict.array_job_id,) if verdict.array_job_id is not None else (),
    )


def _title(verdict: ChainOutcome) -> str:
    by, why = safe(verdict.by), safe(verdict.why)
    if verdict.verdict is Verdict.COMPLETED:
        return f"training is finished: {why} (by {by})"
    return f"the chain ended as {verdict.verdict.value}: {why} (by {by})"


def find_last_generation(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The generation that runs has no successor in the queue, or fewer than are to be kept there."""
    queue, current = snapshot.queue, snapshot.current()
    if isinstance(queue, Unobserved) or current is None or snapshot.verdict is not None:
        return
    if snapshot.ending is not None:
        # It is the last on purpose, and an extend would be refused.
        yield _ending(snapshot.ending)
        return
    job = current.array_job_id
    row = queue.task(job, 0)
    behind = sum(bool(queue.alive(later)) for later in later_jobs(snapshot, job))
    if row is None or not holds_node(row) or behind >= thresholds.keep_queued:
        return
    manifest = snapshot.subject.manifest
    limit = manifest.time_limit_seconds if manifest is not None else None
    ran = seconds_since(row.started_at, snapshot.taken_at)
    left = max(0.0, limit - ran) if limit is not None and ran is not None else None
    command = chain_command(snapshot.subject, "extend --by 1")
    request = None
    if command:
        request = ActionRequest(
            kind=ActionKind.EXTEND,
            array_job_id=None,
            why=f"{count(behind, 'generation')} queued behind generation {job}",
            command=command,
        )
    if behind:
        yield Finding(
            detector="last_generation_running",
            severity=Severity.INFO,
            scope="chain",
            title=f"{count(behind, 'generation')} queued behind generation {job}, {thresholds.keep_queued} are wanted",
            advice=f"queue more: {command or 'submit the batch script again'}",
            array_job_ids=(job,),
            action=request,
        )
        return
    yield Finding(
        detector="last_generation_running",
        severity=Severity.WARNING if left is not None and left < thresholds.last_generation_wall else Severity.INFO,
        scope="chain",
        title=f"generation {job} is the last one: nothing is queued behind it",
        details=(f"{render_age(left)} left to its time limit",) if left is not None else (),
        advice=f"queue more unless this one finishes the training: {command or 'submit the batch script again'}",
        array_job_ids=(job,),
        action=request,
    )


def _ending(ending: Ending) -> Finding:
    job = ending.array_job_id
    return Finding(
        detector="last_generation_running",
        severity=Severity.INFO,
        scope="ending",
        title=f"the chain ends with generation {job}: {safe(ending.why)} (by {safe(ending.by)})",
        advice="nothing is to be done",
        array_job_ids=(job,),
    )


def find_chain_held(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The chain is held: by hold.json, or by Slurm alone."""
    if final_verdict(snapshot) is not None:
        return
    hold = active_hold(snapshot)
    if hold is None:
        yield from _held_in_slurm(snapshot, thresholds)
        return
    seconds = seconds_since(parse_time(hold.held_at), snapshot.taken_at)
    since = f" for {render_age(seconds)}" if seconds is not None else ""
    yield Finding(
        detector="chain_held",
        severity=_by_age(seconds, thresholds),
        scope="chain",
        title=f"the chain is held{since} by {safe(hold.by)}: {safe(hold.why)}",
        details=_not_held(snapshot),
        advice=f"when the cause is mended: {chain_command(snapshot.subject, 'release') or 'release the queued jobs'}",
        array_job_ids=_queued_jobs(snapshot),
    )


def _by_age(seconds: float | None, thresholds: WatchThresholds) -> Severity:
    return Severity.WARNING if seconds is not None and seconds > thresholds.hold_reminder else Severity.INFO


def _queued_jobs(snapshot: Snapshot) -> tuple[int, ...]:
    return tuple(one.array_job_id for one in snapshot.queued())


def _not_held(snapshot: Snapshot) -> tuple[str, ...]:
    """Queued generations that Slurm would start although the chain is held."""
    if isinstance(snapshot.queue, Unobserved):
        return ()
    free = [job for job in _queued_jobs(snapshot) if not any(map(is_held, snapshot.queue.pending(job)))]
    return (f"not held in Slurm, they leave as soon as they start: {listed(free)}",) if free else ()


def is_held(row: QueuedTask) -> bool:
    """Whether a pending task waits for a release."""
    return row.state.is_pending and (
        row.reason.startswith("JobHeld") or "requeued held" in row.reason or row.state is JobState.REQUEUE_HOLD
    )


def _held_in_slurm(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    queue = snapshot.queue
    if isinstance(queue, Unobserved):
        return
    held = {job: [row for row in queue.pending(job) if is_held(row)] for job in queue.arrays}
    held = {job: rows for job, rows in held.items() if rows}
    if not held:
        return
    ages = [snapshot.memory.steady_seconds(waiting_name(job), snapshot.taken_at) for job in held]
    seconds = max((one for one in ages if one is not None), default=None)
    reasons = sorted({row.reason or row.raw_state for rows in held.values() for row in rows})
    by_admin = any(reason.startswith("JobHeldAdmin") for reason in reasons)
    jobs = " ".join(str(job) for job in held)
    who = "an administrator has to run" if by_admin else "to release them"
    yield Finding(
        detector="chain_held",
        severity=_by_age(seconds, thresholds),
        scope="slurm",
        title=f"Slurm holds tasks of {listed(held)} ({listed(reasons)}), and the chain has no hold of its own",
        details=("a held spare that is released later can run beside the next generation",),
        advice=f"{who}: scontrol release {jobs}",
        array_job_ids=tuple(held),
    )


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="chain_exhausted",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.RECORDS}),
        fires="squeue answered and listed nothing live of the chain on so many passes in a row, and the chain has no"
        " verdict; or its verdict is `exhausted`. The title tells a chain that ran out of depth, a last generation that"
        " failed and a cancel by a person apart. Only a warning for a chain that nvrx-chain did not submit and whose"
        " last generation COMPLETED",
        quiet="the chain is held, has another verdict or was to end with the generation that ran; a job that may be the"
        " chain's is live; nothing was ever submitted; a lease of it still moves; the watching user may not see the"
        " jobs and accounting shows none",
        todo="look at how the last generation ended; then go on with the command that is printed",
        check=find_chain_exhausted,
    ),
    Detector(
        name="chain_completed",
        severity=Severity.INFO,
        needs=frozenset({Source.RECORDS}),
        fires="the chain has the verdict completed; with the word in its title also for cancelled and no_restart",
        quiet="there is no verdict, or it is `exhausted`, which is chain_exhausted",
        todo="nothing for completed; for no_restart mend the cause before the chain is resumed",
        check=find_chain_completed,
    ),
    Detector(
        name="last_generation_running",
        severity=Severity.WARNING,
        needs=frozenset({Source.QUEUE, Source.RECORDS}),
        fires="a generation runs and nothing is queued behind it; a warning when little time is left to its time limit."
        " With `--keep-queued N` also when fewer than N are queued, for information. After `cancel --after-current` it"
        " says so, for information and without an action",
        quiet="as many later generations are queued as are to be kept, or the chain has a verdict",
        todo="queue further generations with `nvrx-chain extend` unless this one finishes the training"
        " (`--act --allow extend` does it)",
        check=find_last_generation,
    ),
    Detector(
        name="chain_held",
        severity=Severity.WARNING,
        needs=frozenset({Source.RECORDS}),
        fires="hold.json holds the chain, or pending tasks have a reason such as JobHeldUser or JobHeldAdmin without"
        " it; a warning when the hold is older than the reminder",
        quiet="the hold is released, or the chain has a verdict",
        todo="mend what the hold names, then `nvrx-chain release`; a hold of an administrator is the administrator's",
        check=find_chain_held,
    ),
)
