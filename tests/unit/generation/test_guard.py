"""What task 0 watches while training runs: dead peers, empty seats, a verdict, a signal that got lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.clock import format_time
from nvrx_chain.errors import SlurmAmbiguous, Unobserved
from nvrx_chain.generation import rendezvous
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.guard import PeerGuard, SelfCheck, cancel_dead_peer
from nvrx_chain.generation.session import StopCause, StopOrder
from nvrx_chain.records.control import NoRestart, Rendezvous
from nvrx_chain.records.files import encode_record, write_first
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_slurm import Act
from tests.fakes.generation_lab import HeldWork, Lab, freeze, read


@pytest.fixture
def task_zero(lab: Lab) -> TaskContext:
    return lab.arrive(1, 0)


def tick(context: TaskContext, guard: PeerGuard, seconds: float) -> StopOrder | None:
    """Let the guard look once a second."""
    end = context.clock.monotonic() + seconds
    while context.clock.monotonic() < end:
        order = guard.tick(context.watcher.latest())
        if order is not None:
            return order
        context.clock.wait(context.signals.wake, 1.0)
    return None


def test_a_peer_on_a_lost_node_is_cancelled_and_its_slot_goes_to_a_cold_spare(lab: Lab, task_zero: TaskContext) -> None:
    peer, guard = lab.arrive(1, 1), PeerGuard(task_zero)
    lab.slurm.lose_node("n2")
    freeze(peer)
    assert tick(task_zero, guard, 60) is None
    assert lab.states(1)[1] == "COMPLETING"
    assert lab.states(1)[3] == "RUNNING"
    assert [call.arguments for call in lab.slurm.asked("cancel")] == [(("1_1",), False)]


def test_peers_whose_leases_beat_cost_slurm_nothing_but_the_self_check(lab: Lab, task_zero: TaskContext) -> None:
    lab.arrive(1, 1)
    lab.arrive(1, 2)
    assert tick(task_zero, PeerGuard(task_zero), 120) is None
    assert lab.slurm.asked("nudge") == lab.slurm.asked("cancel") == []
    assert len(lab.slurm.asked("queue")) <= 5


def test_a_frozen_peer_on_a_living_node_is_asked_about_once_a_minute_and_kept(lab: Lab, task_zero: TaskContext) -> None:
    freeze(lab.arrive(1, 1))
    assert tick(task_zero, PeerGuard(task_zero), 240) is None
    assert lab.slurm.asked("cancel") == []
    assert 2 <= len(lab.slurm.asked("nudge")) <= 5


def test_a_peer_that_left_is_no_suspect(lab: Lab, task_zero: TaskContext) -> None:
    peer = lab.arrive(1, 1)
    peer.board.leave("done")
    freeze(peer)
    lab.slurm.lose_node("n2")
    tick(task_zero, PeerGuard(task_zero), 60)
    assert lab.slurm.asked("nudge") == lab.slurm.asked("cancel") == []


def test_a_dead_peer_that_is_not_ours_is_not_cancelled(lab: Lab, task_zero: TaskContext) -> None:
    lab.record(1, 1, submitted_at="2025-06-01T00:00:00Z")
    assert not cancel_dead_peer(task_zero, 1)
    assert lab.slurm.asked("cancel") == []
    assert lab.states(1)[1] == "RUNNING"


def test_a_cancel_that_says_yes_and_does_nothing_is_repeated_until_the_queue_shows_it(
    lab: Lab, task_zero: TaskContext
) -> None:
    lab.slurm.script("cancel", Act.IGNORED, SlurmAmbiguous("cancel jobs"))
    lab.slurm.script("queue", Unobserved("away"))
    assert cancel_dead_peer(task_zero, 1)
    assert len(lab.slurm.asked("cancel")) == 3
    assert lab.slurm.task("1_1").state.is_terminal


def test_a_peer_that_slurm_ended_already_is_not_cancelled_again(lab: Lab, task_zero: TaskContext) -> None:
    lab.slurm.finish("1_1", 1)
    assert cancel_dead_peer(task_zero, 1)
    assert lab.slurm.asked("cancel") == []


def test_a_cancel_that_never_works_is_given_up_and_the_peer_stays_suspect(lab: Lab, task_zero: TaskContext) -> None:
    freeze(lab.arrive(1, 1))
    lab.slurm.lose_node("n2")
    lab.slurm.always("cancel", Act.IGNORED)
    guard = PeerGuard(task_zero)
    tick(task_zero, guard, 60)
    given_up = len(lab.slurm.asked("cancel"))
    assert given_up >= 10
    lab.slurm.always("cancel", Act.NORMAL)
    tick(task_zero, guard, 120)
    assert lab.states(1)[1] == "COMPLETING"


def test_a_slurm_that_hangs_holds_up_no_tick(lab: Lab) -> None:
    hanging = HeldWork()
    context = lab.arrive(1, 0, spawn=hanging)
    freeze(lab.arrive(1, 1))
    guard = PeerGuard(context)
    began = lab.clock.monotonic()
    assert tick(context, guard, 120) is None
    assert lab.clock.monotonic() - began == 120
    assert sorted(set(hanging.names)) == ["drain poll", "inquiry", "self-check"]
    assert hanging.names.count("self-check") == hanging.names.count("drain poll") == 1


def test_a_no_restart_verdict_of_any_node_stops_the_generation(lab: Lab, task_zero: TaskContext) -> None:
    peer, guard = lab.arrive(1, 1), PeerGuard(task_zero)
    assert tick(task_zero, guard, 2) is None
    verdict = NoRestart(
        node="n2",
        exit_code=93,
        cause="exited with 93",
        written_at=format_time(lab.clock.now()),
        **peer.identity.stamp(),
    )
    write_first(lab.directory(1).no_restart, encode_record(verdict))
    order = tick(task_zero, guard, 2)
    assert order is not None
    assert order.cause is StopCause.NO_RESTART


# The signal that got lost


def self_check(context: TaskContext, seconds: float) -> str | None:
    check = SelfCheck(context)
    for _ in range(int(seconds)):
        found = check.tick()
        if found is not None:
            return found
        context.clock.wait(context.signals.wake, 1.0)
    return None


def test_a_task_that_slurm_ends_without_a_signal_finds_out(lab: Lab, task_zero: TaskContext) -> None:
    lab.slurm.ignore_term("1_0")
    lab.slurm.cancel(["1_0"])
    assert lab.slurm.task("1_0").state is JobState.COMPLETING
    found = self_check(task_zero, 40)
    assert found is not None
    assert "while it runs" in found


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.STOPPED, JobState.SIGNALING, JobState.UNKNOWN])
def test_an_odd_state_of_the_own_task_is_no_lost_signal(lab: Lab, task_zero: TaskContext, state: JobState) -> None:
    lab.slurm.force_state("1_0", state)
    assert self_check(task_zero, 100) is None


def test_a_slurm_that_does_not_answer_is_no_lost_signal(lab: Lab, task_zero: TaskContext) -> None:
    lab.slurm.cancel(["1_0"])
    lab.slurm.always("queue", Unobserved("away"))
    assert self_check(task_zero, 100) is None


def test_another_job_under_the_own_id_is_no_lost_signal(lab: Lab, task_zero: TaskContext) -> None:
    lab.slurm.cancel(["1_0"])
    lab.record(1, 1, submitted_at="2025-06-01T00:00:00Z")
    assert self_check(task_zero, 100) is None


# Seats


@pytest.fixture
def seats(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path, launcher=LauncherKind.TORCHRUN)
    lab.submit(2)
    return lab


def test_with_fixed_seats_the_seat_of_one_that_left_goes_to_a_waiting_spare_once(seats: Lab) -> None:
    context, peer = seats.arrive(1, 0), seats.arrive(1, 1)
    seats.arrive(1, 2)
    first = rendezvous.publish(context, started=True, members=(0, 1), present=(0, 1, 2))
    guard = PeerGuard(context)
    tick(context, guard, 3)
    assert read(seats.directory(1).rendezvous, Rendezvous).members == (0, 1)
    peer.board.leave("its launcher failed")
    tick(context, guard, 3)
    changed = read(seats.directory(1).rendezvous, Rendezvous)
    assert changed.members == (0, 2)
    assert (changed.rendezvous_port, changed.nonce) == (first.rendezvous_port, first.nonce)


def test_without_a_spare_nobody_loses_a_seat(seats: Lab) -> None:
    context, peer = seats.arrive(1, 0), seats.arrive(1, 1)
    rendezvous.publish(context, started=True, members=(0, 1), present=(0, 1))
    peer.board.leave("its launcher failed")
    tick(context, PeerGuard(context), 3)
    assert read(seats.directory(1).rendezvous, Rendezvous).members == (0, 1)


def test_a_file_system_that_takes_no_write_stops_no_training(seats: Lab) -> None:
    context, peer = seats.arrive(1, 0), seats.arrive(1, 1)
    seats.arrive(1, 2)
    rendezvous.publish(context, started=True, members=(0, 1), present=(0, 1, 2))
    peer.board.leave("its launcher failed")
    guard, path = PeerGuard(context), seats.directory(1).rendezvous
    snapshot = context.watcher.latest()
    path.unlink()
    path.mkdir()
    assert guard.tick(snapshot) is None
    path.rmdir()
    for _ in range(3):
        assert guard.tick(snapshot) is None
    assert read(path, Rendezvous).members == (0, 2)
