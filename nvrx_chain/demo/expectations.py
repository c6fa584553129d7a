"""What a scenario promises, judged on the evidence so far: each row is ok, FAILED, or not decided yet. Pure.

Judged again with every reading, so that a demo ends when a row has failed, and not when the last deadline has passed.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvrx_chain.demo.evidence import (
    Evidence,
    GenerationSeen,
    Resumption,
    find_losses,
    find_reigns,
    find_repeated,
    is_free,
)
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.outcome import CHAIN_VERDICT, Outcome, Verdict
from nvrx_chain.slurm.states import JobState

SLACK_STEPS = 2
"""Steps that may be lost on top of a save interval: one that was done while the last save ran, one under way."""


class RowState(str, enum.Enum):
    """How a row stands."""

    OK = "ok"
    FAILED = "FAILED"
    OPEN = "not reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One promise of a scenario. `detail` says what was seen, or what is missing."""

    name: str
    state: RowState
    detail: str


def ok(name: str, detail: str) -> Expectation:
    """A promise that was kept."""
    return Expectation(name=name, state=RowState.OK, detail=detail)


def failed(name: str, detail: str) -> Expectation:
    """A promise that was broken."""
    return Expectation(name=name, state=RowState.FAILED, detail=detail)


def undecided(name: str, detail: str) -> Expectation:
    """A promise that can still be kept."""
    return Expectation(name=name, state=RowState.OPEN, detail=detail)


def check(name: str, holds: bool, detail: str) -> Expectation:
    """A promise about something that has been seen."""
    return ok(name, detail) if holds else failed(name, detail)


def failures(rows: Iterable[Expectation]) -> tuple[str, ...]:
    """The names of the broken promises."""
    return tuple(row.name for row in rows if row.state is RowState.FAILED)


def fail_open(rows: Iterable[Expectation], names: Sequence[str], why: str) -> tuple[Expectation, ...]:
    """The same rows; those of these names that are still open have failed, and `why` says on what they waited."""
    return tuple(
        failed(row.name, f"{why}; {row.detail}") if row.state is RowState.OPEN and row.name in names else row
        for row in rows
    )


def check_resumed(name: str, resumption: Resumption | None, save_interval: int) -> Expectation:
    """Training went on from the last checkpoint, and no more than one save interval has to be done again."""
    if resumption is None:
        return undecided(name, "no rank has started since")
    seen = f"resumed at {resumption.iteration}, the tracker said {resumption.tracked}, {resumption.steps_lost} lost"
    on_checkpoint = resumption.iteration > 0 and resumption.iteration == resumption.tracked
    return check(name, on_checkpoint and 0 <= resumption.steps_lost <= save_interval + SLACK_STEPS, seen)


def check_closed(
    name: str, generation: GenerationSeen | None, outcome: Outcome, *, by_peer: bool = False
) -> Expectation:
    """A generation was closed with this outcome word; `by_peer`: by one of its tasks other than 0."""
    if generation is None or generation.closed is None:
        return undecided(name, "it is not closed")
    closed = generation.closed
    seen = f"{closed.outcome.value} by {closed.closed_by}: {'; '.join(closed.evidence)}"
    is_peer = closed.array_job_id == generation.array_job_id and closed.array_task_id != 0
    return check(name, closed.outcome is outcome and (is_peer or not by_peer), seen)


def check_verdict(name: str, evidence: Evidence, verdict: Verdict) -> Expectation:
    """The chain ended with this verdict."""
    if evidence.outcome is None:
        ends = [seen.closed.outcome for seen in evidence.generations if seen.closed]
        bringing = [outcome for outcome, brought in CHAIN_VERDICT.items() if brought is verdict]
        # Nobody is left who could write it: there is no point in waiting for that.
        if bringing and ends and len(ends) == len(evidence.generations) and not set(ends) & set(bringing):
            return failed(name, f"every generation has ended: {', '.join(end.value for end in ends)}")
        return undecided(name, "the chain has no verdict")
    return check(name, evidence.outcome.verdict is verdict, f"{evidence.outcome.verdict.value}: {evidence.outcome.why}")


