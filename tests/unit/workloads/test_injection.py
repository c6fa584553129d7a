"""The established knobs as text, and what they mean in a cycle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import UsageError
from nvrx_chain.workloads.faults import FaultKind, parse_fault
from nvrx_chain.workloads.injection import (
    NVRX_TYPES,
    NodeFailure,
    check_mock_gpt_types,
    faults_of_cycle,
    node_fails,
    parse_failures,
    parse_ranks,
    parse_types,
)

counts = st.integers(0, 10**6 - 1)


@given(st.lists(counts, min_size=1, unique=True))
def test_ranks_are_read_back(ranks: list[int]) -> None:
    assert parse_ranks(", ".join(map(str, ranks))) == tuple(ranks)


@given(st.lists(st.tuples(counts, counts), min_size=1))
def test_failures_of_nodes_are_read_back(pairs: list[tuple[int, int]]) -> None:
    failures = parse_failures(",".join(f"{cycle}:{node}" for cycle, node in pairs))
    assert failures == tuple(NodeFailure(cycle=cycle, node=node) for cycle, node in pairs)
    assert ",".join(map(str, failures)) == ",".join(f"{cycle}:{node}" for cycle, node in pairs)


@pytest.mark.parametrize("text", ["", ",", "1,", "-1", "1;2", "٣", "1.5", "0x1", "1,1", "9" * 10])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ranks(text)


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "1:0:2", "a:b", "-1:0", "1:0,", "1: 0", "1:0;2:0"])
def test_what_is_no_list_of_failures_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="CYCLE:NODE"):
        parse_failures(text)


def test_every_type_of_nvrx_is_known_in_either_case() -> None:
    assert parse_types(",".join(NVRX_TYPES)) == NVRX_TYPES
    assert parse_types(",".join(NVRX_TYPES).upper()) == NVRX_TYPES


@pytest.mark.parametrize("text", ["", "sigfoo", "sigkill,", "exit", "exit:300", "sigkill:9", "sigkill sigterm"])
def test_an_unknown_type_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_types(text)
    assert "gpu_error, gpu_sleep, workload_exc" in caught.value.message
    assert caught.value.hint is not None
    assert "exit:CODE" in caught.value.hint


def test_mock_gpt_does_all_that_need_no_gpu() -> None:
    possible = [name for name in NVRX_TYPES if not name.startswith("gpu_")]
    check_mock_gpt_types(tuple(possible))
    assert set(possible) <= {kind.value for kind in FaultKind}
    for name in ("gpu_error", "gpu_sleep"):
        with pytest.raises(UsageError, match=f"{name} needs a GPU"):
            check_mock_gpt_types((name,))


def test_all_ranks_fail_alike_in_every_cycle_and_types_take_turns() -> None:
    types = ("sigkill", "exit:93")
    assert faults_of_cycle((0, 3), 2.5, types, 0) == (
        parse_fault("rank=0,delay=2.5,kind=sigkill,repeat=always"),
        parse_fault("rank=3,delay=2.5,kind=sigkill,repeat=always"),
    )
    assert faults_of_cycle((0,), 2.5, types, 7) == (parse_fault("rank=0,delay=2.5,kind=exit:93,repeat=always"),)
    assert faults_of_cycle((), 2.5, (), 1) == ()


def test_a_node_fails_in_its_cycle_only() -> None:
    failures = parse_failures("1:0,2:4")
    assert node_fails(failures, cycle=1, node=0)
    assert node_fails(failures, cycle=2, node=4)
    assert not node_fails(failures, cycle=0, node=0)
    assert not node_fails(failures, cycle=1, node=4)
    assert not node_fails(failures, cycle=1, node=None)
