"""Which nodes train in the next round: kept where they live, whole tasks and segments, never too few or too many."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.launcher.choose import Close, Impossible, RoundView, Wait, assign, decide_round
from nvrx_chain.launcher.members import Assignment, Member, Spec


def member(index: int, *, group: str | None = None, domain: str | None = None, name: str | None = None) -> Member:
    agent = name or f"a{index}"
    return Member(agent_id=agent, infra_rank=index, group=group or agent, address=f"node{index}", domain=domain)


def ids(members: Collection[Member]) -> list[str]:
    return [found.agent_id for found in members]


def chosen(assignment: Assignment | None) -> list[str]:
    assert assignment is not None
    return ids(assignment.active)


def view(joined: Collection[Member], **changes: object) -> RoundView:
    values: dict[str, object] = {
        "joined": joined,
        "missing": {},
        "previous": (),
        "others_live": False,
        "may_be_replaced": False,
        "opened_at": 100.0,
        "fillable_since": None,
        "now": 100.0,
    }
    return RoundView(**{**values, **changes})  # type: ignore[arg-type]


def test_the_first_round_takes_the_lowest_places() -> None:
    found = assign([member(3), member(0), member(2), member(1)], (), Spec(min_nodes=2, max_nodes=4))
    assert chosen(found) == ["a0", "a1"]
    assert found is not None
    assert ids(found.standby) == ["a2", "a3"]


def test_a_spare_with_a_lower_place_is_not_swapped_in_while_nobody_is_lost() -> None:
    joined = [member(0), member(1), member(2)]
    assert chosen(assign(joined, ("a0", "a2"), Spec(min_nodes=2, max_nodes=3))) == ["a0", "a2"]
    assert chosen(assign(joined, ("a0", "a2"), Spec(min_nodes=2, max_nodes=3, sticky=False))) == ["a0", "a1"]


def test_ranks_follow_the_topology_over_the_chosen_set() -> None:
    joined = [member(0), member(2), member(1)]
    assert chosen(assign(joined, ("a2", "a1"), Spec(min_nodes=2, max_nodes=3))) == ["a1", "a2"]


def test_too_few_are_no_set() -> None:
    assert assign([member(0)], (), Spec(min_nodes=2, max_nodes=2)) is None


def test_an_array_task_trains_with_all_its_nodes_or_not_at_all() -> None:
    spec = Spec(min_nodes=4, max_nodes=6, group_size=2)
    half = [member(0, group="t0"), member(1, group="t0"), member(2, group="t1")]
    rest = [member(4, group="t2"), member(5, group="t2")]
    assert chosen(assign([*half, *rest], ("a0", "a1", "a2", "a3"), spec)) == ["a0", "a1", "a4", "a5"]
    assert assign(half, (), spec) is None


def test_a_launcher_that_came_back_beside_its_lost_self_takes_one_seat() -> None:
    spec = Spec(min_nodes=2, max_nodes=4, group_size=2)
    joined = [member(0, group="t0"), member(1, group="t0"), member(1, group="t0", name="b1")]
    assert chosen(assign(joined, ("a0", "a1"), spec)) == ["a0", "a1"]


def segments(*sizes: int) -> list[Member]:
    count = itertools.count()
    return [member(next(count), domain=f"d{number}") for number, size in enumerate(sizes) for _ in range(size)]


def test_segments_are_whole_and_of_one_domain() -> None:
    spec = Spec(min_nodes=4, max_nodes=6, segment=2)
    assert chosen(assign(segments(3, 3), (), spec)) == ["a0", "a1", "a3", "a4"]
    assert assign(segments(3, 1), (), spec) is None
    assert assign([member(0), member(1), member(2), member(3)], (), spec) is None, (
        "without a domain there is no segment"
    )


def test_a_segment_that_lost_a_node_is_filled_from_its_domain() -> None:
    spec = Spec(min_nodes=4, max_nodes=6, segment=2)
    joined = [found for found in segments(3, 3) if found.agent_id != "a1"]
    assert chosen(assign(joined, ("a0", "a1", "a3", "a4"), spec)) == ["a0", "a2", "a3", "a4"]


def test_a_domain_that_cannot_fill_its_segment_gives_it_up() -> None:
    spec = Spec(min_nodes=2, max_nodes=5, segment=2)
    joined = [found for found in segments(2, 3) if found.agent_id != "a1"]
    assert chosen(assign(joined, ("a0", "a1"), spec)) == ["a2", "a3"]


def test_few_domains_are_better_than_many() -> None:
    spec = Spec(min_nodes=4, max_nodes=10, segment=2)
    assert chosen(assign(segments(2, 2, 4), (), spec)) == ["a4", "a5", "a6", "a7"]
    assert chosen(assign(segments(4, 4), (), spec)) == ["a0", "a1", "a2", "a3"]


def test_the_first_round_closes_as_soon_as_it_can_be_filled() -> None:
    joined = [member(0), member(1)]
    found = decide_round(view(joined), Spec(min_nodes=2, max_nodes=3))
    assert isinstance(found, Close)
    found = decide_round(view(joined), Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5))
    assert found == Wait(until=105.0, reason="2 of at most 3 nodes have joined", fillable=True)
    late = view(joined, now=105.0, fillable_since=100.0)
    assert isinstance(decide_round(late, Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5)), Close)


def test_a_live_node_of_the_last_set_is_waited_for_until_its_workers_must_be_gone() -> None:
    spec = Spec(min_nodes=2, max_nodes=3, last_call_seconds=1, last_call_max_seconds=10)
    joined = [member(0), member(2)]
    changes = {"previous": ("a0", "a1"), "fillable_since": 100.0}
    assert decide_round(view(joined, missing={"a1": 100.2}, **changes), spec) == Wait(
        until=101.0, reason="1 nodes that trained before stop their workers", fillable=True
    )
    found = decide_round(view(joined, missing={"a1": 102.0}, **changes), spec)
    assert isinstance(found, Wait)
    assert found.until == 102.0
    found = decide_round(view(joined, missing={"a1": 1e9}, **changes), spec)
    assert isinstance(found, Wait)
    assert found.until == 110.0
    found = decide_round(view(joined, missing={"a1": 1e9}, now=110.0, **changes), spec)
    assert isinstance(found, Close)
    assert chosen(found.assignment) == ["a0", "a2"]


def test_a_round_whose_lost_nodes_are_known_to_be_lost_closes_at_once() -> None:
    found = decide_round(view([member(0), member(2)], previous=("a0", "a1")), Spec(min_nodes=2, max_nodes=3))
    assert isinstance(found, Close)


@pytest.mark.parametrize("hope", [{"missing": {"a1": 0.0}}, {"others_live": True}, {"may_be_replaced": True}])
def test_a_round_that_cannot_be_filled_waits_while_there_is_hope(hope: dict[str, object]) -> None:
    spec = Spec(min_nodes=2, max_nodes=2, join_timeout_seconds=60)
    found = decide_round(view([member(0)], previous=("a0", "a1"), **hope), spec)
    assert found == Wait(until=160.0, reason="1 nodes have joined, 2 are needed")
    found = decide_round(view([member(0)], previous=("a0", "a1"), now=160.0, **hope), spec)
    assert found == Impossible(reason="1 nodes have joined, 2 are needed; nobody else came in 60 s")


def test_a_round_without_hope_is_given_up_at_once() -> None:
    found = decide_round(view([member(0)], previous=("a0", "a1")), Spec(min_nodes=2, max_nodes=2))
    assert found == Impossible(reason="1 nodes have joined, 2 are needed, and nobody is left who could come")


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Member], list[str], Spec]:
    segment = draw(st.sampled_from([None, 1, 2, 3]))
    group_size = draw(st.sampled_from([1, 2])) if segment is None else 1
    count = draw(st.integers(0, 16))
    domains = draw(st.lists(st.sampled_from(["x", "y", "z", None]), min_size=count, max_size=count))
    places = draw(st.permutations(range(count)))
    members = [
        member(place, name=f"a{index}", domain=domain, group=f"t{place // 2}" if group_size == 2 else None)
        for index, (place, domain) in enumerate(zip(places, domains, strict=True))
    ]
    previous = draw(st.lists(st.sampled_from([f"a{index}" for index in range(18)]), unique=True, max_size=8))
    unit = segment or group_size
    spec = Spec(min_nodes=unit * draw(st.integers(1, 5)), max_nodes=20, group_size=group_size, segment=segment)
    return members, previous, spec


@given(crowds())
def test_a_chosen_set_is_exactly_large_enough_and_keeps_what_lives(crowd: tuple[list[Member], list[str], Spec]) -> None:
    members, previous, spec = crowd
    found = assign(members, previous, spec)
    if found is None:
        assert not _can_be_filled(members, spec)
        return
    active = ids(found.active)
    assert len(active) == len(set(active)) == spec.min_nodes
    assert sorted(active + ids(found.standby)) == sorted(ids(members))
    assert found == assign(list(reversed(members)), list(reversed(previous)), spec), (
        "the order of arrival changes nothing"
    )
    if spec.segment is None and spec.group_size == 1:
        live = set(previous) & set(ids(members))
        assert len(live & set(active)) == min(len(live), spec.min_nodes)
        assert [node.infra_rank for node in found.active] == sorted(node.infra_rank for node in found.active)
    if spec.segment is not None:
        for start in range(0, spec.min_nodes, spec.segment):
            assert len({node.domain for node in found.active[start : start + spec.segment]} - {None}) == 1
    if spec.group_size > 1:
        groups = [node.group for node in found.active]
        assert all(groups.count(group) == spec.group_size for group in groups)


def _can_be_filled(members: list[Member], spec: Spec) -> bool:
    if spec.segment is not None:
        counts = [sum(node.domain == name for node in members) // spec.segment for name in ("x", "y", "z")]
        return sum(counts) * spec.segment >= spec.min_nodes
    groups = [node.group for node in members]
    return sum(groups.count(group) >= spec.group_size for group in groups) >= spec.min_nodes


@given(crowds())
def test_a_second_choice_over_the_same_members_changes_nothing(crowd: tuple[list[Member], list[str], Spec]) -> None:
    members, previous, spec = crowd
    found = assign(members, previous, spec)
    if found is not None:
        assert assign(members, ids(found.active), spec) == found
