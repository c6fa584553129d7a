"""Asking Slurm whether a task is dead: what is proof, who asks, how often."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, cast

import pytest

from nvrx_chain.errors import SlurmAmbiguous, Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.inquiry import ASKING, HostQuestion, Inquirer, inquire
from nvrx_chain.liveness import Judgement, Life
from nvrx_chain.records.control import Inquiry
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_slurm import FakeSlurm
from tests.fakes.generation_lab import HeldWork, Lab, freeze, read, shape, thaw


def watch(context: TaskContext, seconds: float) -> None:
    """Let time pass while this task watches the board."""
    context.watcher.latest()
    context.clock.wait(context.signals.wake, seconds)
    context.watcher.latest()


@pytest.fixture
def task_zero(lab: Lab) -> TaskContext:
    return lab.arrive(1, 0)


@pytest.fixture
def peer(lab: Lab, task_zero: TaskContext) -> TaskContext:
    return lab.arrive(1, 1)


def test_a_task_that_slurm_ended_is_dead(lab: Lab, peer: TaskContext) -> None:
    lab.slurm.finish("1_0", 1)
    judgement = inquire(peer, 0)
    assert judgement.life is Life.DEAD
    assert "FAILED" in judgement.evidence
    assert lab.slurm.asked("nudge") == []


def test_a_lost_node_is_found_by_a_nudge_long_before_slurm_notices(
    lab: Lab, task_zero: TaskContext, peer: TaskContext
) -> None:
    lab.slurm.lose_node("n1")
    freeze(task_zero)
    watch(peer, 30)
    began = lab.clock.monotonic()
    judgement = inquire(peer, 0)
    assert judgement.life is Life.DEAD
    assert "n1" in judgement.evidence
    assert lab.clock.monotonic() - began <= 16
    assert [call.arguments for call in lab.slurm.asked("nudge")] == [("1_0",)]


def test_a_frozen_slurmd_under_a_living_task_kills_nobody(lab: Lab, peer: TaskContext) -> None:
    # The node is marked, and two reads of the lease a moment apart show the same counter: the task trains on.
    lab.slurm.lose_node("n1")
    lab.clock.advance(250)
    nodes = lab.slurm.nodes(["n1"])
    assert not isinstance(nodes, Unobserved)
    assert not nodes["n1"].responding
    judgement = inquire(peer, 0)
    assert judgement.life is Life.ALIVE
    assert "moves" in judgement.evidence


def test_a_peer_that_just_came_watches_the_lease_for_two_intervals_before_it_calls_the_host_dead(
    lab: Lab, task_zero: TaskContext
) -> None:
    lab.slurm.lose_node("n1")
    freeze(task_zero)
    lab.clock.advance(250)
    late = lab.arrive(1, 2)
    began = lab.clock.monotonic()
    assert inquire(late, 0).life is Life.DEAD
    assert 10 <= lab.clock.monotonic() - began <= 20


def test_what_the_watcher_saw_stand_still_need_not_be_watched_again(
    lab: Lab, task_zero: TaskContext, peer: TaskContext
) -> None:
    lab.slurm.lose_node("n1")
    freeze(task_zero)
    watch(peer, 250)
    began = lab.clock.monotonic()
    assert inquire(peer, 0).life is Life.DEAD
    assert lab.clock.monotonic() == began
    assert lab.slurm.asked("nudge") == []


def test_a_frozen_task_on_a_node_that_answers_is_alive_after_the_probe_time(
    lab: Lab, task_zero: TaskContext, peer: TaskContext
) -> None:
    freeze(task_zero)
    watch(peer, 200)
    began = lab.clock.monotonic()
    assert inquire(peer, 0).life is Life.ALIVE
    assert 45 <= lab.clock.monotonic() - began <= 49


def test_a_lease_that_moves_again_ends_the_probe(lab: Lab, task_zero: TaskContext, peer: TaskContext) -> None:
    freeze(task_zero)
    watch(peer, 40)
    lab.clock.after(7, lambda: thaw(task_zero))
    began = lab.clock.monotonic()
    assert inquire(peer, 0).life is Life.ALIVE
    assert lab.clock.monotonic() - began <= 9


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.STOPPED, JobState.SIGNALING, JobState.UNKNOWN])
def test_an_odd_state_is_alive(lab: Lab, task_zero: TaskContext, peer: TaskContext, state: JobState) -> None:
    freeze(task_zero)
    watch(peer, 200)
    lab.slurm.force_state("1_0", state)
    assert inquire(peer, 0).life is Life.ALIVE


def test_a_slurm_that_does_not_answer_is_unknown_and_is_asked_once(lab: Lab, peer: TaskContext) -> None:
    lab.slurm.always("queue", Unobserved("Unable to contact slurm controller"))
    judgement = inquire(peer, 0)
    assert judgement.life is Life.UNKNOWN
    assert "Unable to contact" in judgement.evidence
    assert len(lab.slurm.asked("queue")) == 1
    assert lab.slurm.asked("nudge") == []


def test_a_nudge_that_fails_is_no_proof_and_no_crash(lab: Lab, task_zero: TaskContext, peer: TaskContext) -> None:
    freeze(task_zero)
    watch(peer, 40)
    lab.slurm.always("nudge", SlurmAmbiguous("nudge"))
    assert inquire(peer, 0).life is Life.ALIVE


def test_a_job_of_somebody_else_under_the_same_id_is_no_answer(lab: Lab, peer: TaskContext) -> None:
    lab.record(1, 1, submitted_at="2025-06-01T00:00:00Z")
    lab.slurm.finish("1_0", 1)
    judgement = inquire(peer, 0)
    assert judgement.life is Life.UNKNOWN
    assert "another job" in judgement.evidence


def test_a_lease_that_cannot_be_read_is_unknown(lab: Lab, task_zero: TaskContext, peer: TaskContext) -> None:
    freeze(task_zero)
    lab.slurm.lose_node("n1")
    watch(peer, 250)
    path = lab.directory(1).lease(0)
    path.unlink()
    path.mkdir()
    assert inquire(peer, 0).life is Life.UNKNOWN


def test_the_answer_stands_in_the_inquiry_file(lab: Lab, peer: TaskContext) -> None:
    lab.slurm.finish("1_0", 1)
    inquire(peer, 0)
    noted = read(lab.directory(1).inquiry, Inquiry)
    assert (noted.array_task_id, noted.about, noted.answer) == (1, 0, Life.DEAD.value)


def test_a_note_that_cannot_be_written_keeps_nobody_from_asking(lab: Lab, peer: TaskContext) -> None:
    lab.slurm.finish("1_0", 1)
    lab.directory(1).inquiry.mkdir()
    assert inquire(peer, 0).life is Life.DEAD


def test_an_inquiry_cancels_nothing(lab: Lab, task_zero: TaskContext, peer: TaskContext) -> None:
    lab.slurm.lose_node("n1")
    freeze(task_zero)
    watch(peer, 60)
    assert inquire(peer, 0).life is Life.DEAD
    assert lab.slurm.asked("cancel") == []
    assert lab.slurm.task("1_0").state is JobState.RUNNING


# In the background


def test_the_loop_that_asks_is_not_held_up_by_a_slurm_that_hangs(lab: Lab, task_zero: TaskContext) -> None:
    hanging = HeldWork()
    inquirer = Inquirer(lab.arrive(1, 1, spawn=hanging))
    inquirer.ask(0)
    assert inquirer.busy
    assert inquirer.take() is None
    lab.slurm.finish("1_0", 1)
    hanging.release()
    taken = inquirer.take()
    assert taken is not None
    assert (taken[0], taken[1].life) == (0, Life.DEAD)
    assert not inquirer.busy
    assert inquirer.take() is None


class Crashing:
    """A client with a fault in every method."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"a fault in {name}")