def check_never_ran(name: str, evidence: Evidence, last: GenerationSeen | None) -> Expectation:
    """Every generation after the `last` one was cancelled in the queue, and none of its tasks ever had a node."""
    if evidence.outcome is None or evidence.queue is None or last is None:
        return undecided(name, "the chain has no verdict")
    later = [seen for seen in evidence.generations if seen.sequence > last.sequence]
    if not later:
        return failed(name, f"{last.label} was the last one: nothing was left to cancel")
    started = [seen.label for seen in later if seen.has_run or _had_node(evidence, seen)]
    if started:
        return failed(name, f"started although the chain had ended: {', '.join(started)}")
    waiting = [seen.label for seen in later if not _is_cancelled(evidence, seen)]
    if waiting:
        return undecided(name, f"still queued: {', '.join(waiting)}")
    return ok(name, f"cancelled: {', '.join(seen.label for seen in later)}")


def _had_node(evidence: Evidence, generation: GenerationSeen) -> bool:
    return any(task.nodelist for task in evidence.queue or () if task.array_job_id == generation.array_job_id)


def _is_cancelled(evidence: Evidence, generation: GenerationSeen) -> bool:
    rows = [task for task in evidence.queue or () if task.array_job_id == generation.array_job_id]
    return bool(rows) and all(task.state is JobState.CANCELLED for task in rows)


def check_queue_empty(name: str, evidence: Evidence, *, dead_nodes: Sequence[str] = ()) -> Expectation:
    """No task of the chain waits, runs or completes; what Slurm still books on a dead node cannot leave before that
    node is back."""
    if evidence.outcome is None or evidence.queue is None:
        return undecided(name, "the chain has no verdict")
    left = [task for task in evidence.alive() if task.nodelist not in dead_nodes or not task.nodelist]
    if left:
        return undecided(name, ", ".join(f"{task.spec} {task.raw_state}" for task in left))
    return ok(name, "no task of the chain is left")


def check_nodes_free(name: str, evidence: Evidence) -> Expectation:
    """Every node of the cluster is idle and answers, and the queue holds nothing of the chain."""
    if evidence.nodes is None or evidence.queue is None or evidence.outcome is None:
        return undecided(name, "the chain has no verdict")
    taken = [f"{node.name} {node.raw_state}" for node in evidence.nodes.values() if not is_free(node)]
    taken += [f"{task.spec} {task.raw_state}" for task in evidence.alive()]
    if taken:
        return undecided(name, ", ".join(taken))
    return ok(name, f"{len(evidence.nodes)} of {len(evidence.nodes)} nodes are idle")


def check_one_at_a_time(name: str, evidence: Evidence) -> Expectation:
    """No two generations ever had a live rank at the same moment, by the ranks' own lines."""
    reigns = find_reigns(evidence.events)
    for before, after in itertools.pairwise(reigns):
        overlap = before.last_seen_at - after.began_at
        if overlap >= 0:
            jobs = f"array jobs {before.array_job_id} and {after.array_job_id}"
            return failed(name, f"ranks of {jobs} lived at the same time for {overlap:.1f} s")
    if len(reigns) < 2:
        return undecided(name, "only one generation has had ranks")
    gaps = [after.began_at - before.last_seen_at for before, after in itertools.pairwise(reigns)]
    return ok(name, f"{min(gaps):.1f} s between the last line of one and the first rank of the next")


def check_same_losses(name: str, evidence: Evidence) -> Expectation:
    """What was trained twice had the same loss both times, bit for bit."""
    different = [iteration for iteration, losses in find_losses(evidence.events).items() if len(losses) > 1]
    if different:
        return failed(name, f"iteration {min(different)} had different losses in different lives")
    repeated = find_repeated(evidence.events)
    if not repeated:
        return undecided(name, "no iteration was trained twice")
    return ok(name, f"{len(repeated)} iterations were trained again, all with the same bits")


def check_reference(name: str, evidence: Evidence, target_iteration: int) -> Expectation:
    """Every iteration up to the target has the loss of a run that nobody disturbed, bit for bit."""
    reference = evidence.reference
    if isinstance(reference, Unobserved):
        return failed(name, reference.reason)
    if reference is None or evidence.iteration() < target_iteration:
        return undecided(name, "training or the undisturbed run is not finished")
    losses = find_losses(evidence.events)
    for iteration in range(1, target_iteration + 1):
        wanted = reference.get(iteration)
        if wanted is None or losses.get(iteration) != (wanted,):
            return failed(name, f"iteration {iteration}: {losses.get(iteration)} here, {wanted} undisturbed")
    return ok(name, f"{target_iteration} of {target_iteration} iterations have the same bits")
