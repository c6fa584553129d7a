"""Scenario `hand-off`: a rank is killed, then the node of task 0; training goes on each time and finishes. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvrx_chain.demo.evidence import Evidence, GenerationSeen, Resumption, find_resumption
from nvrx_chain.demo.expectations import (
    Expectation,
    check,
    check_closed,
    check_never_ran,
    check_nodes_free,
    check_one_at_a_time,
    check_queue_empty,
    check_reference,
    check_resumed,
    check_same_losses,
    check_verdict,
    undecided,
)
from nvrx_chain.demo.repairs import is_repaired, repairs_of_faults
from nvrx_chain.demo.scenario import (
    Act,
    Await,
    KillHostNode,
    KillRank,
    ReviveNodes,
    Scenario,
    ScenarioName,
    StartReference,
)
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.sandbox import FaultKind

TRAIN_TASKS = 2
SAVE_INTERVAL = 20
TARGET_ITERATION = 80
STEP_SECONDS = 0.2
STEPS_PAST_CHECKPOINT = 5
"""So many steps after a checkpoint the blow falls: there is something to lose, and no save is under way."""

RESTARTED = "rank killed: restarted inside the same generation"
RANK_RESUMED = "rank killed: resumed from the last checkpoint"
FENCED = "node lost: its peers prove it and close the generation"
TAKEN_OVER = "node lost: the next generation took over"
NODE_RESUMED = "node lost: resumed from the last checkpoint"
ONE_AT_A_TIME = "never ranks of two generations at the same time"
SAME_LOSSES = "losses after each resume are the same bits as before"
UNDISTURBED = "losses are the same bits as those of an undisturbed run"
COMPLETED = "the chain ended as completed"
NEVER_RAN = "the rest of the chain was cancelled and never ran"
QUEUE_EMPTY = "no task of the chain is left in the queue"
NODES_FREE = "every node is free"


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    """Every promise of the scenario, in the order of the story."""
    rank, node = evidence.fault(FaultKind.KILL_RANK), evidence.fault(FaultKind.KILL_NODE)
    after_rank = find_resumption(evidence, rank.at) if rank else None
    after_node = find_resumption(evidence, node.at) if node else None
    hit = evidence.generation(node.array_job_id) if node else None
    last = evidence.generation(evidence.outcome.array_job_id) if evidence.outcome else None
    return (
        _check_restarted(rank.array_job_id if rank else None, after_rank),
        check_resumed(RANK_RESUMED, after_rank, SAVE_INTERVAL),
        check_closed(FENCED, hit, Outcome.LEASE_LOST, by_peer=True),
        _check_taken_over(evidence, hit, after_node),
        check_resumed(NODE_RESUMED, after_node, SAVE_INTERVAL),
        check_one_at_a_time(ONE_AT_A_TIME, evidence),
        check_same_losses(SAME_LOSSES, evidence),
        check_reference(UNDISTURBED, evidence, TARGET_ITERATION),
        check_verdict(COMPLETED, evidence, Verdict.COMPLETED),
        check_never_ran(NEVER_RAN, evidence, last),
        check_queue_empty(QUEUE_EMPTY, evidence, dead_nodes=(node.node,) if node else ()),
        check_nodes_free(NODES_FREE, evidence),
    )


def _check_restarted(array_job_id: int | None, resumption: Resumption | None) -> Expectation:
    if resumption is None:
        return undecided(RESTARTED, "no rank has started since")
    detail = f"killed in array job {array_job_id}, started again in array job {resumption.array_job_id}"
    return check(RESTARTED, resumption.array_job_id == array_job_id, detail)


def _check_taken_over(evidence: Evidence, hit: GenerationSeen | None, resumption: Resumption | None) -> Expectation:
    if hit is None or resumption is None:
        return undecided(TAKEN_OVER, "no rank has started since")
    taker = evidence.generation(resumption.array_job_id)
    is_next = taker is not None and taker.sequence == hit.sequence + 1
    return check(TAKEN_OVER, is_next, f"{taker.label if taker else 'an unknown job'} after {hit.label}")


def _is_past_checkpoint(evidence: Evidence, beyond: int) -> bool:
    """Training is some steps past a checkpoint that is newer than `beyond`."""
    tracked = evidence.tracked() or 0
    return tracked > beyond and evidence.iteration() >= tracked + STEPS_PAST_CHECKPOINT


def _is_past_next_checkpoint(evidence: Evidence) -> bool:
    rank = evidence.fault(FaultKind.KILL_RANK)
    return rank is not None and _is_past_checkpoint(evidence, evidence.tracked(at=rank.at) or 0)


def _has_next_started(evidence: Evidence) -> bool:
    node = evidence.fault(FaultKind.KILL_NODE)
    hit = evidence.generation(node.array_job_id) if node else None
    return hit is not None and any(seen.sequence > hit.sequence and seen.has_run for seen in evidence.generations)


def _is_fault_repaired(kind: FaultKind, evidence: Evidence) -> bool:
    fault = evidence.fault(kind)
    return fault is not None and is_repaired(evidence, fault)


ACTS: tuple[Act, ...] = (
    Await(title="training passes its first checkpoint", until=lambda e: _is_past_checkpoint(e, 0), seconds=120),
    KillRank(rank=1),
    Await(
        title="training goes on after the rank was killed",
        until=lambda e: _is_fault_repaired(FaultKind.KILL_RANK, e),
        seconds=90,
        rows=(RESTARTED, RANK_RESUMED),
    ),
    Await(title="training passes another checkpoint", until=_is_past_next_checkpoint, seconds=60),
    KillHostNode(),
    # Beside the fence, which lasts longer and needs no CPU.
    StartReference(target_iteration=TARGET_ITERATION, ranks=TRAIN_TASKS),
    Await(title="the peers of task 0 close the generation", seconds=90, rows=(FENCED,)),
    Await(title="the next generation starts", until=_has_next_started, seconds=60, rows=(TAKEN_OVER,)),
    Await(
        title="training goes on after the node of task 0 was lost",
        until=lambda e: _is_fault_repaired(FaultKind.KILL_NODE, e),
        seconds=120,
        rows=(TAKEN_OVER, NODE_RESUMED),
    ),
    Await(title="training finishes", seconds=90, rows=(COMPLETED, UNDISTURBED)),
    Await(title="the rest of the chain is cancelled, nothing runs any more", seconds=45, rows=(NEVER_RAN, QUEUE_EMPTY)),
    # Slurm books the last task on the lost node until somebody declares that node down, or SlurmdTimeout has passed.
    ReviveNodes(),
    Await(title="every node is free", seconds=60, rows=(NODES_FREE,)),
)


def _submit_flags(place: Path) -> dict[str, Any]:
    return {
        "train_tasks": str(TRAIN_TASKS),
        "hot_spares": "1",
        "cold_spares": "2",
        "chain_depth": "3",
        "target_iteration": str(TARGET_ITERATION),
    }


HAND_OFF = Scenario(
    name=ScenarioName.HAND_OFF,
    title="a rank is killed, then the node of task 0; training resumes each time and finishes",
    nodes=6,
    submit_flags=_submit_flags,
    workload=("--step-seconds", str(STEP_SECONDS), "--save-interval", str(SAVE_INTERVAL)),
    acts=ACTS,
    judge=judge,
    find_repairs=repairs_of_faults,
    target_iteration=TARGET_ITERATION,
)
