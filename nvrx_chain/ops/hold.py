"""`nvrx-chain hold` and `release`: the queued generations wait, the running one goes on.

`hold.json` comes before the queue, so that a generation that starts in between waits by itself; a release stamps it
first for the same reason. Only a later reading of the queue proves either. Touches: hold.json, Slurm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import RecordError, SlurmError, Unobserved
from nvrx_chain.ops.chain import OpenChain, read_chain_queue, require_cluster, require_own
from nvrx_chain.ops.settle import DEADLINE_SECONDS, Chore, Desk, settle
from nvrx_chain.ops.words import render_time
from nvrx_chain.records.control import Hold
from nvrx_chain.slurm.chain_queue import ChainQueue, describe_left_alone
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)

_HELD_BY_ADMINISTRATOR = "JobHeldAdmin"


class HoldReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a hold or a release, as the last reading of the queue shows it.

    `changed` False: hold.json said so before. `done`: array jobs that are as asked for; `not_done` and `left_alone`:
    those that are not, and why. `no_answer`: why the queue could not be read in the end.
    """

    schema: int = 1
    action: str
    chain_id: str
    name: str
    run_directory: str
    hold: Hold | None
    changed: bool
    done: tuple[int, ...]
    not_done: dict[int, str]
    left_alone: dict[int, str]
    no_answer: str | None

    @property
    def is_complete(self) -> bool:
        """Whether a reading of the queue shows every queued generation as it was asked for."""
        return not (self.not_done or self.left_alone or self.no_answer)


def hold_chain(
    chain: OpenChain, desk: Desk, *, why: str | None = None, seconds: float = DEADLINE_SECONDS
) -> HoldReport:
    """Keep the queued generations from starting. Raises IdentityError or RecordError when that may not be done."""
    _check(chain, desk)
    hold = chain.hold()
    changed = hold is None or hold.released_at is not None
    if hold is None or changed:
        seen = read_chain_queue(chain, desk.client)
        queued = () if isinstance(seen, Unobserved) else tuple(job for job in seen.arrays if _is_queued(seen, job))
        hold = Hold(
            chain_id=chain.manifest.chain_id,
            by=desk.operator.signature,
            why=why or f"held by {desk.operator.role}",
            held_at=format_time(desk.clock.now()),
            array_job_ids=queued,
        )
        chain.files.write_hold(hold)
    chore = _Hold(desk)
    return _report("hold", chain, hold, changed, chore, settle(chain, desk, chore, seconds))


def release_chain(chain: OpenChain, desk: Desk, *, seconds: float = DEADLINE_SECONDS) -> HoldReport:
    """Let a held chain go on. Raises IdentityError or RecordError when that may not be done."""
    _check(chain, desk)
    hold = chain.hold()
    changed = hold is not None and hold.released_at is None
    if hold is not None and changed:
        # Never stamped twice: the brake forgives what failed before the stamp.
        hold = msgspec.structs.replace(
            hold, released_at=format_time(desk.clock.now()), released_by=desk.operator.signature
        )
        chain.files.write_hold(hold)
    chore = _Release(chain, desk)
    return _report("release", chain, hold, changed, chore, settle(chain, desk, chore, seconds))


def is_held(task: QueuedTask) -> bool:
    """Whether a pending task waits for a release. Slurm's reasons are JobHeldUser and JobHeldAdmin."""
    return task.state.is_pending and (task.reason.startswith("JobHeld") or task.state is JobState.REQUEUE_HOLD)


def _check(chain: OpenChain, desk: Desk) -> None:
    require_own(chain, desk.operator)
    verdict = chain.verdict()
    if verdict is not None:
        raise RecordError(
            f"chain {chain.manifest.job_name} has ended: {verdict.verdict.value} by {verdict.by}",
            part=verdict.why,
            hint=f"go on from its checkpoints with: {chain.resume_command}",
        )
    ending = chain.ending()
    if ending is not None:
        raise RecordError(
            f"chain {chain.manifest.job_name} ends with generation {ending.array_job_id}: nothing is queued behind it",
            part=f"by {ending.by}, {ending.why}",
            hint=f"go on from its checkpoints, once it has ended, with: {chain.resume_command}",
        )
    require_cluster(chain, desk.client)


def _is_queued(queue: ChainQueue, array_job_id: int) -> bool:
    """Whether no task of the generation has started: then it is one to hold."""
    alive = queue.alive(array_job_id)
    return bool(alive) and all(task.state.is_pending for task in alive)


def _any_held(queue: ChainQueue, array_job_id: int) -> bool:
    return any(is_held(task) for task in queue.alive(array_job_id))


class _HoldChore(Chore, Protocol):
    def done(self, queue: ChainQueue) -> tuple[int, ...]: ...

    def not_done(self, queue: ChainQueue) -> dict[int, str]: ...


