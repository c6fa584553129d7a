"""The place of a launcher as ft_launcher 0.7.0 reads it from the environment, and what is refused in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.place import UNKNOWN_RANK, Place, read_place, require_one_launcher

ARRAY = {
    "SLURM_JOB_ID": "105",
    "SLURM_ARRAY_JOB_ID": "100",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_NNODES": "4",
    "SLURM_PROCID": "2",
    "SLURMD_NODENAME": "nvl72134-T07",
    "SLURM_JOB_NODELIST": "nvl72134-T[05-08]",
}
TOPOLOGY = {"SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_TOPOLOGY_ADDR": "block5.node12"}


def place(environ: dict[str, str]) -> Place:
    return read_place(environ, "host")


def rank(environ: dict[str, str]) -> int:
    return place(environ).infra_rank


def test_in_an_array_the_rank_counts_the_nodes_of_the_tasks_before() -> None:
    found = place(ARRAY)
    assert found.infra_rank == found.injection_rank == 3 * 4 + 2
    assert (found.group, found.job_id, found.task_id) == ("3", "100", "3")
    assert found.nodes == ("nvl72134-T05", "nvl72134-T06", "nvl72134-T07", "nvl72134-T08")
    assert (found.node, found.address, found.procid, found.nodes_per_task) == ("nvl72134-T07", "nvl72134-T07", 2, 4)


def test_the_group_is_the_task_or_what_the_user_says_or_the_launcher_itself() -> None:
    assert place(ARRAY).member("12-abc", None).group == "3"
    assert place(ARRAY | {"NVRX_REPLACEMENT_GROUP_ID": "rack9"}).member("12-abc", None).group == "rack9"
    alone = place({})
    assert alone.member("12-abc", "domain").group == "12-abc"
    assert alone.member("12-abc", "domain").domain == "domain"


@given(nodes=st.integers(1, 8), tasks=st.sets(st.integers(0, 60), min_size=1, max_size=12))
def test_no_two_nodes_of_an_array_have_one_rank_and_those_of_a_task_follow_each_other(
    nodes: int, tasks: set[int]
) -> None:
    ranks = [
        [
            rank({"SLURM_ARRAY_TASK_ID": str(task), "SLURM_PROCID": str(process), "SLURM_NNODES": str(nodes)})
            for process in range(nodes)
        ]
        for task in sorted(tasks)
    ]
    flat = [found for of_task in ranks for found in of_task]
    assert flat == sorted(set(flat))
    assert all(of_task == list(range(of_task[0], of_task[0] + nodes)) for of_task in ranks)


@given(blocks=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**10 - 1)), unique=True, max_size=20))
def test_ranks_by_block_keep_the_nodes_of_a_block_together(blocks: list[tuple[int, int]]) -> None:
    ranks = [rank(TOPOLOGY | {"SLURM_TOPOLOGY_ADDR": f"block{block}.node{node}"}) for block, node in sorted(blocks)]
    assert ranks == sorted(set(ranks))


def test_without_an_array_the_rank_is_the_process_id_of_the_step() -> None:
    job = {"SLURM_JOB_ID": "105", "SLURM_PROCID": "6", "SLURM_NNODES": "8"}
    found = place(job)
    assert (found.infra_rank, found.group, found.array_task) == (6, None, None)
    assert (found.job_id, found.task_id) == ("105", "105")


def test_outside_of_slurm_the_rank_is_that_of_a_launcher_above_or_none() -> None:
    assert rank({"GROUP_RANK": "4"}) == 4
    assert rank({}) == UNKNOWN_RANK == -1
    assert place({}).job_id == ""
    assert read_place({}, "host", "10.0.0.7").address == "10.0.0.7"


def test_forms_overrule_each_other_in_the_order_of_ft_launcher() -> None:
    crossing = ARRAY | {"CROSS_SLURM_PROCID": "40"}
    assert rank(crossing) == 40
    assert rank(ARRAY | TOPOLOGY) == 5 * 10**10 + 12
    assert rank(crossing | TOPOLOGY) == 40
    assert rank(crossing | TOPOLOGY | {"NVRX_INFRA_RANK_FROM_NODENAME": "1"}) == 7213407
    assert rank(ARRAY | TOPOLOGY | {"SLURM_TOPOLOGY_NODES_PER_BLOCK": "100"}) == 512
    assert rank(ARRAY | TOPOLOGY | {"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}) == 14


def test_injectors_number_nodes_without_names_and_topology() -> None:
    assert place(ARRAY | TOPOLOGY).injection_rank == 14
    assert place(ARRAY | {"NVRX_INFRA_RANK_FROM_NODENAME": "1"}).injection_rank == 14
    named = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n7", "NVRX_INFRA_RANK_FROM_NODENAME": ""}
    assert (place(named).infra_rank, place(named).injection_rank) == (7, UNKNOWN_RANK)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SLURM_PROCID": None}, "SLURM_PROCID is not"),
        ({"SLURM_NNODES": None}, "SLURM_NNODES is not"),
        ({"SLURM_PROCID": "-1"}, "whole number"),
        ({"SLURM_PROCID": "1_0"}, "whole number"),
        ({"SLURM_PROCID": "٣"}, "whole number"),
        ({"SLURM_ARRAY_TASK_ID": "x"}, "SLURM_ARRAY_TASK_ID='x'"),
        ({"CROSS_SLURM_PROCID": ""}, "CROSS_SLURM_PROCID=''"),
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "login"}, "no digits"),
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": None}, "no digits"),
        (TOPOLOGY | {"SLURM_TOPOLOGY_ADDR": "block5"}, "block.node"),
        (TOPOLOGY | {"SLURM_TOPOLOGY_ADDR": "block.node3"}, "no digits"),
        (TOPOLOGY | {"SLURM_TOPOLOGY_NODES_PER_BLOCK": "12"}, "does not fit"),
        ({"SLURM_JOB_NODELIST": "n[1-"}, "not a list of node names"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_no_guess(changes: dict[str, str | None], said: str) -> None:
    environ = {name: value for name, value in (ARRAY | changes).items() if value is not None}
    with pytest.raises(UsageError) as caught:
        place(environ)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_jobs_without_srun_are_refused_where_nothing_else_numbers_the_node() -> None:
    with pytest.raises(UsageError, match="by srun"):
        place({"SLURM_JOB_ID": "105"})


@pytest.mark.parametrize("tasks", ["1", "1(x4)", "1,1(x2)"])
def test_one_launcher_per_node_is_the_rule(tasks: str) -> None:
    assert require_one_launcher({"SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": tasks}) is False


@pytest.mark.parametrize("tasks", ["2", "8(x4)", "1(x3),2", "11", "1(x"])
def test_several_launchers_on_a_node_are_refused_unless_they_are_wanted(tasks: str) -> None:
    environ = {"SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": tasks}
    with pytest.raises(UsageError, match="--ntasks-per-node=1"):
        require_one_launcher(environ)
    assert require_one_launcher(environ | {"NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1"}) is True
    assert require_one_launcher({"SLURM_TASKS_PER_NODE": tasks}) is False
