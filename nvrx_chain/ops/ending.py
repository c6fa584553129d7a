"""`nvrx-chain cancel --after-current`: what is queued goes, what runs trains to its end, and then the chain is over.

`ending.json` comes before the queue, so that a queued generation that starts all the same leaves at once. It names the
generation that runs, which goes on; whoever ends that one writes the verdict. Running tasks are never touched here.
Touches: ending.json, chain_outcome.json, Slurm.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import RecordError, SlurmError, Unobserved
from nvrx_chain.ops.cancel import CancelReport, cancel_chain
from nvrx_chain.ops.chain import OpenChain, read_chain_queue, require_cluster, require_own
from nvrx_chain.ops.settle import DEADLINE_SECONDS, POLL_SECONDS, Desk, settle
from nvrx_chain.ops.words import render_time
from nvrx_chain.records.control import ChainOutcome, Ending
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.chain_queue import ChainQueue, describe_left_alone, describe_states
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)


class EndingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Array job ids; the texts say in which state a job is, or why it was left alone.

    `decided_now` False: it stood before. `goes_on`: what trains to its end. `verdict`: the chain is over already.
    """

    schema: int = 1
    chain_id: str
    name: str
    run_directory: str
    ending: Ending | None
    verdict: ChainOutcome | None
    decided_now: bool
    goes_on: dict[int, str]
    asked: tuple[int, ...]
    gone: tuple[int, ...]
    still_there: dict[int, str]
    left_alone: dict[int, str]
    refusals: tuple[str, ...]
    no_answer: str | None

    @property
    def is_complete(self) -> bool:
        """Whether a reading of the queue shows that nothing waits behind what runs."""
        return not (self.still_there or self.left_alone or self.no_answer)


def end_after_current(
    chain: OpenChain, desk: Desk, *, why: str | None = None, seconds: float = DEADLINE_SECONDS
) -> EndingReport | CancelReport:
    """Let what runs train to its end, and nothing after it. With nothing running it is a cancel.

    Raises IdentityError for a chain of somebody else, SlurmError when it cannot be seen what runs.
    """
    require_own(chain, desk.operator)
    require_cluster(chain, desk.client)
    verdict, ending, decided_now = chain.verdict(), chain.ending(), False
    if verdict is None and ending is None:
        current = _find_current(chain, desk, seconds)
        if current is None:
            desk.say("nothing of the chain runs: it ends now")
            return cancel_chain(chain, desk, why=why, seconds=seconds)
        ending, decided_now = _decide(chain, desk, current, why)
    chore = _Clear(desk)
    last = settle(chain, desk, chore, seconds)
    if ending is not None and not isinstance(last, Unobserved):
        _finish(chain, desk, ending, last)
    return _report(chain, chore, last, ending, decided_now)


def ask_before_ending(chain: OpenChain) -> str:
    """The question before it."""
    return (
        f"Let the running generation of {chain.manifest.job_name} in {chain.directory.path} be the last one?"
        " What is queued is cancelled; this cannot be taken back."
    )


def _find_current(chain: OpenChain, desk: Desk, seconds: float) -> int | None:
    """The newest generation that runs, None when none does. Raises SlurmError when Slurm does not answer in time."""
    give_up_at = desk.clock.monotonic() + seconds
    while True:
        queue = read_chain_queue(chain, desk.client)
        if not isinstance(queue, Unobserved):
            return next((job for job in reversed(tuple(queue.arrays)) if is_running(queue, job)), None)
        if desk.clock.monotonic() > give_up_at:
            raise SlurmError(
                f"ending chain {chain.manifest.job_name} after what runs: the queue could not be read",
                part=queue.reason,
                hint="nothing was changed; repeat this command when Slurm answers",
            )
        desk.clock.wait(threading.Event(), POLL_SECONDS)


def is_running(queue: ChainQueue, array_job_id: int) -> bool:
    """Whether a task of the generation runs; one in COMPLETING is on its way out."""
    return any(
        not task.state.is_pending and task.state is not JobState.COMPLETING for task in queue.alive(array_job_id)
    )


def _waits(queue: ChainQueue, array_job_id: int) -> bool:
    """Whether it has not begun: nothing of it holds a node or is just giving one back."""
    alive = queue.alive(array_job_id)
    return bool(alive) and all(task.state.is_pending for task in alive)


