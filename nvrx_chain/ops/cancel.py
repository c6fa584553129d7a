"""`nvrx-chain cancel`: the verdict first, then the queue, queued generations before the running one.

With the verdict on disk a generation that starts all the same leaves at once, whatever becomes of the cancels. Jobs go
by verified id, never by name, and only a later reading of the queue proves that they went. Touches: chain_outcome.json,
Slurm.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import RecordError, SlurmError, Unobserved
from nvrx_chain.ops.chain import OpenChain, require_cluster, require_own
from nvrx_chain.ops.settle import DEADLINE_SECONDS, Desk, settle
from nvrx_chain.ops.words import render_time
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.chain_queue import ChainQueue, describe_left_alone, describe_states
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)

PENDING_FIRST_PASSES = 3
"""After so many vain tries at the pending tasks the running ones are cancelled all the same."""


class CancelReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a cancel. Array job ids; the texts say in which state a job is, or why it was left alone.

    `decided_now` False: the chain had ended before, by `verdict`. `unresolved`: sequences that sbatch was asked for
    without an answer, and no job of them is in the queue. `no_answer`: why the queue could not be read in the end,
    None when it was.
    """

    schema: int = 1
    chain_id: str
    name: str
    run_directory: str
    verdict: ChainOutcome
    decided_now: bool
    asked: tuple[int, ...]
    gone: tuple[int, ...]
    completing: dict[int, str]
    still_there: dict[int, str]
    left_alone: dict[int, str]
    unresolved: tuple[int, ...]
    refusals: tuple[str, ...]
    no_answer: str | None

    @property
    def is_complete(self) -> bool:
        """Whether a reading of the queue shows that nothing of the chain is left to stop."""
        return not (self.still_there or self.left_alone or self.no_answer)


def cancel_chain(
    chain: OpenChain, desk: Desk, *, why: str | None = None, seconds: float = DEADLINE_SECONDS
) -> CancelReport:
    """End the chain for good. Raises IdentityError for a chain of somebody else, RecordError for its verdict."""
    require_own(chain, desk.operator)
    require_cluster(chain, desk.client)
    verdict, decided_now = _decide(chain, desk, why)
    chore = _Cancel(desk)
    last = settle(chain, desk, chore, seconds)
    return _report(chain, chore, last, verdict, decided_now)


def ask_before_cancel(chain: OpenChain) -> str:
    """The question before a cancel, with what is at stake."""
    jobs = " ".join(str(known.array_job_id) for known in chain.files.generations()) or "none"
    return (
        f"Stop chain {chain.manifest.job_name} in {chain.directory.path} (array jobs {jobs}) for good?"
        " It can then only be started anew from its checkpoints."
    )


def _decide(chain: OpenChain, desk: Desk, why: str | None) -> tuple[ChainOutcome, bool]:
    outcome = ChainOutcome(
        chain_id=chain.manifest.chain_id,
        verdict=Verdict.CANCELLED,
        array_job_id=None,
        by=desk.operator.signature,
        why=why or f"cancelled by {desk.operator.role}",
        evidence=(),
        decided_at=format_time(desk.clock.now()),
    )
    if chain.files.decide(outcome):
        return outcome, True
    earlier = chain.verdict()
    if earlier is None:
        raise RecordError(
            f"writing {chain.directory.outcome}: the verdict of another chain is in its place",
            hint="move it to history/ and repeat this command",
        )
    return earlier, False


@dataclass(slots=True)
class _Cancel:
    """The chore: nothing of the chain is in the queue but what is COMPLETING."""

    desk: Desk
    asked: set[int] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)

    def is_done(self, queue: ChainQueue) -> bool:
        return not any(_to_stop(queue, job) for job in queue.arrays)

    def act(self, queue: ChainQueue, passes: int) -> None:
        # The last generation first: one that ends frees the slot of the next.
        jobs = sorted((job for job in queue.arrays if _to_stop(queue, job)), reverse=True)
        pending = [job for job in jobs if any(task.state.is_pending for task in _to_stop(queue, job))]
        if pending:
            self._cancel(pending, pending_only=True)
        if not pending or passes >= PENDING_FIRST_PASSES:
            self._cancel(jobs, pending_only=False)

    def _cancel(self, jobs: list[int], *, pending_only: bool) -> None:
        log.info("cancelling array_job_ids=%s pending_only=%s", jobs, pending_only)
        self.asked.update(jobs)
        try:
            self.desk.client.cancel([str(job) for job in jobs], pending_only=pending_only)
        except SlurmError as error:
            if str(error) not in self.refusals:
                self.refusals.append(str(error))
                self.desk.say(f"{error}; it is tried again")


def _to_stop(queue: ChainQueue, array_job_id: int) -> list[QueuedTask]:
    """The tasks that a cancel still has to end. A COMPLETING one is on its way out already."""
    return [task for task in queue.alive(array_job_id) if task.state is not JobState.COMPLETING]


def _report(
    chain: OpenChain, chore: _Cancel, last: ChainQueue | Unobserved, verdict: ChainOutcome, decided_now: bool
) -> CancelReport:
    seen = ChainQueue(arrays={}, doubtful={}, strays=()) if isinstance(last, Unobserved) else last
    still_there = {job: describe_states(tasks) for job in seen.arrays if (tasks := _to_stop(seen, job))}
    completing = {job: describe_states(seen.alive(job)) for job in seen.live_jobs if job not in still_there}
    answered = not isinstance(last, Unobserved)
    stamps = {task.comment for rows in seen.arrays.values() for task in rows}
    return CancelReport(
        chain_id=chain.manifest.chain_id,
        name=chain.manifest.job_name,
        run_directory=str(chain.directory.path),
        verdict=verdict,
        decided_now=decided_now,
        asked=tuple(sorted(chore.asked)),
        gone=tuple(job for job in sorted(chore.asked) if answered and job not in still_there | completing),
        completing=completing,
        still_there=still_there,
        left_alone=describe_left_alone(seen),
        unresolved=tuple(intent.sequence for intent in chain.files.open_intents() if intent.stamp not in stamps),
        refusals=tuple(chore.refusals),
        no_answer=last.reason if isinstance(last, Unobserved) else None,
    )


def render_cancel(report: CancelReport) -> str:
    """The report for people."""
    verdict = report.verdict
    lines = [
        f"cancelled {report.name} (chain {report.chain_id}): no further generation will train"
        if report.decided_now
        else f"{report.name} (chain {report.chain_id}) had ended before: {verdict.verdict.value} by {verdict.by}"
        f" at {render_time(verdict.decided_at)}: {verdict.why}"
    ]
    nothing = "none" if report.no_answer else "none, nothing of it was in the queue"
    lines.append(f"asked        {_jobs(report.asked) or nothing}")
    if report.gone:
        lines.append(f"gone         {_jobs(report.gone)}")
    lines += [f"completing   {job}: {states}" for job, states in report.completing.items()]
    lines += [f"still there  {job}: {states}" for job, states in report.still_there.items()]
    lines += [f"left alone   {job}: {why}" for job, why in report.left_alone.items()]
    lines += [f"Slurm said   {text}" for text in report.refusals if report.still_there]
    if report.unresolved:
        lines.append(f"unresolved   submission {_jobs(report.unresolved)}: its job leaves by itself should it turn up")
    if report.no_answer:
        lines.append(f"unknown      Slurm could not be read: {report.no_answer}")
    if not report.is_complete:
        lines.append("the verdict stands: a generation that starts leaves at once. Repeat this command for the rest.")
    return "\n".join(lines)


def _jobs(jobs: tuple[int, ...]) -> str:
    return " ".join(str(job) for job in jobs)
