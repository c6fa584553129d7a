"""World, replicas and batch: what Megatron-LM would refuse is refused at submit, with the nearest sizes that fit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import Shape
from nvrx_chain.workloads.parallel import check_batch, data_parallel_size

small = st.integers(1, 8)


def shape(tasks: int = 4, nodes: int = 1, ranks: int = 8, spares: int = 0) -> Shape:
    return Shape(
        train_tasks=tasks,
        hot_spares=spares,
        cold_spares=spares,
        nodes_per_task=nodes,
        gpus_per_node=ranks,
        procs_per_node=ranks,
    )


@given(tasks=small, nodes=small, ranks=small, spares=st.integers(0, 50))
def test_spares_never_change_the_replicas(tasks: int, nodes: int, ranks: int, spares: int) -> None:
    with_spares = data_parallel_size(shape(tasks, nodes, ranks, spares), tensor=1, pipeline=1, context=1)
    assert with_spares == tasks * nodes * ranks


def test_replicas_are_the_world_without_the_ranks_of_one() -> None:
    assert data_parallel_size(shape(4, 2, 8), tensor=2, pipeline=4, context=2) == 4


def test_a_world_that_does_not_divide_names_those_that_do() -> None:
    with pytest.raises(UsageError) as caught:
        data_parallel_size(shape(3, 1, 8), tensor=4, pipeline=4, context=1)
    assert "24 ranks in 3 training tasks x 1 nodes x 8 ranks do not divide by 16 ranks" in caught.value.message
    assert caught.value.hint == "nearest world sizes that do: 16 or 32"


@given(micro=small, replicas=st.integers(1, 64), batch=st.integers(1, 5000))
def test_a_batch_is_refused_exactly_when_it_does_not_divide_and_the_hint_fits(
    micro: int, replicas: int, batch: int
) -> None:
    unit = micro * replicas
    if batch % unit == 0:
        check_batch(shape(), replicas, micro_batch=micro, global_batch=batch)
        return
    with pytest.raises(UsageError) as caught:
        check_batch(shape(), replicas, micro_batch=micro, global_batch=batch)
    assert caught.value.hint is not None
    nearest = [int(number) for number in re.findall(r"\d+", caught.value.hint)]
    assert nearest
    for number in nearest:
        assert number > 0
        assert number % unit == 0
        assert abs(number - batch) < unit
