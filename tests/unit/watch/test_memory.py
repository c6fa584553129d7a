"""For how long a value has been the same is counted on the watcher's own clock, and never runs backwards."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from nvrx_watch.memory import Memory, forget, lease_name, log_name, observe

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_value_seen_for_the_first_time_is_zero_seconds_old() -> None:
    memory = observe(Memory(), {"iteration": 5}, NOW)
    assert memory.steady_seconds("iteration", NOW) == 0.0
    assert memory.steady_seconds("never seen", NOW) is None


def test_the_same_value_ages_and_a_new_one_starts_anew() -> None:
    memory = observe(observe(Memory(), {"iteration": 5}, NOW), {"iteration": 5}, later(60))
    assert memory.steady_seconds("iteration", later(60)) == 60.0
    memory = observe(memory, {"iteration": 6}, later(70))
    assert memory.steady_seconds("iteration", later(75)) == 5.0
    assert memory.changes("iteration") == 1


def test_what_was_not_looked_at_is_kept() -> None:
    memory = observe(observe(Memory(), {"iteration": 5}, NOW), {}, later(60))
    assert memory.value("iteration") == 5
    assert memory.steady_seconds("iteration", later(60)) == 60.0


def test_no_checkpoint_is_a_value_of_its_own() -> None:
    memory = observe(observe(Memory(), {"iteration": None}, NOW), {"iteration": None}, later(30))
    assert memory.steady_seconds("iteration", later(30)) == 30.0


def test_a_clock_that_was_set_back_makes_nothing_old() -> None:
    memory = observe(Memory(), {"iteration": 5}, later(3600))
    memory = observe(memory, {"iteration": 5}, NOW)
    assert memory.steady_seconds("iteration", NOW) == 0.0
    assert memory.steady_seconds("iteration", later(10)) == 10.0


def test_a_generation_is_forgotten_whole_and_no_other() -> None:
    memory = observe(Memory(), {lease_name(1, 0): 3, log_name(1): 9, lease_name(11, 0): 4}, NOW)
    assert sorted(forget(memory, ("job/1/",)).seen) == [lease_name(11, 0)]


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(0, 2))))
def test_an_age_is_never_negative_whatever_the_clock_does(looks: list[tuple[int, int]]) -> None:
    memory = Memory()
    for seconds, value in looks:
        memory = observe(memory, {"x": value}, later(seconds))
        age = memory.steady_seconds("x", later(seconds))
        assert age is not None
        assert age >= 0
        assert memory.value("x") == value
