"""Seats of a launcher that has a fixed number of them: nobody moves, and no two tasks ever have one rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.generation.rendezvous import choose_members


def test_at_the_start_task_0_has_the_first_seat_and_the_lowest_the_others() -> None:
    assert choose_members((4, 2, 0, 3), (), (0,), 3) == (0, 2, 3)


def test_a_spare_takes_the_very_seat_that_got_free() -> None:
    assert choose_members((0, 1, 2, 3), (1,), (0, 1, 2), 3) == (0, 3, 2)


def test_without_a_spare_the_seats_are_not_all_taken() -> None:
    assert len(choose_members((0, 1, 2), (1,), (0, 1, 2), 3)) == 2


def test_nothing_changes_while_all_members_live() -> None:
    assert choose_members((0, 1, 2, 3), (), (0, 3, 2), 3) == (0, 3, 2)


@given(st.integers(1, 6), st.lists(st.integers(1, 9), unique=True), st.data())
def test_whatever_comes_and_goes_a_living_member_keeps_its_seat(
    train_tasks: int, peers: list[int], data: st.DataObject
) -> None:
    joined, left = [0, *peers], set[int]()
    seats = choose_members(joined, (), (0,), train_tasks)
    assert len(seats) == min(train_tasks, len(joined))
    while len(seats) == train_tasks and len(seats) > 1:
        left.add(data.draw(st.sampled_from(seats[1:])))
        after = choose_members(joined, tuple(left), seats, train_tasks)
        if len(after) < train_tasks:
            assert len(joined) - len(left) < train_tasks
            return
        assert [a for a, b in zip(after, seats, strict=True) if b not in left] == [b for b in seats if b not in left]
        assert len(set(after)) == len(after)
        assert not left & set(after)
        seats = after
