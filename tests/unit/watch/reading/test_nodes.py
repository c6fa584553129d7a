"""Node lists cut from tables give what ClusterShell gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.nodelist import expand_nodes, fold_nodes
from nvrx_watch.reading.nodes import NodeLists

number = st.one_of(st.integers(0, 300).map(str), st.integers(0, 300).map("{:03d}".format))
piece = st.one_of(number, st.tuples(number, number).map("-".join))
bracket = st.lists(piece, min_size=1, max_size=4).map(lambda pieces: f"[{','.join(pieces)}]")
part = st.one_of(
    st.sampled_from(["login", "n1", "gpu-a"]),
    st.tuples(st.sampled_from(["n", "gpu-a", "r1c2n"]), bracket).map("".join),
)
node_list = st.lists(part, max_size=3).map(",".join)


def names_or_error(text: str) -> tuple[str, ...] | None:
    try:
        return expand_nodes(text)
    except ValueError:
        return None


@given(st.one_of(node_list, st.text(alphabet="n01-9[],x. ", max_size=20)))
def test_both_ways_to_expand_give_the_same_names(text: str) -> None:
    lists = NodeLists()
    expected = names_or_error(text)
    if expected is None:
        with pytest.raises(ValueError):
            lists[text]
    else:
        assert lists[text] == expected


@given(st.sets(st.integers(1, 500), min_size=1).map(lambda found: [f"n{index:04d}" for index in sorted(found)]))
def test_what_is_folded_is_cut_from_tables_without_clustershell(names: list[str]) -> None:
    assert NodeLists()._cut(fold_nodes(names)) == tuple(names)


def test_equal_lists_are_one_tuple_and_equal_names_one_string() -> None:
    lists = NodeLists()
    first, second = lists["n[001-064]"], lists["n[002-065]"]
    assert lists["n[001-064]"] is first
    assert first[1] is second[0]


def test_a_list_of_a_billion_nodes_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="more than 100000 nodes"):
        NodeLists()["n[1-999999999]"]


def test_many_big_lists_together_are_refused() -> None:
    lists = NodeLists(most_held=1000)
    for first in range(10):
        lists[f"n[{first}-{first + 99}]"]
    with pytest.raises(ValueError, match="too many nodes"):
        lists["n[500-501]"]
    assert len(lists["n[0-99]"]) == 100