@dataclass(slots=True)
class _Hold:
    """The chore: every pending task of a queued generation is held, and none of a generation that has started."""

    desk: Desk
    asked: set[int] = field(default_factory=set)
    refusals: dict[int, str] = field(default_factory=dict)

    def done(self, queue: ChainQueue) -> tuple[int, ...]:
        return tuple(
            job for job in queue.arrays if _is_queued(queue, job) and all(is_held(task) for task in queue.alive(job))
        )

    def is_done(self, queue: ChainQueue) -> bool:
        return not self._missing(queue) and not self._overtaken(queue)

    def act(self, queue: ChainQueue, passes: int) -> None:
        for job in self._missing(queue):
            self.asked.add(job)
            _try(self.refusals, job, self.desk.client.hold)
        for job in self._overtaken(queue):
            self.desk.say(f"job {job} started while it was being held: its tasks that still wait are released again")
            _try(self.refusals, job, self.desk.client.release)

    def not_done(self, queue: ChainQueue) -> dict[int, str]:
        missing = {job: self.refusals.get(job, "it is not held") for job in self._missing(queue)}
        return missing | dict.fromkeys(self._overtaken(queue), "it has started and some of its tasks are held")

    def _missing(self, queue: ChainQueue) -> list[int]:
        held = self.done(queue)
        return [job for job in queue.arrays if _is_queued(queue, job) and job not in held]

    def _overtaken(self, queue: ChainQueue) -> list[int]:
        """Generations that started between the reading and the hold: with tasks held they would never assemble."""
        return [job for job in sorted(self.asked) if not _is_queued(queue, job) and _any_held(queue, job)]


@dataclass(slots=True)
class _Release:
    """The chore: no task of a generation that is not closed is held any more."""

    chain: OpenChain
    desk: Desk
    asked: set[int] = field(default_factory=set)
    refusals: dict[int, str] = field(default_factory=dict)

    def done(self, queue: ChainQueue) -> tuple[int, ...]:
        return tuple(sorted(self.asked - set(self._missing(queue))))

    def is_done(self, queue: ChainQueue) -> bool:
        return all(self._is_refused_for_good(job) for job in self._missing(queue))

    def act(self, queue: ChainQueue, passes: int) -> None:
        for job in self._missing(queue):
            self.asked.add(job)
            _try(self.refusals, job, self.desk.client.release)

    def not_done(self, queue: ChainQueue) -> dict[int, str]:
        return {job: self._why_held(queue, job) for job in self._missing(queue)}

    def _missing(self, queue: ChainQueue) -> list[int]:
        # A task of an ended generation that is let go would run beside the next one.
        return [job for job in queue.arrays if _any_held(queue, job) and self.chain.files.closed_of(job) is None]

    def _is_refused_for_good(self, job: int) -> bool:
        return "permission denied" in self.refusals.get(job, "").lower()

    def _why_held(self, queue: ChainQueue, job: int) -> str:
        if any(task.reason.startswith(_HELD_BY_ADMINISTRATOR) for task in queue.alive(job)):
            return f"held by an administrator, and only one can let it go: scontrol release {job}"
        return self.refusals.get(job, "it is still held")


def _try(refusals: dict[int, str], job: int, call: Callable[[list[str]], None]) -> None:
    """One job a call, so that the refusal of one stops no other."""
    try:
        call([str(job)])
    except SlurmError as error:
        log.info("refused array_job_id=%s error=%s", job, error)
        refusals[job] = str(error)
    else:
        refusals.pop(job, None)


def _report(
    action: str, chain: OpenChain, hold: Hold | None, changed: bool, chore: _HoldChore, last: ChainQueue | Unobserved
) -> HoldReport:
    queue = ChainQueue(arrays={}, doubtful={}, strays=()) if isinstance(last, Unobserved) else last
    return HoldReport(
        action=action,
        chain_id=chain.manifest.chain_id,
        name=chain.manifest.job_name,
        run_directory=str(chain.directory.path),
        hold=hold,
        changed=changed,
        done=() if isinstance(last, Unobserved) else chore.done(queue),
        not_done=chore.not_done(queue),
        left_alone=describe_left_alone(queue),
        no_answer=last.reason if isinstance(last, Unobserved) else None,
    )


def render_hold(report: HoldReport) -> str:
    """The report of a hold or a release for people."""
    lines = [_headline(report)]
    word = "held" if report.action == "hold" else "released"
    jobs = " ".join(str(job) for job in report.done)
    lines.append(f"{word:<12} {jobs or _nothing(report)}")
    lines += [f"not {word:<8} {job}: {why}" for job, why in report.not_done.items()]
    lines += [f"left alone   {job}: {why}" for job, why in report.left_alone.items()]
    if report.no_answer:
        lines.append(f"unknown      Slurm could not be read: {report.no_answer}")
        lines.append("repeat this command when it answers")
    return "\n".join(lines)


def _nothing(report: HoldReport) -> str:
    if report.no_answer or report.not_done:
        return "none"
    return "none, no generation is queued" if report.action == "hold" else "none, nothing was held"


def _headline(report: HoldReport) -> str:
    named, hold = f"{report.name} (chain {report.chain_id})", report.hold
    if report.action == "hold":
        since = (
            ""
            if report.changed or hold is None
            else f" already, since {render_time(hold.held_at)} by {hold.by}: {hold.why}"
        )
        return f"{named} is held{since}; its running generation goes on"
    return f"{named} goes on" if report.changed else f"{named} was not held"
