"""The words before a rank that bind it to its NUMA node, as ft_launcher has them, and what is refused at the start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.numa import NumaBinding, make_numa_binding, require_numa


def test_ranks_are_bound_in_the_order_of_their_gpus() -> None:
    binding = NumaBinding(gpus_per_numa=4)
    assert binding.prefix(0) == ("numactl", "--cpunodebind=0", "--membind=0")
    assert binding.prefix(3) == ("numactl", "--cpunodebind=0", "--membind=0")
    assert binding.prefix(4) == ("numactl", "--cpunodebind=1", "--membind=1")
    assert NumaBinding(gpus_per_numa=1, strict=False).prefix(7) == ("numactl", "--cpunodebind=7", "--localalloc")


def test_the_words_run_the_rank_behind_them(tmp_path: Path) -> None:
    numactl = tmp_path / "numactl"
    numactl.write_text('#!/bin/sh\necho "numactl $1 $2"\nshift 2\nexec "$@"\n')
    numactl.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    require_numa(NumaBinding(gpus_per_numa=4), 8, environ, nodes=tmp_path / "none")
    argv = [*NumaBinding(gpus_per_numa=4).prefix(5), "echo", "rank"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=10, check=True)
    assert done.stdout == "numactl --cpunodebind=1 --membind=1\nrank\n"


@pytest.mark.parametrize(
    ("option", "variable", "count"),
    [(None, None, None), (None, "", None), (None, "2", 2), (4, "2", 4), ("8", None, 8)],
)
def test_the_option_overrules_the_variable(option: str | int | None, variable: str | None, count: int | None) -> None:
    environ = {} if variable is None else {"NVRX_GPUS_PER_NUMA": variable}
    binding = make_numa_binding(option, environ, strict=True)
    assert (binding.gpus_per_numa if binding else None) == count


@pytest.mark.parametrize("asked", ["0", "-1", "two", "1.5", 0])
def test_what_is_no_count_is_refused(asked: str | int) -> None:
    with pytest.raises(UsageError, match="whole number"):
        make_numa_binding(asked, {}, strict=True)


def test_a_missing_numactl_is_one_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="numactl is not in PATH"):
        require_numa(NumaBinding(gpus_per_numa=4), 8, {"PATH": str(tmp_path)})


def test_a_numa_node_that_is_not_there_is_one_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "numactl").touch(mode=0o755)
    nodes = tmp_path / "nodes"
    for name in ("node0", "node1", "power", "has_cpu"):
        (nodes / name).mkdir(parents=True)
    environ = {"PATH": str(tmp_path)}
    require_numa(NumaBinding(gpus_per_numa=4), 8, environ, nodes)
    with pytest.raises(UsageError, match="this machine has 2 NUMA nodes"):
        require_numa(NumaBinding(gpus_per_numa=2), 8, environ, nodes)
