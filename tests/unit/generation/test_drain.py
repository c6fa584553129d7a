"""Which tasks are drained, and which of them may go."""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.generation.drain import choose_excluded, find_drained
from nvrx_chain.records.control import DrainedNode
from nvrx_chain.slurm.model import Node
from nvrx_chain.slurm.states import NodeState

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
