"""A peer from gate to exit: when it closes the generation, whom it takes, what it says about its ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import ExitCode, NvrxError
from nvrx_chain.generation import rendezvous
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.peer import Peer
from nvrx_chain.records.control import Drained, DrainedNode, Left
from nvrx_chain.records.files import encode_record, list_names, write_atomic
from nvrx_chain.records.manifest import OnDrain, Thresholds
from nvrx_chain.records.outcome import Outcome
from tests.fakes.generation_lab import FakeLauncher, HeldWork, Lab, freeze, read, replace_struct, shape, terminate


@pytest.fixture
def task_zero(lab: Lab) -> TaskContext:
    """A task 0 that has opened the rendezvous to everybody."""
    context = lab.arrive(1, 0)
    rendezvous.publish(context, started=True, members=(0, 1, 2, 3, 4), present=(0, 1, 2))
    return context


@pytest.fixture
def peer(lab: Lab, task_zero: TaskContext) -> TaskContext:
    return lab.arrive(1, 1)


@pytest.fixture
def launcher(lab: Lab, peer: TaskContext) -> FakeLauncher:
    return lab.launcher(peer)


def left(lab: Lab, task: int) -> Left | None:
    path = lab.directory(1).left(task)
    return read(path, Left) if path.exists() else None


def outcome(lab: Lab) -> Outcome | None:
    closed = lab.closed(1)
    return closed.outcome if closed else None


def test_a_closed_generation_is_left_with_zero_and_a_word_about_the_ranks(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(50, lambda: task_zero.board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={}))
    assert Peer(peer).run() is ExitCode.DONE
    assert launcher.said == ["stop"]
    assert left(lab, 1) is not None
    assert lab.slurm.asked("queue") == []


def test_a_restarted_peer_refuses_and_says_nothing_about_the_ranks_of_its_first_start(
    lab: Lab, task_zero: TaskContext
) -> None:
    context = lab.context(1, 1, restart_count=1)
    assert Peer(context).run() is ExitCode.REFUSED
    assert left(lab, 1) is None
    assert (1, 1) not in lab.launchers


def test_ranks_that_cannot_be_shown_to_be_gone_are_not_called_gone(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    launcher.obeys = None
    lab.clock.after(50, lambda: task_zero.board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={}))
    assert Peer(peer).run() is ExitCode.DONE
    assert left(lab, 1) is None


def test_a_term_stops_the_ranks_and_closes_nothing(lab: Lab, peer: TaskContext, launcher: FakeLauncher) -> None:
    lab.clock.after(50, lambda: terminate(peer))
    assert Peer(peer).run() is ExitCode.TERMINATED
    assert launcher.said == ["stop"]
    assert left(lab, 1) is not None
    assert outcome(lab) is None


# A dead host


def test_the_death_of_the_host_is_proven_and_the_next_generation_runs_within_a_minute(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.slurm.cancel(["1"], pending_only=True)
    lab.slurm.finish("1_2")
    lab.clock.after(20, lambda: (lab.slurm.lose_node("n1"), freeze(task_zero)))
    assert Peer(peer).run() is ExitCode.HOST_LOST
    assert outcome(lab) is Outcome.LEASE_LOST
    assert lab.states(1)[0] == "COMPLETING"
    assert left(lab, 1) is not None
    assert lab.clock.monotonic() - 20 <= 60
    lab.slurm.finish("1_1", 75)
    assert lab.states(5)[0] == "RUNNING"


def test_the_ranks_are_stopped_before_the_generation_is_closed_and_the_lease_credit_is_written(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    launcher.takes_seconds = 7.0
    lab.clock.after(20, lambda: (lab.slurm.lose_node("n1"), freeze(task_zero)))
    Peer(peer).run()
    closed = lab.closed(1)
    assert closed is not None
    assert launcher.poll() == 143
    assert closed.leases["0"].still_seconds >= 30
    assert "n1" in closed.evidence[0]


def test_the_others_are_told_while_the_own_ranks_still_hang(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    launcher.obeys = None
    lab.slurm.cancel(["1"], pending_only=True)
    lab.slurm.finish("1_2")
    lab.clock.after(20, lambda: (lab.slurm.lose_node("n1"), freeze(task_zero)))
    stopped_at: list[float] = []
    stop = launcher.stop
    launcher.stop = lambda *, gentle: (stopped_at.append(lab.clock.monotonic()), stop(gentle=gentle))[1]  # type: ignore[method-assign]
    assert Peer(peer).run() is ExitCode.HOST_LOST
    closed = lab.closed(1)
    assert closed is not None
    closed_at = parse_time(closed.closed_at)
    assert closed_at is not None
    assert (closed_at - lab.began).total_seconds() - stopped_at[0] <= 1
    # Nothing is said about ranks that nobody saw end.
    assert left(lab, 1) is None


def test_a_closing_that_failed_in_the_background_is_done_again(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    path = lab.directory(1).closed
    lab.clock.after(20, lambda: (lab.slurm.lose_node("n1"), freeze(task_zero)))
    stop = launcher.stop

    def stop_on_a_full_disk(*, gentle: bool) -> None:
        path.mkdir()
        (path / "full").touch()
        lab.clock.after(0.5, lambda: ((path / "full").unlink(), path.rmdir()))
        stop(gentle=gentle)

    launcher.stop = stop_on_a_full_disk  # type: ignore[method-assign]
    assert Peer(peer).run() is ExitCode.HOST_LOST


class Silent:
    """A link over which task 0 stopped answering at some time."""

    seconds = 0.0

    def excused_seconds(self) -> float:
        return float("inf")

    def maybe_excused_seconds(self) -> float:
        return self.excused_seconds()

    def host_silent_seconds(self) -> float:
        return self.seconds


def test_a_host_that_no_peer_reaches_is_closed_although_no_launcher_noticed(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    link = Silent()
    other = lab.arrive(1, 2)
    lab.clock.after(40, lambda: setattr(link, "seconds", 15.0))
    lab.clock.after(50, lambda: (setattr(link, "seconds", 25.0), other.board.say_silent(True, 25.0)))
    lab.clock.after(60, lambda: task_zero.board.leave("closed"))
    lab.clock.after(60, lambda: lab.slurm.finish("1_2"))
    assert Peer(dataclasses.replace(peer, link=link)).run() is ExitCode.HOST_LOST
    assert outcome(lab) is Outcome.RENDEZVOUS_LOST
    # Task 0 has left and cannot tell Slurm so.
    assert lab.states(1)[0] == "CANCELLED"
    assert lab.clock.monotonic() <= 70


def test_a_peer_that_reaches_the_host_closes_nothing_whatever_the_others_say(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    other = lab.arrive(1, 2)
    lab.slurm.finish("1_2")
    for seconds in range(10, 200, 10):
        lab.clock.after(seconds, lambda: (peer.board.say_silent(True, 60.0), other.board.say_silent(True, 60.0)))
    lab.clock.after(200, lambda: terminate(peer))
    assert Peer(peer).run() is ExitCode.TERMINATED
    assert outcome(lab) is None


def test_a_vote_that_a_dead_peer_left_behind_closes_nothing(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    link = Silent()
    lab.arrive(1, 2).board.say_silent(True, 25.0)
    lab.arrive(1, 3)
    lab.clock.after(40, lambda: setattr(link, "seconds", 15.0))
    lab.clock.after(50, lambda: setattr(link, "seconds", 25.0))
    lab.clock.after(200, lambda: terminate(peer))
    assert Peer(dataclasses.replace(peer, link=link)).run() is ExitCode.TERMINATED
    assert outcome(lab) is None


def test_a_peer_that_is_itself_cut_off_closes_nothing(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.arrive(1, 2)
    link = Silent()
    link.seconds = 100.0
    lab.clock.after(200, lambda: terminate(peer))
    assert Peer(dataclasses.replace(peer, link=link)).run() is ExitCode.TERMINATED
    assert outcome(lab) is None


def test_a_frozen_host_on_a_living_node_keeps_training(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(50, lambda: freeze(task_zero))
    lab.clock.after(200, lambda: terminate(peer))
    assert Peer(peer).run() is ExitCode.TERMINATED
    assert lab.clock.monotonic() >= 200
    assert outcome(lab) is None
    assert lab.slurm.asked("cancel") == []


def test_a_slurm_that_hangs_does_not_keep_a_peer_from_stopping_its_ranks(lab: Lab, task_zero: TaskContext) -> None:
    hanging = HeldWork()
    context = lab.arrive(1, 1, spawn=hanging)
    lab.clock.after(5, lambda: freeze(task_zero))
    lab.clock.after(80, lambda: terminate(context))
    assert Peer(context).run() is ExitCode.TERMINATED
    assert 80 <= lab.clock.monotonic() <= 83
    assert "inquiry" in hanging.names


def test_who_comes_second_to_close_waits_for_the_first_and_asks_slurm_nothing(
    lab: Lab, task_zero: TaskContext, peer: TaskContext
) -> None:
    other = lab.arrive(1, 2)
    lab.slurm.finish("1_0", 1)
    freeze(task_zero)

    # The other one closed in the same moment, and clears a little later.
    other.board.close(Outcome.LEASE_LOST, exit_code=None, evidence=("dead",), leases={})
    for second in range(6):
        lab.clock.after(second, lambda second=second: other.board.note_inquiry(0, "clearing", f"for {second} s"))
    lab.clock.after(6, lambda: other.board.clear("nothing is left", {}))
    lab.slurm.calls.clear()
    began = lab.clock.monotonic()
    code = Peer(peer)._close(Outcome.LEASE_LOST, "the own proof", ranks_gone=True)
    assert code is ExitCode.HOST_LOST
    assert lab.slurm.calls == []
    assert 6 <= lab.clock.monotonic() - began <= 7


def test_a_left_file_that_cannot_be_written_keeps_nobody_from_clearing_the_queue(
    lab: Lab, task_zero: TaskContext, peer: TaskContext
) -> None:
    lab.directory(1).left(1).mkdir()
    lab.slurm.finish("1_0", signal=9)
    freeze(task_zero)
    lab.clock.after(1, lambda: lab.slurm.finish("1_2"))
    Peer(peer)._close(Outcome.LEASE_LOST, "proof", ranks_gone=True)
    assert "PENDING" not in lab.states(1).values()


# The own launcher


def test_a_peer_whose_own_launcher_failed_beside_a_living_host_frees_its_slot_soon(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: launcher.exit(1))
    assert Peer(peer).run() is ExitCode.FAILED
    assert 20 <= lab.clock.monotonic() <= 23
    assert outcome(lab) is None
    assert left(lab, 1) is not None


def test_a_launcher_that_cannot_be_started_frees_the_slot_too(
    lab: Lab, task_zero: TaskContext, peer: TaskContext
) -> None:
    def refuse() -> FakeLauncher:
        raise NvrxError("starting srun: no such file")

    assert Peer(dataclasses.replace(peer, start_launcher=refuse)).run() is ExitCode.FAILED
    assert left(lab, 1) is not None


def test_launchers_that_lost_a_living_host_close_the_generation(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: launcher.exit(1, lost=True))
    lab.clock.after(45, lambda: (task_zero.board.leave("closed"), lab.slurm.finish("1_0", 75)))
    lab.clock.after(45, lambda: lab.slurm.finish("1_2"))
    assert Peer(peer).run() is ExitCode.HOST_LOST
    assert outcome(lab) is Outcome.RENDEZVOUS_LOST
    # The host's own launcher may just have ended; only after a while it is taken for unreachable.
    closed = lab.closed(1)
    assert closed is not None
    closed_at = parse_time(closed.closed_at)
    assert closed_at is not None
    # A question to Slurm passes its time within one turn of the loop here.
    assert 30 <= (closed_at - lab.began).total_seconds() <= 40


def test_a_host_that_closes_in_time_is_not_called_lost(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: launcher.exit(1, lost=True))
    lab.clock.after(25, lambda: task_zero.board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={}))
    assert Peer(peer).run() is ExitCode.DONE
    assert outcome(lab) is Outcome.FAILED


# At the gate


def test_one_that_waits_at_the_gate_helps_when_the_winner_has_died(lab: Lab, task_zero: TaskContext) -> None:
    winner, spare = lab.arrive(1, 1), lab.arrive(1, 2)
    lab.directory(1).rendezvous.unlink()
    lab.slurm.lose_node("n1")
    freeze(task_zero)
    winner.board.close(Outcome.LEASE_LOST, exit_code=None, evidence=("dead",), leases={})
    lab.slurm.cancel(["1"], pending_only=True)
    lab.slurm.finish("1_1", 1)
    assert Peer(spare).run() is ExitCode.DONE
    assert left(lab, 2) is not None
    assert lab.states(1)[0] == "COMPLETING"


def test_a_host_found_dead_at_the_gate_is_closed_from_there(lab: Lab, task_zero: TaskContext) -> None:
    freeze(task_zero)
    lab.slurm.finish("1_0", signal=9)
    lab.slurm.finish("1_1", 1)
    lab.slurm.finish("1_2", 1)
    spare = lab.arrive(1, 3)
    assert Peer(spare).run() is ExitCode.HOST_LOST
    assert outcome(lab) is Outcome.LEASE_LOST
    assert left(lab, 3) is not None
    assert (1, 3) not in lab.launchers


# A host that is stuck


@pytest.fixture
def short(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path, thresholds=Thresholds(stuck=100.0))
    lab.submit(2)
    return lab


def stuck_peer(lab: Lab) -> tuple[TaskContext, TaskContext]:
    zero = lab.arrive(1, 0)
    rendezvous.publish(zero, started=True, members=(0, 1, 2, 3, 4), present=(0, 1, 2))
    context = lab.arrive(1, 1)
    lab.clock.after(5, lambda: freeze(zero))
    return zero, context


def test_a_host_without_any_sign_of_life_is_closed_as_stuck_and_not_cancelled(short: Lab) -> None:
    _, context = stuck_peer(short)

    def talk() -> None:
        # What run-task itself logs about its questions is no sign of life of task 0.
        with open(short.directory(1).task_log(1), "a") as log:
            log.write("inquiry about=0 answer=alive\n")
        short.clock.after(20, talk)

    talk()
    short.slurm.cancel(["1"], pending_only=True)
    assert Peer(context).run() is ExitCode.FAILED
    assert outcome(short) is Outcome.STUCK
    assert 135 <= short.clock.monotonic() <= 260
    assert short.states(1)[0] == "RUNNING"


def test_a_log_or_a_checkpoint_that_grows_is_a_sign_of_life(short: Lab) -> None:
    _, context = stuck_peer(short)

    def train() -> None:
        short.checkpoint(int(short.clock.monotonic()))
        short.clock.after(20, train)

    train()
    short.clock.after(350, lambda: terminate(context))
    assert Peer(context).run() is ExitCode.TERMINATED
    assert outcome(short) is None


def test_no_temporary_name_stays_behind(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: launcher.exit(1))
    Peer(peer).run()
    names = list_names(lab.directory(1).control)
    assert isinstance(names, tuple)
    assert [name for name in names if name.endswith(".tmp")] == []


# Drained nodes


def marker(host: TaskContext, task: int = 1, *, nodes: tuple[str, ...] = ("n2",), excluded: bool = True) -> Drained:
    """What task 0 publishes of a task that a spare can replace."""
    return Drained(
        task=task,
        task_nodes=nodes,
        drained_nodes=(DrainedNode(node="n2", state="draining", reason="xid 79", by="root", since=None),),
        is_active=True,
        excluded=excluded,
        seen_at="2026-01-01T00:00:00Z",
        returned_at=None,
        poll=1,
        poll_seconds=60.0,
        answer_age_seconds=0.0,
        **host.identity.stamp(),
    )


@pytest.fixture
def stopping_peer(lab: Lab, task_zero: TaskContext) -> TaskContext:
    """Task 1 of a chain that restarts for drained nodes."""
    lab.manifest = replace_struct(lab.manifest, on_drain=OnDrain.RESTART)
    return lab.arrive(1, 1)


def test_with_restart_a_drained_task_stops_its_ranks_and_leaves_with_zero(
    lab: Lab, task_zero: TaskContext, stopping_peer: TaskContext
) -> None:
    launcher = lab.launcher(stopping_peer)
    lab.clock.after(50, lambda: task_zero.board.write_drained(marker(task_zero)))
    began = lab.clock.monotonic()
    assert Peer(stopping_peer).run() is ExitCode.DONE
    assert launcher.said == ["stop"]
    said = left(lab, 1)
    assert said is not None
    assert said.evidence == 'its node is drained: n2 (draining, "xid 79" by root)'
    assert lab.clock.monotonic() - began < 55
    assert outcome(lab) is None
    assert lab.slurm.asked("queue") == []


@pytest.mark.parametrize("policy", [OnDrain.EXCLUDE, OnDrain.REPORT])
def test_without_restart_a_drained_task_trains_on(lab: Lab, task_zero: TaskContext, policy: OnDrain) -> None:
    lab.manifest = replace_struct(lab.manifest, on_drain=policy)
    peer = lab.arrive(1, 1)
    launcher = lab.launcher(peer)
    lab.clock.after(10, lambda: task_zero.board.write_drained(marker(task_zero)))
    lab.clock.after(200, lambda: task_zero.board.close(Outcome.COMPLETED, exit_code=0, evidence=(), leases={}))
    began = lab.clock.monotonic()
    assert Peer(peer).run() is ExitCode.DONE
    assert lab.clock.monotonic() - began >= 200
    assert launcher.said == ["stop gentle"]


def test_a_launcher_that_leaves_a_restart_for_its_drained_node_frees_the_slot_at_once_and_asks_nobody(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: task_zero.board.write_drained(marker(task_zero)))
    lab.clock.after(50, lambda: launcher.exit(1))
    began = lab.clock.monotonic()
    assert Peer(peer).run() is ExitCode.DONE
    assert lab.clock.monotonic() - began < 52
    said = left(lab, 1)
    assert said is not None
    assert "n2" in said.evidence
    assert lab.slurm.asked("queue") == lab.slurm.asked("nodes") == []
    assert outcome(lab) is None


def test_a_drained_task_whose_launcher_lost_the_host_asks_about_it_before_it_leaves(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: task_zero.board.write_drained(marker(task_zero)))
    lab.clock.after(49, lambda: (lab.slurm.lose_node("n1"), freeze(task_zero)))
    lab.clock.after(50, lambda: launcher.exit(1, lost=True))
    assert Peer(peer).run() is ExitCode.HOST_LOST
    assert outcome(lab) is Outcome.LEASE_LOST
    assert lab.states(1)[0] in ("COMPLETING", "CANCELLED")


def test_of_a_task_of_several_nodes_the_other_launchers_are_stopped_and_it_leaves_with_zero(tmp_path: Path) -> None:
    lab = Lab(tmp_path, shape=shape(train=2, hot=1, cold=0, nodes=2))
    lab.submit()
    host = lab.arrive(1, 0)
    rendezvous.publish(host, started=True, members=(0, 1, 2), present=(0, 1, 2))
    peer = lab.arrive(1, 1)
    launcher = lab.launcher(peer)
    first, second = peer.identity.nodes
    drained = replace_struct(marker(host), task_nodes=(first, second))
    lab.clock.after(10, lambda: host.board.write_drained(drained))
    lab.clock.after(50, lambda: launcher.write_exit(first, 1))
    began = lab.clock.monotonic()
    assert Peer(peer).run() is ExitCode.DONE
    assert launcher.said == ["stop"]
    assert lab.clock.monotonic() - began < 55, "the others are not given the drain time to notice"
    assert left(lab, 1) is not None


def test_a_launcher_that_ends_well_on_a_drained_node_is_not_taken_for_one_that_left(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: task_zero.board.write_drained(marker(task_zero)))
    lab.clock.after(50, lambda: launcher.exit(0))
    lab.clock.after(70, lambda: task_zero.board.close(Outcome.COMPLETED, exit_code=0, evidence=(), leases={}))
    began = lab.clock.monotonic()
    assert Peer(peer).run() is ExitCode.DONE
    assert lab.clock.monotonic() - began >= 70, "it waits for the verdict as ever"


def disbelieved(lab: Lab, task_zero: TaskContext) -> dict[str, Drained]:
    good = marker(task_zero)
    return {
        "other nodes": marker(task_zero, nodes=("n7",)),
        "another task": marker(task_zero, task=2),
        "an earlier generation": replace_struct(good, array_job_id=9),
        "an earlier life of this job id": replace_struct(good, pid=77),
        "not excluded": replace_struct(good, excluded=False),
        "returned": replace_struct(good, is_active=False),
        "an old answer": replace_struct(good, answer_age_seconds=3600.0),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "other nodes",
        "another task",
        "an earlier generation",
        "an earlier life of this job id",
        "not excluded",
        "returned",
        "an old answer",
    ],
)
def test_a_marker_that_does_not_fit_drains_nobody_and_is_said_once(
    lab: Lab, task_zero: TaskContext, stopping_peer: TaskContext, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = lab.launcher(stopping_peer)
    stale = disbelieved(lab, task_zero)[kind]
    # Under the name that this task reads, whatever it says.
    write_atomic(lab.directory(1).drained(1), encode_record(stale))
    lab.clock.after(200, lambda: task_zero.board.close(Outcome.COMPLETED, exit_code=0, evidence=(), leases={}))
    assert Peer(stopping_peer).run() is ExitCode.DONE
    assert launcher.said == ["stop gentle"]
    said = sum("drain marker is not believed" in record.getMessage() for record in caplog.records)
    assert said == (0 if kind in ("not excluded", "returned") else 1)


@pytest.mark.parametrize("content", [b"", b"n2", b"{}", b"\xff\xfe", b"[" * 5000])
def test_a_marker_that_cannot_be_read_drains_nobody(
    lab: Lab, task_zero: TaskContext, stopping_peer: TaskContext, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lab.directory(1).drained(1).write_bytes(content)
    lab.clock.after(200, lambda: task_zero.board.close(Outcome.COMPLETED, exit_code=0, evidence=(), leases={}))
    assert Peer(stopping_peer).run() is ExitCode.DONE
    assert lab.launcher(stopping_peer).said == ["stop gentle"]
    assert sum("drain marker is not believed" in record.getMessage() for record in caplog.records) == 1


def test_a_marker_that_is_not_renewed_any_more_is_believed_no_longer(
    lab: Lab, task_zero: TaskContext, peer: TaskContext, launcher: FakeLauncher
) -> None:
    task_zero.board.write_drained(replace_struct(marker(task_zero, excluded=False), poll_seconds=1.0))
    lab.clock.after(130, lambda: task_zero.board.write_drained(replace_struct(marker(task_zero), poll_seconds=1.0)))
    lab.clock.after(131, lambda: launcher.exit(1))
    assert Peer(peer).run() is ExitCode.FAILED


def test_a_drained_spare_leaves_at_the_gate_and_frees_its_slot(lab: Lab, task_zero: TaskContext) -> None:
    spare = lab.arrive(1, 2)
    drained = replace_struct(marker(task_zero, task=2, nodes=("n3",)), poll=4)
    rendezvous.publish(task_zero, started=True, members=(0, 1), present=(0, 1, 2))
    lab.clock.after(20, lambda: task_zero.board.write_drained(drained))
    began = lab.clock.monotonic()
    assert Peer(spare).run() is ExitCode.DONE
    assert lab.clock.monotonic() - began < 22
    assert (1, 2) not in lab.launchers
    assert left(lab, 2) is not None
