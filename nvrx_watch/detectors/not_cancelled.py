"""A chain that was told to end and goes on: a no-restart verdict by any witness, with later generations alive. Pure.

The witnesses: the chain's verdict, `no_restart.json` of a generation, the exit code of a step and that of task 0's
allocation in accounting. sacct of 22.05 and 24.11 cuts the highest bit off a code, so 93 there may have been 221: a
code is believed only while the generation's own files do not say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from nvrx_chain.clock import parse_time, render_age
from nvrx_chain.errors import ExitCode, Unobserved
from nvrx_chain.records.control import Closed, GenerationRecord, NoRestart
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.states import JobState
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import final_verdict, later_jobs, ordered_jobs, seconds_since, task_zero_end
from nvrx_watch.detectors.wording import chain_command, listed, safe
from nvrx_watch.model import ActionKind, ActionRequest, Finding, Generation, Queue, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds


class _Witness(msgspec.Struct, frozen=True, kw_only=True):
    """Who says that the chain is over, and since when. `array_job_id` None: not one of its generations."""

    verdict: Verdict
    array_job_id: int | None
    text: str
    told_at: datetime | None


def find_not_cancelled(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The first witness after which generations of the chain are still queued or run."""
    queue = snapshot.queue
    if isinstance(queue, Unobserved):
        return
    for witness in _witnesses(snapshot):
        alive = _still_alive(snapshot, queue, witness)
        seconds = _over_for(snapshot, witness)
        if alive and seconds is not None and seconds > thresholds.orphan_grace:
            yield _describe(snapshot, witness, alive, seconds)
            return


def _witnesses(snapshot: Snapshot) -> Iterator[_Witness]:
    """The strongest first."""
    verdict = final_verdict(snapshot)
    if verdict is not None and verdict.verdict is not Verdict.EXHAUSTED:
        yield _Witness(
            verdict=verdict.verdict,
            array_job_id=verdict.array_job_id,
            text=f"the verdict file: {verdict.verdict.value} by {safe(verdict.by)}, {safe(verdict.why)}",
            told_at=parse_time(verdict.decided_at),
        )
    for generation in snapshot.generations:
        if isinstance(generation.no_restart, NoRestart):
            said = generation.no_restart
            yield _Witness(
                verdict=Verdict.NO_RESTART,
                array_job_id=generation.array_job_id,
                text=f"no_restart.json of {generation.array_job_id}: {safe(said.cause)} (node {safe(said.node)})",
                told_at=parse_time(said.written_at),
            )
    for generation in snapshot.generations:
        yield from _exit_codes(snapshot, generation)


def _exit_codes(snapshot: Snapshot, generation: Generation) -> Iterator[_Witness]:
    """What accounting shows, unless the generation itself tells another end."""
    if isinstance(snapshot.accounting, Unobserved) or _says_otherwise(generation):
        return
    manifest = snapshot.subject.manifest
    code = manifest.launcher.no_restart_exit_code if manifest is not None else int(ExitCode.NO_RESTART)
    job = generation.array_job_id
    for row in snapshot.accounting.get(job, ()):
        if not row.state.is_terminal or row.array_task_id is None:
            # A code that is read while the task runs is not its last one.
            continue
        by_step = code in row.step_exit_codes
        by_allocation = row.array_task_id == 0 and row.state is JobState.FAILED and row.exit_code == code
        if by_step or (by_allocation and not row.exit_signal):
            what = (
                "a step"
                if by_step
                else "the allocation alone, the weakest witness: 221 looks the same on some versions"
            )
            yield _Witness(
                verdict=Verdict.NO_RESTART,
                array_job_id=job,
                text=f"exit code {code} of {job}_{row.array_task_id} in accounting ({what})",
                told_at=row.ended_at,
            )


def _says_otherwise(generation: Generation) -> bool:
    """Whether the generation's own files tell another end, or could not be read."""
    for said in (generation.closed, generation.record):
        if isinstance(said, Unobserved):
            return True
        if isinstance(said, Closed | GenerationRecord) and said.outcome not in (None, Outcome.NO_RESTART):
            return True
    return False