def test_an_inquiry_that_crashes_is_unknown_and_not_waited_for(lab: Lab, peer: TaskContext) -> None:
    inquirer = Inquirer(dataclasses.replace(peer, client=cast(Any, Crashing())))
    inquirer.ask(0)
    taken = inquirer.take()
    assert taken is not None
    assert taken[1].life is Life.UNKNOWN
    assert "a fault in queue" in taken[1].evidence


# In turn


class Crowd:
    """Peers of one generation with a question each, driven in steps on one clock."""

    def __init__(self, lab: Lab, *tasks: int) -> None:
        self.lab = lab
        self.contexts = {task: lab.arrive(1, task) for task in tasks}
        for context in self.contexts.values():
            # Nobody reads the leases of the peers here, and writing them takes most of the time.
            freeze(context)
        self.questions = {task: HostQuestion(context) for task, context in self.contexts.items()}
        self.answers: list[tuple[float, int, Judgement]] = []

    def raise_all(self) -> None:
        for question in self.questions.values():
            question.raise_("the lease stood still")

    def step(self, seconds: float) -> None:
        """Let time pass; what one peer writes the others see only when a second has passed."""
        end = self.lab.clock.monotonic() + seconds
        watcher = next(iter(self.contexts.values())).watcher
        while self.lab.clock.monotonic() < end:
            snapshot = watcher.latest()
            for task, question in list(self.questions.items()):
                if self.lab.clock.monotonic() > snapshot.taken_at:
                    snapshot = watcher.latest()
                answer = question.tick(snapshot)
                if answer is not None:
                    self.answers.append((self.lab.clock.monotonic(), task, answer))
                if answer is not None and answer.life is Life.DEAD:
                    # It acts on that and asks no more.
                    del self.questions[task]
            self.lab.clock.advance(1.0)


