"""Which tasks are drained, which may go, and which marker is believed: whatever is in doubt takes part."""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.generation.drain import choose_excluded, find_drained
from nvrx_chain.records.control import Drained, DrainedNode, Rendezvous
from nvrx_chain.records.drained import STALE_POLLS, Doubt, Reader, find_doubt, name_drained
from nvrx_chain.slurm.model import Node
from nvrx_chain.slurm.states import NodeState

POLL = 60.0
SINCE = datetime(2026, 8, 3, 1, 2, 3, tzinfo=timezone.utc)
tasks = st.integers(0, 40)


def node(name: str, state: NodeState, *, responding: bool = True) -> Node:
    raw = state.value.lower() + ("" if responding else "*")
    return Node(
        name=name,
        state=state,
        raw_state=raw,
        responding=responding,
        reason="bad disk",
        reason_by="root",
        reason_at=SINCE,
    )


def nodes(*found: Node) -> dict[str, Node]:
    return {each.name: each for each in found}


def test_one_drained_node_makes_its_whole_task_drained_and_only_that_node_is_named() -> None:
    seen = nodes(node("n1", NodeState.ALLOCATED), node("n2", NodeState.DRAINING), node("n3", NodeState.ALLOCATED))
    drained = find_drained({0: ("n1", "n2"), 1: ("n3",)}, seen)
    expected = DrainedNode(node="n2", state="draining", reason="bad disk", by="root", since="2026-08-03T01:02:03.000Z")
    assert list(drained) == [0]
    assert [each.node for each in drained[0]] == ["n2"]
    assert drained[0][0].since is not None
    assert drained[0][0].since.startswith("2026-08-03T01:02:03")
    assert msgspec.structs.replace(drained[0][0], since=expected.since) == expected


@pytest.mark.parametrize("state", [NodeState.DOWN, NodeState.ALLOCATED, NodeState.UNKNOWN, NodeState.MAINT])
def test_a_node_that_nobody_asked_for_is_not_drained(state: NodeState) -> None:
    assert find_drained({1: ("n2",)}, nodes(node("n2", state, responding=False))) == {}


def test_a_node_that_slurm_does_not_show_is_not_known_to_be_drained() -> None:
    assert find_drained({1: ("n2",), 2: ()}, {}) == {}


@given(live=st.sets(tasks), drained=st.sets(tasks), train_tasks=st.integers(1, 20))
def test_exclusions_never_leave_fewer_tasks_than_train_and_never_touch_task_0_or_a_healthy_one(
    live: set[int], drained: set[int], train_tasks: int
) -> None:
    excluded = choose_excluded(live, drained, train_tasks)
    assert excluded <= drained & live - {0}
    assert not excluded or len(live - excluded) >= train_tasks
    # And no fewer than that allows.
    assert len(excluded) == min(len(drained & live - {0}), max(0, len(live) - train_tasks))


@given(live=st.sets(tasks), drained=st.sets(tasks), train_tasks=st.integers(1, 20), lost=tasks)
def test_a_spare_that_is_lost_never_adds_an_exclusion(
    live: set[int], drained: set[int], train_tasks: int, lost: int
) -> None:
    before, after = (choose_excluded(seen, drained, train_tasks) for seen in (live, live - {lost}))
    assert len(after) <= len(before)


def test_a_drained_spare_goes_before_a_training_task_that_it_could_not_help() -> None:
    assert choose_excluded({0, 1, 2}, {1, 2}, 2) == {2}
    assert choose_excluded({0, 1, 3}, {1}, 2) == {1}
    assert choose_excluded({0, 1}, {1}, 2) == frozenset()


# The marker, read by task 1 on n2.

RENDEZVOUS = Rendezvous(
    array_job_id=7,
    array_task_id=0,
    restart_count=0,
    host="n1",
    boot_id="boot",
    pid=100,
    pid_started_at=7,
    rendezvous_host="n1",
    rendezvous_port=20001,
    nonce="ab",
    secret="cd",
    published_at="2026-08-03T01:00:00Z",
    started_at="2026-08-03T01:00:01Z",
    members=(0, 1),
    present=(0, 1),
)
READER = Reader(task=1, nodes=("n2",), rendezvous=RENDEZVOUS)
MARKER = Drained(
    array_job_id=7,
    array_task_id=0,
    restart_count=0,
    host="n1",
    boot_id="boot",
    pid=100,
    pid_started_at=7,
    task=1,
    task_nodes=("n2",),
    drained_nodes=(DrainedNode(node="n2", state="draining", reason="bad disk", by="root", since=None),),
    is_active=True,
    excluded=True,
    seen_at="2026-08-03T01:02:03Z",
    returned_at=None,
    poll=3,
    poll_seconds=POLL,
    answer_age_seconds=0.0,
)
LIMIT = STALE_POLLS * POLL


@pytest.mark.parametrize(
    ("changes", "still_seconds", "doubt"),
    [
        ({}, 0.0, None),
        ({}, LIMIT, None),
        ({"answer_age_seconds": LIMIT}, 0.0, None),
        ({"task": 2}, 0.0, Doubt.OTHER_TASK),
        ({"task_nodes": ("n4",)}, 0.0, Doubt.OTHER_NODES),
        ({"task_nodes": ("n2", "n4")}, 0.0, Doubt.OTHER_NODES),
        ({"task_nodes": ()}, 0.0, Doubt.OTHER_NODES),
        ({"pid": 101}, 0.0, Doubt.OTHER_HOST),
        ({"pid_started_at": 8}, 0.0, Doubt.OTHER_HOST),
        ({"boot_id": "another"}, 0.0, Doubt.OTHER_HOST),
        ({}, LIMIT + 1, Doubt.STALE),
        ({"answer_age_seconds": LIMIT + 1}, 0.0, Doubt.STALE),
        ({"answer_age_seconds": float("nan")}, 0.0, Doubt.STALE),
    ],
)
def test_a_marker_is_believed_only_where_everything_fits(
    changes: dict[str, object], still_seconds: float, doubt: Doubt | None
) -> None:
    assert find_doubt(msgspec.structs.replace(MARKER, **changes), READER, still_seconds) is doubt


def test_however_often_slurm_is_asked_a_marker_is_believed_for_as_long_as_ranks_take_to_end() -> None:
    often = msgspec.structs.replace(MARKER, poll_seconds=1.0)
    assert find_doubt(often, READER, 120.0) is None
    assert find_doubt(often, READER, 121.0) is Doubt.STALE


def test_before_a_rendezvous_is_seen_no_marker_is_believed() -> None:
    assert find_doubt(MARKER, Reader(task=1, nodes=("n2",), rendezvous=None), 0.0) is Doubt.OTHER_HOST


def test_a_drained_node_is_named_with_all_that_slurm_says_of_it() -> None:
    named = DrainedNode(node="n2", state="draining", reason="xid 79", by="root", since="2026-08-03T01:02:03Z")
    assert name_drained([named]) == 'n2 (draining since 2026-08-03T01:02:03Z, "xid 79" by root)'
    bare = DrainedNode(node="n3", state="drained", reason="", by="", since=None)
    assert name_drained([bare, bare]) == "n3 (drained, no reason), n3 (drained, no reason)"
