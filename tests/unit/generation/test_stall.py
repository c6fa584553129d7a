"""Is the stall everybody's? Only when nobody who could draw conclusions is able to look, and Slurm says that we run."""

from __future__ import annotations

import contextlib
import dataclasses
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.link import LEAST_BLIND_SECONDS, NEVER, HostLink, PeerLink, Report
from nvrx_chain.generation.stall import (
    AGAIN_SECONDS,
    REPORT_SECONDS,
    SLACK_SECONDS,
    StallWatch,
    running_beside,
    shared_since,
)
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.slurm.states import JobState
from tests.fakes.generation_lab import HeldWork, Lab, freeze, thaw

NOW = 1000.0


def report(unread: float, ago: float = 1.0) -> Report:
    return Report(heard_at=NOW - ago, unread_seconds=unread)


def judge(reports: dict[int, Report], stalled: float = 10.0, running: tuple[int, ...] = (1, 2)) -> float | None:
    return shared_since(frozenset(running), reports, stalled_seconds=stalled, asked_at=NOW - 2, now=NOW)


def test_a_stall_is_shared_when_every_running_task_has_been_blind_as_long() -> None:
    assert judge({1: report(10), 2: report(11)}) == NOW - 2
    assert judge({1: report(10), 2: report(11, ago=5)}) == NOW - 5, "it is known no better than by the oldest word"


@pytest.mark.parametrize(
    "reports",
    [
        {1: report(10)},
        {1: report(10), 2: report(0.5)},
        {1: report(10), 2: report(10 - 1 - SLACK_SECONDS - 0.1)},
        {1: report(10), 2: report(30, ago=REPORT_SECONDS + 0.1)},
    ],
    ids=["one says nothing", "one reads", "one was blind later", "an old word"],
)
def test_a_stall_is_not_shared_while_one_may_look(reports: dict[int, Report]) -> None:
    assert judge(reports) is None


def test_who_does_not_run_need_not_speak() -> None:
    assert judge({}, running=()) == NOW - 2
    assert judge({1: report(10), 7: report(0.1)}, running=(1,)) == NOW - 2


@given(
    unread=st.dictionaries(st.integers(1, 4), st.tuples(st.floats(0, 50), st.floats(0, 20)), max_size=4),
    stalled=st.floats(0, 60),
)
def test_whoever_read_after_our_stall_began_denies_the_excuse(
    unread: dict[int, tuple[float, float]], stalled: float
) -> None:
    reports = {task: report(blind, ago) for task, (blind, ago) in unread.items()}
    known = judge(reports, stalled=stalled, running=(1, 2, 3, 4))
    if known is not None:
        began = NOW - stalled
        for each in reports.values():
            assert each.heard_at - each.unread_seconds <= began + SLACK_SECONDS + 1e-6
            assert known <= each.heard_at


@pytest.fixture
def link(lab: Lab) -> HostLink:
    return HostLink(lab.clock, "secret")


@pytest.fixture
def task_zero(lab: Lab) -> TaskContext:
    context = lab.arrive(1, 0)
    for task in (1, 2):
        lab.arrive(1, task)
    return context


def say(lab: Lab, link: HostLink, unread: float, *tasks: int) -> None:
    for task in tasks:
        link._reports[task] = Report(heard_at=lab.clock.monotonic(), unread_seconds=unread)


def stall(
    lab: Lab, context: TaskContext, link: HostLink, watch: StallWatch, seconds: float, blind: bool = True
) -> None:
    """Let time pass with a lease that cannot be written; the peers speak every second."""
    for _ in range(int(seconds)):
        lab.clock.advance(1)
        say(lab, link, context.lease.seconds_since_written() if blind else 1.0, 1, 2)
        watch.tick()


def test_a_shared_stall_is_excused_again_and_again(lab: Lab, task_zero: TaskContext, link: HostLink) -> None:
    watch = StallWatch(task_zero, link)
    freeze(task_zero)
    stall(lab, task_zero, link, watch, 9)
    assert link.excused_seconds() == NEVER, "a lease that is due is no stall"
    stall(lab, task_zero, link, watch, 81)
    assert link.excused_seconds() <= AGAIN_SECONDS + 1
    thaw(task_zero)
    lab.slurm.always("queue", Unobserved("must not be asked while all is well"))
    stall(lab, task_zero, link, watch, 20)
    assert watch._work.take() is None


def test_a_stall_of_our_own_is_never_excused(lab: Lab, task_zero: TaskContext, link: HostLink) -> None:
    watch = StallWatch(task_zero, link)
    freeze(task_zero)
    stall(lab, task_zero, link, watch, 60, blind=False)
    assert link.excused_seconds() == NEVER


