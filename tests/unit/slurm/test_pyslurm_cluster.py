"""PySlurm's nodes (recorded) and accounting (as documented) in our words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.pyslurm_cluster import convert_accounting, convert_nodes
from nvrx_chain.slurm.pyslurm_fields import ACCOUNTED_FIELDS, NODE_FIELDS
from nvrx_chain.slurm.states import JobState, NodeState
from tests.fakes.pyslurm_bench import recorded

ACCOUNTED = {
    "id": 9,
    "array_id": 7,
    "array_task_id": None,
    "name": "llama_pretrain",
    "user_id": 1001,
    "user_name": "alice",
    "cancelled_by": None,
    "state": "FAILED",
    "nodelist": "m1",
    "comment": None,
    "working_directory": "/shared/alice/run",
    "submit_time": 1796006027,
    "start_time": 1796006027,
    "end_time": 1796006027,
    "exit_code": 221,
    "exit_code_signal": 0,
    "steps": [
        {"id": "batch", "state": "FAILED", "exit_code": 221},
        {"id": 0, "state": "FAILED", "exit_code": 93},
        {"id": 1, "state": "RUNNING", "exit_code": 0},
    ],
}


@pytest.mark.parametrize("scene", ["running", "node-down", "all-pending"])
def test_recorded_nodes_are_read(scene: str) -> None:
    converted = convert_nodes(list(recorded(scene)["nodes"].values()))
    assert (sorted(converted.nodes), converted.junk) == (["m1", "m2", "m3", "m4"], ())
    assert all(node.responding for node in converted.nodes.values())


def test_the_recorded_node_that_is_down_is_down_with_its_reason() -> None:
    nodes = convert_nodes(list(recorded("node-down")["nodes"].values())).nodes
    assert (nodes["m4"].state, nodes["m4"].reason, nodes["m1"].state) == (NodeState.DOWN, "test", NodeState.IDLE)


def test_a_recorded_drained_node_is_drained() -> None:
    nodes = convert_nodes(list(recorded("all-pending")["nodes"].values())).nodes
    assert (nodes["m1"].state, nodes["m1"].raw_state) == (NodeState.DRAINED, "IDLE+DRAIN")


@pytest.mark.parametrize(
    ("raw", "state", "responding"),
    [
        ("ALLOCATED+DRAIN", NodeState.DRAINING, True),
        ("MIXED+DRAIN+NOT_RESPONDING", NodeState.DRAINING, False),
        ("DOWN+DRAIN", NodeState.DOWN, True),
        ("DOWN+NOT_RESPONDING", NodeState.DOWN, False),
        ("IDLE+FAIL", NodeState.FAIL, True),
        ("SOMETHING_NEW", NodeState.UNKNOWN, True),
        (None, NodeState.UNKNOWN, True),
    ],
)
def test_flags_of_a_node_are_read_and_what_is_not_known_is_not_down(
    raw: str | None, state: NodeState, responding: bool
) -> None:
    node = convert_nodes([{"name": "n1", "state": raw}]).nodes["n1"]
    assert (node.state, node.responding) == (state, responding)


def test_an_accounted_task_0_has_its_codes_whole_and_those_of_its_ended_numbered_steps() -> None:
    (task,) = convert_accounting([ACCOUNTED]).tasks
    assert (task.job_id, task.array_job_id, task.array_task_id, task.state) == (9, 7, 0, JobState.FAILED)
    assert (task.exit_code, task.step_exit_codes, task.work_dir) == (221, (93,), "/shared/alice/run")


@pytest.mark.parametrize(
    ("fields", "index"),
    [
        ({"array_task_id": 3}, 3),
        ({"nodelist": None}, None),
        ({"start_time": None}, None),
        ({"array_task_id": "x"}, None),
        ({"array_task_id": 4294967294}, None),
        ({"array_id": None, "nodelist": None}, None),
    ],
)
def test_an_accounted_task_without_index_is_task_0_only_when_it_ran(fields: dict[str, Any], index: int | None) -> None:
    (task,) = convert_accounting([{**ACCOUNTED, **fields}]).tasks
    assert task.array_task_id == index


def test_codes_of_what_has_not_ended_are_not_shown() -> None:
    (task,) = convert_accounting([{**ACCOUNTED, "state": "RUNNING", "exit_code": 0}]).tasks
    assert (task.exit_code, task.exit_signal) == (None, None)


_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none(), max_size=1)
)


@given(st.dictionaries(st.sampled_from((*ACCOUNTED_FIELDS, "steps")), _VALUES) | _VALUES)
def test_any_accounting_record_is_a_row_or_is_reported(record: object) -> None:
    converted = convert_accounting([record])
    assert len(converted.tasks) + len(converted.junk) == 1


@given(st.dictionaries(st.sampled_from(NODE_FIELDS), _VALUES) | _VALUES)
def test_any_node_record_is_a_node_or_is_reported(record: object) -> None:
    converted = convert_nodes([record])
    assert len(converted.nodes) + len(converted.junk) == 1
    assert not any(node.state.is_down for node in converted.nodes.values() if "DOWN" not in node.raw_state.upper())
