from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.nodelist import expand_nodes, fold_nodes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[01-03,7],login[1-2]x", ("n7", "n01", "n02", "n03", "login1x", "login2x")),
        ("zeta1,alpha[1-2]", ("zeta1", "alpha1", "alpha2")),
        ("rack[1-2]node[1-2]", ("rack1node1", "rack1node2", "rack2node1", "rack2node2")),
        ("gpu-a.example-7", ("gpu-a.example-7",)),
        ("n1,n1,n[1-2]", ("n1", "n2")),
    ],
)
def test_a_node_list_is_expanded_in_the_order_written(text: str, names: tuple[str, ...]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize("text", ["", " ", "(null)", "None assigned", "N/A", "None"])
def test_no_nodes_are_no_nodes(text: str) -> None:
    assert expand_nodes(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n[1-3",
        "n]1[",
        "n[5-1]",
        "n[a]",
        "n[]",
        "n1,,n2",
        "@group",
        "n*",
        "n1!n2",
        "n[1-3]^n2",
        "a b",
        "né",
        "n\0",
    ],
)
def test_text_that_is_no_node_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="node list"):
        expand_nodes(text)


@pytest.mark.parametrize("text", ["n[1-999999999]", "r[1-999]n[1-9999]", "n[" + "1" * 5000 + "]"])
def test_a_list_made_to_fill_the_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="node list"):
        expand_nodes(text)


@given(st.text(alphabet="n019-[],.x", max_size=25) | st.text(max_size=25))
def test_no_text_breaks_the_expansion(text: str) -> None:
    try:
        names = expand_nodes(text)
    except ValueError:
        return
    assert len(set(names)) == len(names)


_NAMES = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}",
    st.sampled_from(["n", "node-", "rack1n", "gpu.a"]),
    st.integers(0, 200),
    st.integers(1, 4),
)


@given(st.sets(_NAMES, max_size=30))
def test_what_is_folded_is_expanded_again(names: set[str]) -> None:
    assert set(expand_nodes(fold_nodes(names))) == names


@pytest.mark.parametrize("name", ["", "n[1-2]", "n1,n2", "@all", "--help me", "n1\n"])
def test_only_node_names_are_folded(name: str) -> None:
    with pytest.raises(ValueError, match="no node name"):
        fold_nodes(["n1", name])


def test_clustershell_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, nvrx_chain.slurm.command_client; sys.exit('ClusterShell' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