def test_without_slurms_word_nothing_is_excused(lab: Lab, task_zero: TaskContext, link: HostLink) -> None:
    watch = StallWatch(task_zero, link)
    freeze(task_zero)
    lab.slurm.always("queue", Unobserved("away"))
    stall(lab, task_zero, link, watch, 60)
    assert link.excused_seconds() == NEVER


def test_a_task_that_slurm_ends_is_not_excused(lab: Lab, task_zero: TaskContext, link: HostLink) -> None:
    watch = StallWatch(task_zero, link)
    freeze(task_zero)
    lab.slurm.force_state("1_0", JobState.COMPLETING)
    stall(lab, task_zero, link, watch, 60)
    assert link.excused_seconds() == NEVER


def test_a_spare_that_started_and_says_nothing_denies_the_excuse(
    lab: Lab, task_zero: TaskContext, link: HostLink
) -> None:
    watch = StallWatch(task_zero, link)
    freeze(task_zero)
    lab.slurm.force_state("1_3", JobState.RUNNING)
    stall(lab, task_zero, link, watch, 60)
    assert link.excused_seconds() == NEVER


def test_a_task_that_completes_counts_unless_it_said_that_it_left(lab: Lab, task_zero: TaskContext) -> None:
    reading = lab.slurm.queue()
    assert isinstance(reading, QueueReading)
    rows = tuple(
        dataclasses.replace(row, state=JobState.COMPLETING) if row.spec == "1_2" else row for row in reading.tasks
    )
    completing = dataclasses.replace(reading, tasks=rows)
    identity = task_zero.chain_identity()
    assert running_beside(completing, identity, 1, 0) == {1, 2}
    assert running_beside(completing, identity, 1, 0, left=frozenset({2})) == {1}
    # One that runs is heard whatever it wrote.
    assert running_beside(reading, identity, 1, 0, left=frozenset({2})) == {1, 2}


def test_the_stillness_that_a_closer_writes_down_ends_with_the_last_excuse(
    lab: Lab, task_zero: TaskContext, link: HostLink
) -> None:
    closer = dataclasses.replace(lab.context(1, 1), link=link)
    freeze(task_zero)
    for _ in range(60):
        lab.clock.advance(1)
        closer.watcher.latest()
    assert closer.leases_seen()[0].still_seconds >= 50
    link.excuse(lab.clock.monotonic() - 7)
    assert closer.leases_seen()[0].still_seconds == 7


def test_an_excuse_that_a_blind_peer_may_not_have_heard_of_ends_its_stillness_too(
    lab: Lab, task_zero: TaskContext
) -> None:
    peer = PeerLink(lab.clock, 1, 2.0, find_host=lambda: None, unread=lambda: LEAST_BLIND_SECONDS)
    closer = dataclasses.replace(lab.context(1, 1), link=peer)
    freeze(task_zero)
    for _ in range(60):
        lab.clock.advance(1)
        closer.watcher.latest()
    assert closer.leases_seen()[0].still_seconds >= 50
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.suppress(ConnectionError):
        # The word goes out, and the link breaks before an answer.
        peer._exchange(ours, lambda _: b"", "secret", "nonce")
    lab.clock.advance(6)
    assert peer.excused_seconds() == NEVER
    assert closer.leases_seen()[0].still_seconds == 6


def test_a_later_generation_that_runs_denies_the_excuse(lab: Lab, task_zero: TaskContext, link: HostLink) -> None:
    watch = StallWatch(task_zero, link)
    freeze(task_zero)
    lab.slurm.force_state("5_0", JobState.RUNNING)
    stall(lab, task_zero, link, watch, 60)
    assert link.excused_seconds() == NEVER


def test_a_slurm_that_hangs_leaves_the_loop_alone(lab: Lab, link: HostLink) -> None:
    held = HeldWork()
    context = lab.arrive(1, 0, spawn=held)
    watch = StallWatch(context, link)
    freeze(context)
    stall(lab, context, link, watch, 60)
    assert held.names == ["look at a stall"]
    assert link.excused_seconds() == NEVER


def test_the_directory_is_not_read_to_judge_a_stall(lab: Lab, task_zero: TaskContext, link: HostLink) -> None:
    watch = StallWatch(task_zero, link)
    freeze(task_zero)
    lab.run.submissions.rename(lab.run.submissions.with_name("away"))
    stall(lab, task_zero, link, watch, 30)
    assert link.excused_seconds() <= AGAIN_SECONDS + 1
