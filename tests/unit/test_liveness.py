"""The one rule by which anybody may take something away from a task."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import Unobserved
from nvrx_chain.liveness import (
    Judgement,
    LeaseWatch,
    Life,
    fenced_after_seconds,
    is_unreachable,
    judge_task,
    lease_is_stale,
    self_fence_seconds,
    stillness_seconds,
)
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.states import JobState, NodeState

INTERVAL = 5.0
LONG = 60.0

TERMINAL = [
    JobState.BOOT_FAIL,
    JobState.CANCELLED,
    JobState.COMPLETED,
    JobState.DEADLINE,
    JobState.FAILED,
    JobState.NODE_FAIL,
    JobState.OUT_OF_MEMORY,
    JobState.PREEMPTED,
    JobState.TIMEOUT,
]
"""Written out once more: a state added to the closed list in the code must be noticed here."""


def row(state: JobState = JobState.RUNNING) -> QueuedTask:
    return QueuedTask(
        job_id=11,
        array_job_id=10,
        array_task_id=0,
        is_array=True,
        state=state,
        raw_state=state.value,
        reason="None",
        nodelist="n1",
        partition="main",
        dependency="",
        user="alice",
        submitted_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
        started_at=None,
        comment="",
        name="train",
    )


def node(state: NodeState = NodeState.ALLOCATED, *, responding: bool = True) -> Node:
    raw = state.value.lower() + ("" if responding else "*")
    return Node(name="n1", state=state, raw_state=raw, responding=responding, reason="")


SILENT = node(responding=False)


def judge(
    task: QueuedTask | Unobserved | None,
    where: Node | Unobserved | None,
    before: int | Unobserved | None = 7,
    after: int | Unobserved | None = 7,
    still: float = LONG,
    interval: float = INTERVAL,
) -> Judgement:
    return judge_task(task, where, before, after, still_seconds=still, interval_seconds=interval)


@pytest.mark.parametrize("state", TERMINAL)
def test_a_terminal_state_is_proof_whatever_the_node_and_the_lease_say(state: JobState) -> None:
    for where in (node(), SILENT, None, Unobserved("no sinfo")):
        judgement = judge(row(state), where, 7, 8)
        assert judgement.life is Life.DEAD
        assert state.value in judgement.evidence


@pytest.mark.parametrize("state", [state for state in JobState if state not in TERMINAL])
def test_every_other_state_is_alive_on_a_node_that_answers(state: JobState) -> None:
    assert judge(row(state), node()).life is Life.ALIVE
    assert judge(row(state), None).life is Life.ALIVE


@pytest.mark.parametrize(
    "state", [JobState.SUSPENDED, JobState.STOPPED, JobState.SIGNALING, JobState.UNKNOWN, JobState.COMPLETING]
)
def test_suspended_stopped_signaling_and_unlisted_states_are_alive(state: JobState) -> None:
    assert judge(row(state), node(), 7, 7, still=10_000).life is Life.ALIVE


@pytest.mark.parametrize("state", [state for state in JobState if state.is_pending])
def test_a_pending_task_is_alive_even_beside_a_dead_node(state: JobState) -> None:
    assert judge(row(state), SILENT).life is Life.ALIVE


@pytest.mark.parametrize("where", [SILENT, node(NodeState.DOWN), node(NodeState.DOWN, responding=False)])
def test_a_silent_node_with_a_lease_that_stands_still_is_proof(where: Node) -> None:
    judgement = judge(row(), where)
    assert judgement.life is Life.DEAD
    assert "n1" in judgement.evidence


@pytest.mark.parametrize(
    "state", [state for state in NodeState if state is not NodeState.DOWN], ids=lambda state: state.value
)
def test_a_node_that_answers_and_is_not_down_is_reachable(state: NodeState) -> None:
    assert not is_unreachable(node(state))
    assert is_unreachable(node(state, responding=False))


def test_a_lease_that_moves_outweighs_a_silent_node() -> None:
    assert judge(row(), SILENT, 7, 8).life is Life.ALIVE
    assert judge(row(), SILENT, None, 1).life is Life.ALIVE
    assert judge(row(), SILENT, 7, None).life is Life.ALIVE


def test_two_reads_within_one_interval_prove_nothing() -> None:
    assert judge(row(), SILENT, still=stillness_seconds(INTERVAL) - 0.1).life is Life.UNKNOWN
    assert judge(row(), SILENT, still=stillness_seconds(INTERVAL)).life is Life.DEAD
    assert judge(row(), SILENT, still=LONG, interval=50.0).life is Life.UNKNOWN


def test_a_lease_that_was_never_written_cannot_have_moved() -> None:
    assert judge(row(), SILENT, None, None).life is Life.DEAD


def test_a_lease_that_cannot_be_read_is_no_lease_that_stands_still() -> None:
    stale = Unobserved("stale file handle")
    assert judge(row(), SILENT, stale, stale).life is Life.UNKNOWN
    assert judge(row(), SILENT, 7, stale).life is Life.UNKNOWN
    assert judge(row(), SILENT, stale, 7).life is Life.UNKNOWN


@pytest.mark.parametrize("still", [0.0, LONG, 1e9])
def test_an_old_lease_alone_is_never_evidence(still: float) -> None:
    assert judge(row(), node(), 7, 7, still=still).life is Life.ALIVE
    assert judge(row(), None, 7, 7, still=still).life is Life.ALIVE


def test_a_slurm_that_does_not_answer_leaves_everything_unknown() -> None:
    assert judge(Unobserved("squeue timed out"), SILENT).life is Life.UNKNOWN
    assert judge(None, SILENT).life is Life.UNKNOWN
    assert judge(row(), Unobserved("sinfo timed out")).life is Life.UNKNOWN


leases = st.one_of(st.none(), st.integers(0, 3), st.just(Unobserved("stale")))
rows = st.one_of(st.none(), st.just(Unobserved("no squeue")), st.sampled_from(JobState).map(row))
nodes = st.one_of(
    st.none(),
    st.just(Unobserved("no sinfo")),
    st.builds(lambda state, responding: node(state, responding=responding), st.sampled_from(NodeState), st.booleans()),
)


@given(task=rows, where=nodes, before=leases, after=leases, still=st.floats(0, 1000), interval=st.floats(0.1, 100))
def test_nobody_is_dead_without_a_terminal_state_or_a_silent_node_and_a_still_lease(
    task: QueuedTask | Unobserved | None,
    where: Node | Unobserved | None,
    before: int | Unobserved | None,
    after: int | Unobserved | None,
    still: float,
    interval: float,
) -> None:
    judgement = judge(task, where, before, after, still, interval)
    assert judgement.evidence
    if judgement.life is not Life.DEAD:
        return
    assert isinstance(task, QueuedTask)
    if task.state in TERMINAL:
        return
    assert isinstance(where, Node)
    assert where.state is NodeState.DOWN or not where.responding
    assert before == after
    assert not isinstance(before, Unobserved)
    assert still >= 2 * interval


# Leases


def test_a_lease_that_was_never_seen_has_no_age() -> None:
    watch = LeaseWatch()
    assert watch.still_seconds(0, 100.0) is None
    assert watch.counter(0) is None
    assert watch.interval(0) is None
    assert not lease_is_stale(None, None, 30.0)


def test_the_first_sight_of_a_lease_is_fresh_however_old_it_is() -> None:
    watch = LeaseWatch()
    watch.observe({0: (7, 5.0)}, 100.0)
    assert watch.still_seconds(0, 100.0) == 0.0


def test_only_a_change_of_the_counter_makes_a_lease_fresh() -> None:
    watch = LeaseWatch()
    watch.observe({0: (7, 5.0), 3: (1, 5.0)}, 0.0)
    watch.observe({0: (7, 5.0), 3: (2, 5.0)}, 10.0)
    watch.observe({0: (7, 5.0)}, 20.0)
    assert watch.still_seconds(0, 20.0) == 20.0
    assert watch.still_seconds(3, 20.0) == 10.0
    assert watch.tasks() == (0, 3)
    watch.observe({0: (6, 5.0)}, 30.0)
    assert watch.still_seconds(0, 30.0) == 0.0


def test_a_read_that_hung_never_makes_a_lease_look_older_than_the_read() -> None:
    watch = LeaseWatch()
    # Asked at 0, answered at 60: the counter may have been written at 59.
    watch.observe({0: (7, 5.0)}, 60.0)
    assert watch.still_seconds(0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("still", "interval", "stale"),
    [(29.9, 5.0, False), (30.0, 5.0, True), (30.0, 50.0, False), (199.9, 50.0, False), (200.0, 50.0, True)],
)
def test_a_lease_is_stale_after_the_timeout_and_never_within_four_intervals(
    still: float, interval: float, stale: bool
) -> None:
    assert lease_is_stale(still, interval, 30.0) is stale


@given(
    interval=st.floats(0.1, 100),
    fence=st.floats(1, 100),
    drain=st.floats(0, 100),
    margin=st.floats(0, 100),
)
def test_who_waits_for_a_fence_waits_longer_than_the_fence_and_the_drain_take(
    interval: float, fence: float, drain: float, margin: float
) -> None:
    own = self_fence_seconds(interval, fence)
    assert own >= fence
    assert own >= 4 * interval
    assert fenced_after_seconds(interval, fence, drain, margin) >= own + drain