def _still_alive(snapshot: Snapshot, queue: Queue, witness: _Witness) -> tuple[int, ...]:
    """The later generations that Slurm has not ended."""
    found = []
    told = witness.array_job_id
    for job in ordered_jobs(snapshot) if told is None else later_jobs(snapshot, told):
        alive = [row for row in queue.alive(job) if row.state is not JobState.COMPLETING]
        if not snapshot.subject.is_ours:
            # The jobs of a foreign chain are known by name: what was submitted after the verdict is a new attempt.
            alive = [
                row
                for row in alive
                if row.submitted_at is not None and witness.told_at is not None and row.submitted_at <= witness.told_at
            ]
        if alive:
            found.append(job)
    return tuple(found)


def _over_for(snapshot: Snapshot, witness: _Witness) -> float | None:
    """Seconds since the chain should be over; None while that is not known.

    A generation that has not ended yet still has its own teardown to do, and gets the time for it.
    """
    job = witness.array_job_id
    generation = snapshot.generation(job) if job is not None else None
    closed = generation.closed if generation is not None else None
    end = task_zero_end(snapshot, job) if job is not None else None
    closed_at = parse_time(closed.closed_at) if isinstance(closed, Closed) else None
    told_at, by_slurm = witness.told_at, end.ended_at if end is not None else None
    if seconds_since(told_at, snapshot.taken_at) is None:
        return None
    # A stamp from the future is a node whose clock is ahead; where Slurm has the end, it need not be waited for.
    stamps = [at for at in (told_at, closed_at) if by_slurm is None or at is None or at <= snapshot.taken_at]
    times = [seconds_since(at, snapshot.taken_at) for at in (*stamps, by_slurm)]
    newest = min(seconds for seconds in times if seconds is not None)
    if end is not None or isinstance(closed, Closed):
        return newest
    manifest = snapshot.subject.manifest
    patience = manifest.thresholds.teardown if manifest is not None else Thresholds().teardown
    return newest - patience


def _describe(snapshot: Snapshot, witness: _Witness, alive: tuple[int, ...], seconds: float) -> Finding:
    subject = snapshot.subject
    doomed = witness.verdict is Verdict.NO_RESTART
    command = chain_command(subject, "cancel") or f"scancel {' '.join(str(job) for job in alive)}"
    told = witness.array_job_id
    why = f"the chain is {witness.verdict.value}" if told is None else f"generation {told} says {witness.verdict.value}"
    request = ActionRequest(
        kind=ActionKind.CANCEL_CHAIN, array_job_id=None, why=f"{why}: {witness.text}", command=command
    )
    return Finding(
        detector="chain_not_cancelled",
        severity=Severity.CRITICAL if doomed else Severity.WARNING,
        scope="chain",
        title=f"{why} for {render_age(seconds)}, and {listed(alive)} of the chain are still queued or run",
        details=(f"witness: {witness.text}",),
        advice=f"cancel what is left: {command}",
        array_job_ids=alive,
        action=request if doomed else None,
    )


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="chain_not_cancelled",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE, Source.RECORDS}),
        fires="the no-restart verdict is stated by the verdict file, by a generation's no_restart.json, by the exit"
        " code of a step or by that of task 0's allocation in accounting, and later generations are still queued or"
        " running after the grace. Which witness spoke is said. After a verdict of completed or cancelled"
        " it is a warning",
        quiet="the generation with the verdict is still at its own clean-up; an exit code in accounting is contradicted"
        " by the generation's closed.json or record.json, or these cannot be read; the later jobs of a foreign chain"
        " were submitted after the verdict",
        todo="read the cause; when it is right, run the command that is printed (`--act --allow cancel-chain` does the"
        " same). Every further generation would fail in the same way",
        check=find_not_cancelled,
    ),
)
