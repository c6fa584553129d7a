"""The gate of a peer: whom it believes, when it goes in, and when it is no use to wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.generation import rendezvous
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.gate import Gate, GateAnswer, GateResult
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.manifest import LauncherKind, Thresholds
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.fakes.generation_lab import Lab, freeze, terminate

EVERYBODY = (0, 1, 2, 3, 4)


@pytest.fixture
def task_zero(lab: Lab) -> TaskContext:
    return lab.arrive(1, 0)


@pytest.fixture
def peer(lab: Lab, task_zero: TaskContext) -> TaskContext:
    return lab.arrive(1, 1)


def waited(context: TaskContext) -> tuple[GateResult, float]:
    began = context.clock.monotonic()
    return Gate(context).wait(), context.clock.monotonic() - began


def open_gate(task_zero: TaskContext, *present: int, members: tuple[int, ...] = EVERYBODY) -> None:
    rendezvous.publish(task_zero, started=True, members=members, present=present)


def test_it_goes_in_when_task_zero_starts_the_rendezvous(lab: Lab, task_zero: TaskContext, peer: TaskContext) -> None:
    rendezvous.publish(task_zero, started=False, members=(), present=())
    lab.clock.after(100, lambda: open_gate(task_zero, 0, 1))
    result, seconds = waited(peer)
    assert result.answer is GateAnswer.GO
    assert result.rendezvous is not None
    assert result.rendezvous.rendezvous_host == "n1"
    assert 100 <= seconds <= 101


def test_a_rendezvous_that_saw_this_task_come_is_believed_at_once(task_zero: TaskContext, peer: TaskContext) -> None:
    open_gate(task_zero, 0, 1)
    result, seconds = waited(peer)
    assert (result.answer, seconds) == (GateAnswer.GO, 0.0)


def test_one_that_was_started_before_this_task_came_is_believed_when_task_zero_moves(
    lab: Lab, task_zero: TaskContext
) -> None:
    open_gate(task_zero, 0, 1)
    lab.clock.advance(12)
    result, seconds = waited(lab.arrive(1, 2))
    assert result.answer is GateAnswer.GO
    assert 0 < seconds <= 6


def test_the_rendezvous_of_a_dead_task_zero_is_never_believed(lab: Lab, task_zero: TaskContext) -> None:
    open_gate(task_zero, 0, 1)
    freeze(task_zero)
    lab.slurm.lose_node("n1")
    lab.clock.advance(60)
    result, seconds = waited(lab.arrive(1, 2))
    assert result.answer is GateAnswer.HOST_DEAD
    assert "n1" in result.why
    assert seconds <= 60


def test_a_task_without_a_seat_waits_until_it_gets_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path, launcher=LauncherKind.TORCHRUN)
    lab.submit(1)
    zero, spare = lab.arrive(1, 0), lab.arrive(1, 2)
    open_gate(zero, 0, 1, 2, members=(0, 1))
    lab.clock.after(50, lambda: open_gate(zero, 0, 1, 2, members=(0, 2)))
    result, seconds = waited(spare)
    assert result.answer is GateAnswer.GO
    assert 50 <= seconds <= 51


def close(lab: Lab) -> None:
    lab.context(1, 0).board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={})


def end_chain(lab: Lab) -> None:
    lab.chain.decide(
        ChainOutcome(
            chain_id="train-1",
            verdict=Verdict.CANCELLED,
            array_job_id=None,
            by="alice",
            why="stop",
            evidence=(),
            decided_at=format_time(lab.clock.now()),
        )
    )


def publish_later(lab: Lab) -> None:
    rendezvous.publish(lab.context(5, 0), started=False, members=(), present=())


@pytest.mark.parametrize(
    ("event", "why"),
    [(close, "closed as failed"), (end_chain, "cancelled"), (publish_later, "generation 5")],
)
def test_it_leaves_when_there_is_nothing_to_wait_for(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, event: Callable[[Lab], None], why: str
) -> None:
    lab.clock.after(20, lambda: event(lab))
    result, seconds = waited(peer)
    assert result.answer is GateAnswer.LEAVE
    assert why in result.why
    assert 20 <= seconds <= 21


def test_leaving_beats_going_in(lab: Lab, task_zero: TaskContext, peer: TaskContext) -> None:
    open_gate(task_zero, 0, 1)
    close(lab)
    assert waited(peer)[0].answer is GateAnswer.LEAVE


def test_a_term_and_a_warning_of_the_time_limit_end_the_wait(
    lab: Lab, task_zero: TaskContext, peer: TaskContext
) -> None:
    lab.clock.after(20, lambda: terminate(peer))
    assert waited(peer)[0].answer is GateAnswer.TERMINATED
    other = lab.arrive(1, 2)
    other.signals.walltime_warned = True
    assert waited(other)[0].answer is GateAnswer.LEAVE


def test_while_task_zero_moves_it_waits_and_asks_slurm_nothing(
    lab: Lab, task_zero: TaskContext, peer: TaskContext
) -> None:
    rendezvous.publish(task_zero, started=False, members=(), present=())
    lab.clock.after(150, lambda: open_gate(task_zero, 0, 1))
    result, seconds = waited(peer)
    assert result.answer is GateAnswer.GO
    assert seconds >= 150
    assert lab.slurm.asked("queue") == []


def test_a_task_zero_that_slurm_ended_before_it_ever_wrote_is_found_dead(lab: Lab) -> None:
    peer = lab.arrive(1, 1)
    lab.slurm.finish("1_0", signal=9)
    result, seconds = waited(peer)
    assert result.answer is GateAnswer.HOST_DEAD
    assert 30 <= seconds <= 35


def test_a_slurm_that_stays_away_ends_the_wait_after_the_gate_timeout(tmp_path: Path) -> None:
    lab = Lab(tmp_path, thresholds=Thresholds(gate_timeout=200.0))
    lab.submit(1)
    peer = lab.arrive(1, 1)
    freeze(peer)
    lab.slurm.always("queue", Unobserved("away"))
    result, seconds = waited(peer)
    assert result.answer is GateAnswer.TIMED_OUT
    assert 200 <= seconds <= 201
    assert 3 <= len(lab.slurm.asked("queue")) <= 6


# Cold spares


@pytest.fixture
def slot(lab: Lab, task_zero: TaskContext) -> TaskContext:
    """Task 2 has ended, and cold spare 3 got its slot."""
    lab.slurm.finish("1_2", 1)
    assert lab.states(1)[3] == "RUNNING"
    return lab.arrive(1, 3)


def test_a_late_cold_spare_in_the_slot_of_a_dead_task_zero_finds_out_at_once(lab: Lab) -> None:
    zero = lab.arrive(1, 0)
    open_gate(zero, 0, 1)
    freeze(zero)
    lab.slurm.finish("1_0", signal=9)
    spare = lab.arrive(1, 3)
    result, seconds = waited(spare)
    assert result.answer is GateAnswer.HOST_DEAD
    assert seconds <= 10


def test_a_late_cold_spare_beside_a_living_task_zero_goes_in(
    lab: Lab, task_zero: TaskContext, slot: TaskContext
) -> None:
    open_gate(task_zero, 0, 1)
    result, seconds = waited(slot)
    assert result.answer is GateAnswer.GO
    assert seconds <= 60
    assert lab.slurm.asked("cancel") == []


def test_a_late_cold_spare_takes_no_frozen_slurmd_for_a_dead_host(
    lab: Lab, task_zero: TaskContext, slot: TaskContext
) -> None:
    lab.slurm.lose_node("n1")
    lab.clock.advance(250)
    open_gate(task_zero, 0, 1)
    assert waited(slot)[0].answer is GateAnswer.GO
