from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.parse.sinfo import count_gpus, node_arguments, parse_gpus, parse_nodes
from nvrx_chain.slurm.states import NodeState
from tests.unit.slurm import recorded
from tests.unit.slurm.recorded import SEPARATOR_OF_ODD_NAMES, VERSIONS, read_recorded


@pytest.mark.parametrize("version", VERSIONS)
def test_a_silent_node_is_allocated_and_not_responding(version: str) -> None:
    text = read_recorded(version, "node-not-responding", "sinfo-reason")
    nodes = parse_nodes(text, "|", recorded.NODE_COLUMNS).nodes
    assert sorted(nodes) == [f"n{index}" for index in range(1, 9)]
    assert (nodes["n1"].state, nodes["n1"].responding) == (NodeState.ALLOCATED, False)
    assert (nodes["n2"].state, nodes["n2"].responding, nodes["n2"].reason) == (NodeState.ALLOCATED, True, "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_that_was_given_up_is_down_and_says_why(version: str) -> None:
    nodes = parse_nodes(read_recorded(version, "node-fail", "sinfo-reason"), "|", recorded.NODE_COLUMNS).nodes
    assert (nodes["n1"].state, nodes["n1"].raw_state, nodes["n1"].reason) == (NodeState.DOWN, "down*", "Not responding")


def test_a_node_of_two_partitions_is_one_node() -> None:
    row = "n1|idle|Unknown|Unknown|none\n"
    parsed = parse_nodes(f"{row}{row}n2|down*|root(0)|2026-08-03T01:02:03|bad|disk\n", "|")
    assert sorted(parsed.nodes) == ["n1", "n2"]
    assert parsed.nodes["n2"].reason == "bad|disk"


def test_who_gave_a_reason_and_when_is_told_and_nobody_is_nobody() -> None:
    text = "n1|idle|Unknown|Unknown|none\nn2|draining|alice|2026-08-03T01:02:03|bad disk\n"
    nodes = parse_nodes(text, "|").nodes
    assert (nodes["n1"].reason, nodes["n1"].reason_by, nodes["n1"].reason_at) == ("", "", None)
    at = datetime(2026, 8, 3, 1, 2, 3, tzinfo=timezone.utc)
    assert (nodes["n2"].reason, nodes["n2"].reason_by, nodes["n2"].reason_at) == ("bad disk", "alice", at)


def test_the_names_asked_for_are_folded() -> None:
    assert "--nodes=n[1-3]" in node_arguments("|", ["n1", "n2", "n3"])
    assert not [argument for argument in node_arguments("|", []) if argument.startswith("--nodes")]
    with pytest.raises(ValueError, match="no node name"):
        node_arguments("|", ["n1", "--help"])


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:8", 8),
        ("gpu:h100:8(S:0-1),nvme:1", 8),
        ("gpu:8(S:0,1),nvme:2", 8),
        ("gpu", 1),
        ("gpu:tesla", 1),
        ("gpu:a100:4,gpu:h100:4", 8),
        ("gpumem:80", 0),
        ("(null)", 0),
        ("", 0),
    ],
)
def test_gpus_are_counted(gres: str, count: int) -> None:
    assert count_gpus(gres) == count


def test_a_partition_has_what_each_of_its_nodes_has() -> None:
    assert parse_gpus("main|gpu:8\nmain|gpu:4\ncpu|(null)\n", "|") == {"main": 4, "cpu": 0}
    assert parse_gpus(read_recorded("22.05.8", "odd-names", "sinfo-gres"), SEPARATOR_OF_ODD_NAMES) == {
        "main": 8,
        "hid": 8,
    }


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    parse_nodes(text, "|")
    assert all(count >= 0 for count in parse_gpus(text, "|").values())
