"""EXTEND: keep enough generations queued, by `nvrx-chain extend`. Touches: Slurm (reads), what that command touches.

One generation a pass at most: a watcher that is wrong about a chain must not fill the queue with it.
"""

from __future__ import annotations

from nvrx_chain.errors import IdentityError, Unobserved
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.model import QueuedTask, QueueReading
from nvrx_watch.acting.cancel_chain import find_witness
from nvrx_watch.acting.chain_command import COMMAND_SECONDS, as_typed, chain_command, is_usable, last_words
from nvrx_watch.acting.deed import Deed, failed, nothing_left, plain, refused, would_ask
from nvrx_watch.acting.desk import ActionDesk, CommandAnswer
from nvrx_watch.action_model import ActionState
from nvrx_watch.model import ActionRequest, Snapshot, Subject


def extend(_request: ActionRequest, snapshot: Snapshot, desk: ActionDesk) -> Deed:
    """Submit one generation when fewer than wanted wait in a new reading of the queue. Raises IdentityError."""
    hindrance = _hindrance(snapshot)
    if hindrance is not None:
        return hindrance
    run = snapshot.subject.run_directory
    if run is None or not is_usable(run):
        return refused("the chain has no absolute run directory")
    before = _jobs(snapshot, desk)
    if isinstance(before, Unobserved):
        return failed(f"the queue could not be read again: {before.reason}")
    waiting = count_queued(snapshot, before)
    if waiting >= desk.keep_queued:
        return nothing_left(f"{waiting} generations are queued, of {desk.keep_queued} to keep")
    argv = chain_command("extend", "--run-dir", str(run), "--by", "1")
    if desk.rights.dry_run:
        return would_ask((), f"would run: {plain(as_typed(argv))}")
    return _judge(desk.run_command(argv, COMMAND_SECONDS), before, _jobs(snapshot, desk))


def count_queued(snapshot: Snapshot, jobs: dict[int, list[QueuedTask]]) -> int:
    """Generations that wait as a whole. The rest of one that has begun waits too and never trains. Pure."""
    found = 0
    for job, rows in jobs.items():
        known = snapshot.generation(job)
        has_begun = known is not None and (known.closed is not None or known.rendezvous is not None)
        alive = [row for row in rows if not row.state.is_terminal]
        if alive and not has_begun and all(row.state.is_pending for row in alive):
            found += 1
    return found


def _hindrance(snapshot: Snapshot) -> Deed | None:
    if isinstance(snapshot.verdict, Unobserved):
        return failed(f"this pass could not read the verdict of the chain: {snapshot.verdict.reason}")
    if isinstance(snapshot.verdict, ChainOutcome):
        return refused(f"the chain is over: {snapshot.verdict.verdict.value}")
    if find_witness(snapshot) is not None:
        return refused("the chain has a no-restart verdict")
    if isinstance(snapshot.hold, Unobserved):
        return failed(f"this pass could not read the hold of the chain: {snapshot.hold.reason}")
    if snapshot.hold is not None and snapshot.hold.released_at is None:
        return refused(f"the chain is held by {plain(snapshot.hold.by)}")
    return None


def _jobs(snapshot: Snapshot, desk: ActionDesk) -> dict[int, list[QueuedTask]] | Unobserved:
    """The chain's jobs by its comment: those too that another watcher or person submitted since the pass looked."""
    reading = desk.client.queue(snapshot.subject.user)
    return reading if isinstance(reading, Unobserved) else _sort(reading, snapshot.subject)


def _sort(reading: QueueReading, subject: Subject) -> dict[int, list[QueuedTask]]:
    jobs: dict[int, list[QueuedTask]] = {}
    for row in reading.tasks:
        stamp = parse_comment(row.comment)
        if stamp is None or stamp[0] != subject.chain_id:
            continue
        if (row.name, row.user) != (subject.name, subject.user):
            raise IdentityError(
                "count the queued generations", part=f"job {row.spec} has the comment of this chain only"
            )
        jobs.setdefault(row.array_job_id, []).append(row)
    return jobs


def _judge(
    answer: CommandAnswer, before: dict[int, list[QueuedTask]], after: dict[int, list[QueuedTask]] | Unobserved
) -> Deed:
    said = "" if answer.returncode == 0 else last_words(answer)
    if isinstance(after, Unobserved):
        texts = [said] if said else []
        return failed("; ".join([*texts, f"the queue could not be read afterwards: {after.reason}"]))
    new = tuple(str(job) for job in sorted(after.keys() - before.keys()))
    if said:
        return failed(f"{said}; queued since: {' '.join(new)}" if new else said)
    if not new:
        return Deed(state=ActionState.INCOMPLETE, why="the command succeeded and the queue shows no new generation")
    return Deed(state=ActionState.DONE, why=f"queued: job {' '.join(new)}")