@pytest.fixture
def big(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Twelve tasks that run."""
    nodes = [f"n{index}" for index in range(1, 13)]
    lab = Lab(
        tmp_path_factory.mktemp("big"),
        shape=shape(train=10, hot=2, cold=0),
        slurm=lambda clock: FakeSlurm(clock, user="alice", nodes=nodes),
    )
    lab.submit(2)
    return lab


def test_the_lowest_live_index_asks_first_and_the_others_hold_back(big: Lab) -> None:
    freeze(big.arrive(1, 0))
    crowd = Crowd(big, *range(1, 12))
    big.slurm.finish("1_0", 1)
    crowd.raise_all()
    crowd.step(10)
    assert [task for _, task, _ in crowd.answers] == [1]
    assert crowd.answers[0][2].life is Life.DEAD


def test_when_the_first_in_line_is_gone_the_next_one_asks_in_its_turn(big: Lab) -> None:
    freeze(big.arrive(1, 0))
    crowd = Crowd(big, *range(1, 12))
    big.slurm.finish("1_0", 1)
    crowd.raise_all()
    del crowd.questions[1], crowd.questions[2]
    began = big.clock.monotonic()
    crowd.step(10)
    assert [task for _, task, _ in crowd.answers] == [3]
    assert 6 <= crowd.answers[0][0] - began <= 8


def test_one_that_has_left_is_out_of_the_line(big: Lab) -> None:
    freeze(big.arrive(1, 0))
    crowd = Crowd(big, *range(1, 12))
    big.slurm.finish("1_0", 1)
    crowd.contexts[1].board.leave("gone")
    del crowd.questions[1]
    crowd.raise_all()
    began = big.clock.monotonic()
    crowd.step(5)
    assert [task for _, task, _ in crowd.answers] == [2]
    assert crowd.answers[0][0] - began <= 2


def test_a_crowd_of_peers_asks_a_silent_slurm_one_at_a_time_however_long_it_lasts(big: Lab) -> None:
    freeze(big.arrive(1, 0))
    crowd = Crowd(big, *range(1, 12))
    crowd.raise_all()
    big.slurm.always("queue", Unobserved("Unable to contact slurm controller"))
    crowd.step(240)
    assert {answer.life for _, _, answer in crowd.answers} == {Life.UNKNOWN}
    times = [at for at, _, _ in crowd.answers]
    # Two can meet when one of them asks again, three in about one of 300 draws of the pauses; never a crowd.
    assert all(later - earlier > 8 for earlier, later in zip(times, times[3:], strict=False))
    assert 5 <= len(big.slurm.asked("queue")) <= 20


def test_a_host_that_is_alive_but_frozen_is_asked_about_one_at_a_time(big: Lab) -> None:
    freeze(big.arrive(1, 0))
    crowd = Crowd(big, *range(1, 12))
    crowd.step(60)
    crowd.raise_all()
    crowd.step(200)
    assert {answer.life for _, _, answer in crowd.answers} == {Life.ALIVE}
    assert 1 <= len(big.slurm.asked("nudge")) <= 5


def test_an_inquiry_of_long_ago_holds_nobody_back(big: Lab) -> None:
    zero = big.arrive(1, 0)
    crowd = Crowd(big, 1, 2, 3)
    crowd.contexts[2].board.note_inquiry(0, Life.ALIVE.value, "long ago")
    crowd.step(60)
    freeze(zero)
    big.slurm.finish("1_0", 1)
    crowd.raise_all()
    began = big.clock.monotonic()
    crowd.step(2)
    assert [task for _, task, _ in crowd.answers] == [1]
    assert crowd.answers[0][0] - began <= 1


def test_while_somebody_else_asks_nobody_does(big: Lab) -> None:
    freeze(big.arrive(1, 0))
    crowd = Crowd(big, 1)
    big.slurm.finish("1_0", 1)
    other = big.arrive(1, 5)
    crowd.raise_all()
    for second in range(40):
        other.board.note_inquiry(0, ASKING, f"asking for {second} s")
        crowd.step(1)
    crowd.step(13)
    assert crowd.answers == []
    crowd.step(4)
    assert [task for _, task, _ in crowd.answers] == [1]


def test_a_question_that_is_dropped_is_not_asked(big: Lab) -> None:
    big.arrive(1, 0)
    crowd = Crowd(big, 1, 2, 3)
    crowd.questions[3].raise_("this task starts late")
    crowd.step(4)
    assert crowd.questions[3].raised_seconds() >= 4.0
    crowd.questions[3].drop()
    assert crowd.questions[3].raised_seconds() == 0.0
    crowd.step(30)
    assert big.slurm.asked("queue") == []


def test_one_peer_alone_asks_again_with_back_off(lab: Lab, peer: TaskContext) -> None:
    question, snapshot = HostQuestion(peer), peer.watcher.latest()
    freeze(peer)
    question.raise_("doubt")
    lab.slurm.always("queue", Unobserved("away"))
    times = []
    while lab.clock.monotonic() < 700:
        if question.tick(snapshot) is not None:
            times.append(lab.clock.monotonic())
        lab.clock.advance(1)
    apart = [after - before for before, after in itertools.pairwise(times)]
    assert len(apart) >= 5
    for found, planned in zip(apart, (15, 30, 60, 120, 120), strict=False):
        assert 0.8 * planned <= found <= 1.2 * planned + 3
