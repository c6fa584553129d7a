"""After a generation was closed over the head of its task 0: who clears the queue, and whom it may take."""

from __future__ import annotations

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.takeover import clear_generation
from nvrx_chain.records.outcome import Outcome
from tests.fakes.generation_lab import Lab, freeze, terminate


@pytest.fixture
def task_zero(lab: Lab) -> TaskContext:
    return lab.arrive(1, 0)


@pytest.fixture
def winner(lab: Lab, task_zero: TaskContext) -> TaskContext:
    return lab.arrive(1, 1)


def test_the_winner_cancels_a_task_zero_that_is_proven_dead_at_once_and_the_next_generation_starts(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    lab.slurm.lose_node("n1")
    freeze(task_zero)
    other = lab.arrive(1, 2)
    for context in (winner, other):
        context.board.leave("closed")
    began = lab.clock.monotonic()
    clear_generation(winner, Outcome.LEASE_LOST, winner=True)
    assert lab.clock.monotonic() - began <= 3
    assert lab.states(1) == {0: "COMPLETING", 1: "RUNNING", 2: "RUNNING", 3: "CANCELLED", 4: "CANCELLED"}
    assert winner.board.cleared()
    lab.slurm.finish("1_1")
    lab.slurm.finish("1_2")
    assert lab.states(5)[0] == "RUNNING"


def test_a_second_dead_node_is_taken_as_soon_as_slurm_calls_it_silent(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    other = lab.arrive(1, 2)
    for node in ("n1", "n3"):
        lab.slurm.lose_node(node)
    freeze(task_zero)
    freeze(other)
    winner.board.leave("closed")
    began = lab.clock.monotonic()
    clear_generation(winner, Outcome.LEASE_LOST, winner=True)
    assert lab.states(1)[2] == "COMPLETING"
    assert lab.clock.monotonic() - began <= 30
    # Task 0 is proven dead: a look at its node once more would only delay the other one.
    assert {call.arguments[0] for call in lab.slurm.asked("nudge")} == {"1_2"}
    assert winner.board.cleared()


def test_a_second_dead_node_that_stood_still_before_the_clearing_is_looked_at_at_once(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    other = lab.arrive(1, 2)
    for node in ("n1", "n3"):
        lab.slurm.lose_node(node)
    freeze(task_zero)
    freeze(other)
    winner.watcher.latest()
    lab.clock.advance(20)
    winner.board.leave("closed")
    began = lab.clock.monotonic()
    clear_generation(winner, Outcome.LEASE_LOST, winner=True)
    (nudged,) = lab.slurm.asked("nudge")
    assert nudged.arguments[0] == "1_2"
    assert lab.clock.monotonic() - began <= 20
    cleared = winner.board.cleared()
    assert cleared is not None
    assert cleared.leases["2"].still_seconds >= 20


def test_a_node_that_dies_after_its_task_left_does_not_block_the_next_generation(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    other = lab.arrive(1, 2)
    other.board.leave("closed")
    winner.board.leave("closed")
    for node in ("n1", "n3"):
        lab.slurm.lose_node(node)
    freeze(task_zero)
    freeze(other)
    clear_generation(winner, Outcome.RENDEZVOUS_LOST, winner=True)
    assert lab.states(1)[2] == "COMPLETING"
    lab.slurm.finish("1_1")
    assert lab.states(5)[0] == "RUNNING"


def test_a_living_task_gets_the_time_to_leave_and_is_cancelled_after_it(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    lab.arrive(1, 2)
    winner.board.leave("closed")
    began = lab.clock.monotonic()
    clear_generation(winner, Outcome.RENDEZVOUS_LOST, winner=True)
    # Drain and KillWait: nobody who could still leave by himself was taken before.
    assert 40 <= lab.clock.monotonic() - began <= 50
    assert lab.states(1)[0] == lab.states(1)[2] == "CANCELLED"
    assert lab.states(1)[1] == "RUNNING"


def test_while_others_only_have_to_leave_the_controller_is_not_asked(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    lab.slurm.cancel(["1"], pending_only=True)
    lab.slurm.lose_node("n1")
    freeze(task_zero)
    other = lab.arrive(1, 2)
    lab.clock.after(9, lambda: other.board.leave("closed"))
    began = lab.clock.monotonic()
    clear_generation(winner, Outcome.LEASE_LOST, winner=True)
    assert 9 <= lab.clock.monotonic() - began <= 12
    assert len(lab.slurm.asked("queue")) <= 4
    assert winner.board.cleared()


def test_a_task_zero_that_nobody_reaches_gets_its_last_steps_and_is_then_taken(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    lab.slurm.cancel(["1"], pending_only=True)
    lab.slurm.finish("1_2")
    lab.clock.after(12, lambda: task_zero.board.leave("closed"))
    began = lab.clock.monotonic()
    clear_generation(winner, Outcome.RENDEZVOUS_LOST, winner=True)
    assert 15 <= lab.clock.monotonic() - began <= 25
    assert lab.states(1)[0] == "CANCELLED"


def test_who_leaves_in_time_is_not_cancelled(lab: Lab, task_zero: TaskContext, winner: TaskContext) -> None:
    winner.board.leave("closed")
    lab.clock.after(8, lambda: (task_zero.board.leave("closed"), lab.slurm.finish("1_0", 75)))
    lab.clock.after(9, lambda: lab.slurm.finish("1_2", 0))
    clear_generation(winner, Outcome.RENDEZVOUS_LOST, winner=True)
    assert lab.states(1)[0] == "FAILED"
    assert [call.arguments for call in lab.slurm.asked("cancel")] == [(("1",), True)]
    assert winner.board.cleared()


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.value not in ("lease_lost", "rendezvous_lost", "stuck")])
def test_a_generation_that_its_own_task_zero_closed_is_left_to_it(
    lab: Lab, task_zero: TaskContext, winner: TaskContext, outcome: Outcome
) -> None:
    clear_generation(winner, outcome, winner=False)
    assert lab.slurm.calls == lab.slurm.asked("submit")


def test_a_stuck_task_zero_is_taken_only_when_the_chain_says_so(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    winner.board.leave("closed")
    clear_generation(winner, Outcome.STUCK, winner=True)
    assert lab.states(1)[0] == "RUNNING"
    assert lab.states(1)[3] == "CANCELLED"


def test_the_others_wait_for_the_marker_and_ask_slurm_nothing(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    other = lab.arrive(1, 2)
    asked = len(lab.slurm.calls)
    for second in range(1, 12):
        lab.clock.after(second, lambda second=second: winner.board.note_inquiry(0, "clearing", f"for {second} s"))
    lab.clock.after(12, lambda: winner.board.clear("nothing is left", {}))
    began = lab.clock.monotonic()
    clear_generation(other, Outcome.LEASE_LOST, winner=False)
    assert 12 <= lab.clock.monotonic() - began <= 13
    assert len(lab.slurm.calls) == asked


def test_a_dead_winner_delays_and_never_blocks(lab: Lab, task_zero: TaskContext, winner: TaskContext) -> None:
    other = lab.arrive(1, 2)
    other.board.leave("closed")
    lab.slurm.lose_node("n1")
    freeze(task_zero)
    lab.slurm.cancel(["1"], pending_only=True)
    lab.slurm.finish("1_1", 1)
    winner.board.note_inquiry(0, "clearing", "for 0 s")
    began = lab.clock.monotonic()
    clear_generation(other, Outcome.LEASE_LOST, winner=False)
    assert lab.clock.monotonic() - began <= 30
    assert lab.states(1)[0] == "COMPLETING"
    assert other.board.cleared()


def test_after_a_dead_winner_the_others_start_in_turn_and_not_all_at_once(
    lab: Lab, task_zero: TaskContext, winner: TaskContext
) -> None:
    lab.arrive(1, 2)
    lab.slurm.always("queue", Unobserved("away"))
    seconds = {}
    for task in (1, 2):
        winner.board.note_inquiry(0, "clearing", f"seen by {task}")
        context = lab.context(1, task)
        began = lab.clock.monotonic()
        clear_generation(lab.context(1, task), Outcome.LEASE_LOST, winner=False)
        # With a Slurm that stays away each tries for the same time once it has started.
        seconds[task] = lab.clock.monotonic() - began
        assert not context.board.cleared()
    assert seconds[2] - seconds[1] >= 2
    # Task 1 wrote the note itself, so it only waits for its turn; task 2 also for the quiet time.
    assert seconds[2] >= 120 + 15


def test_a_peer_that_is_told_to_end_stops_waiting(lab: Lab, task_zero: TaskContext, winner: TaskContext) -> None:
    other = lab.arrive(1, 2)
    winner.board.note_inquiry(0, "clearing", "for 0 s")
    lab.clock.after(2, lambda: terminate(other))
    began = lab.clock.monotonic()
    clear_generation(other, Outcome.LEASE_LOST, winner=False)
    assert lab.clock.monotonic() - began <= 3