def _decide(chain: OpenChain, desk: Desk, current: int, why: str | None) -> tuple[Ending, bool]:
    ending = Ending(
        chain_id=chain.manifest.chain_id,
        array_job_id=current,
        by=desk.operator.signature,
        why=why or "cancelled by its user, after the generation that ran",
        decided_at=format_time(desk.clock.now()),
    )
    if chain.files.end_after(ending):
        return ending, True
    earlier = chain.ending()
    if earlier is None:
        raise RecordError(
            f"writing {chain.directory.ending}: that of another chain is in its place",
            hint="move it to history/ and repeat this command",
        )
    return earlier, False


def _finish(chain: OpenChain, desk: Desk, ending: Ending, queue: ChainQueue) -> None:
    """Write the verdict when nothing runs any more: a generation that was closing before could not know of this."""
    if any(is_running(queue, job) for job in queue.arrays) or queue.doubtful or queue.strays:
        return
    chain.files.decide(
        ChainOutcome(
            chain_id=ending.chain_id,
            verdict=Verdict.CANCELLED,
            array_job_id=ending.array_job_id,
            by=ending.by,
            why=ending.why,
            evidence=(f"nothing of the chain ran any more when {desk.operator.signature} looked",),
            decided_at=format_time(desk.clock.now()),
        )
    )


@dataclass(slots=True)
class _Clear:
    """The chore: no generation of the chain waits in the queue."""

    desk: Desk
    asked: set[int] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)

    def is_done(self, queue: ChainQueue) -> bool:
        return not any(_waits(queue, job) for job in queue.arrays)

    def act(self, queue: ChainQueue, passes: int) -> None:
        # The last generation first, or the end of one would start the next. Only what waits: should one start in this
        # moment, it leaves by itself.
        jobs = sorted((job for job in queue.arrays if _waits(queue, job)), reverse=True)
        if not jobs:
            return
        log.info("cancelling pending array_job_ids=%s", jobs)
        self.asked.update(jobs)
        try:
            self.desk.client.cancel([str(job) for job in jobs], pending_only=True)
        except SlurmError as error:
            if str(error) not in self.refusals:
                self.refusals.append(str(error))
                self.desk.say(f"{error}; it is tried again")


def _report(
    chain: OpenChain, chore: _Clear, last: ChainQueue | Unobserved, ending: Ending | None, decided_now: bool
) -> EndingReport:
    seen = ChainQueue(arrays={}, doubtful={}, strays=()) if isinstance(last, Unobserved) else last
    waiting = {job: describe_states(seen.alive(job)) for job in seen.arrays if _waits(seen, job)}
    others = {job: describe_states(seen.alive(job)) for job in seen.live_jobs if job not in waiting}
    answered = not isinstance(last, Unobserved)
    return EndingReport(
        chain_id=chain.manifest.chain_id,
        name=chain.manifest.job_name,
        run_directory=str(chain.directory.path),
        ending=ending,
        verdict=chain.verdict(),
        decided_now=decided_now,
        goes_on=others,
        asked=tuple(sorted(chore.asked)),
        gone=tuple(job for job in sorted(chore.asked) if answered and job not in waiting | others),
        still_there=waiting,
        left_alone=describe_left_alone(seen),
        refusals=tuple(chore.refusals),
        no_answer=last.reason if isinstance(last, Unobserved) else None,
    )


def render_ending(report: EndingReport) -> str:
    """The report for people."""
    lines = [_headline(report)]
    lines += [f"goes on      {job}: {states}" for job, states in report.goes_on.items()]
    if report.gone:
        lines.append(f"cancelled    {' '.join(str(job) for job in report.gone)}")
    lines += [f"still there  {job}: {states}" for job, states in report.still_there.items()]
    lines += [f"left alone   {job}: {why}" for job, why in report.left_alone.items()]
    lines += [f"Slurm said   {text}" for text in report.refusals if report.still_there]
    if report.no_answer:
        lines.append(f"unknown      Slurm could not be read: {report.no_answer}")
    if not report.is_complete:
        lines.append("it stands: a queued generation that starts leaves at once. Repeat this command for the rest.")
    return "\n".join(lines)


def _headline(report: EndingReport) -> str:
    named = f"{report.name} (chain {report.chain_id})"
    if report.verdict is not None:
        verdict = report.verdict
        return (
            f"{named} has ended: {verdict.verdict.value} by {verdict.by} at {render_time(verdict.decided_at)}:"
            f" {verdict.why}"
        )
    assert report.ending is not None
    since = "" if report.decided_now else f", since {render_time(report.ending.decided_at)} by {report.ending.by}"
    return f"{named} ends after generation {report.ending.array_job_id}{since}"
