"""The rules about silent ranks, on a clock that is handed in."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.launcher.deadlines import RankDeadlines, Silence
from nvrx_chain.launcher.durations import Durations, calculated
from nvrx_chain.launcher.hang_limits import HangLimits, Timeouts


def sections(**limits: float) -> HangLimits:
    return HangLimits(section_seconds=MappingProxyType(limits))


def test_no_rule_never_expires() -> None:
    rank = RankDeadlines(HangLimits(), 0.0)
    rank.start_section("step", 1.0)
    rank.heartbeat(2.0)
    assert rank.next_deadline() is None
    assert rank.expired(1e9) is None


def test_a_section_expires_at_its_limit_and_not_before() -> None:
    rank = RankDeadlines(sections(step=3.0), 0.0)
    rank.start_section("step", 10.0)
    assert rank.next_deadline() == 13.0
    assert rank.expired(12.999) is None
    found = rank.expired(13.0)
    assert found is not None
    assert (found.what, found.section, found.limit_seconds, found.seconds) == (Silence.SECTION, "step", 3.0, 3.0)


def test_an_outer_section_expires_although_an_inner_one_is_young() -> None:
    for inner_limit in (1000.0, 3.0):
        rank = RankDeadlines(sections(outer=4.0, inner=inner_limit), 0.0)
        rank.start_section("outer", 0.0)
        for second in (1.0, 2.0, 3.0, 3.9):
            rank.start_section("inner", second)
            assert rank.expired(second) is None
        found = rank.expired(4.0)
        assert found is not None
        assert found.section == "outer"
        assert [one.name for one in found.open_sections] == ["outer", "inner"]


def test_an_inner_section_expires_although_the_outer_one_has_time() -> None:
    rank = RankDeadlines(sections(outer=1000.0, inner=2.0), 0.0)
    rank.start_section("outer", 0.0)
    rank.start_section("inner", 1.0)
    found = rank.expired(3.0)
    assert found is not None
    assert found.section == "inner"


def test_end_all_sections_ends_every_one() -> None:
    rank = RankDeadlines(sections(a=2.0, b=3.0), 0.0)
    rank.start_section("a", 0.0)
    rank.start_section("b", 0.0)
    rank.end_all_sections(1.0)
    assert rank.next_deadline() is None
    assert rank.expired(1e6) is None


def test_a_section_that_begins_again_without_an_end_counts_from_there() -> None:
    rank = RankDeadlines(sections(step=2.0), 0.0)
    rank.start_section("step", 0.0)
    rank.start_section("step", 1.5)
    assert rank.next_deadline() == 3.5
    rank.end_section("step", 2.0)
    rank.end_section("step", 2.1)
    assert rank.expired(100.0) is None


def test_start_up_is_covered_until_the_first_word_of_any_kind() -> None:
    rank = RankDeadlines(HangLimits(startup_seconds=5.0), 100.0)
    found = rank.expired(105.0)
    assert found is not None
    assert found.what is Silence.STARTUP
    rank.spoke(104.0)
    assert rank.expired(1e6) is None


def test_the_initial_heartbeat_has_its_own_limit_and_marks_are_no_heartbeats() -> None:
    rank = RankDeadlines(HangLimits(initial_heartbeat_seconds=60.0, heartbeat_seconds=2.0), 0.0)
    rank.spoke(50.0)
    assert rank.next_deadline() == 60.0
    rank.heartbeat(59.0)
    assert rank.next_deadline() == 61.0
    found = rank.expired(61.0)
    assert found is not None
    assert found.what is Silence.HEARTBEAT


def test_only_a_later_limit_leaves_the_time_before_the_first_heartbeat_free() -> None:
    rank = RankDeadlines(HangLimits(heartbeat_seconds=2.0), 0.0)
    assert rank.next_deadline() is None
    rank.heartbeat(100.0)
    assert rank.next_deadline() == 102.0


def test_out_of_section_counts_between_sections_and_from_the_first_word() -> None:
    limits = HangLimits(out_of_section_seconds=2.0, section_seconds=MappingProxyType({"step": 50.0}))
    rank = RankDeadlines(limits, 0.0)
    assert rank.next_deadline() is None
    rank.spoke(10.0)
    assert rank.next_deadline() == 12.0
    rank.start_section("step", 11.0)
    assert rank.next_deadline() == 61.0
    rank.end_section("step", 20.0)
    found = rank.expired(22.0)
    assert found is not None
    assert found.what is Silence.OUT_OF_SECTION


def test_a_section_without_a_limit_does_not_hide_a_hang() -> None:
    limits = HangLimits(out_of_section_seconds=2.0, section_seconds=MappingProxyType({"step": 50.0}))
    rank = RankDeadlines(limits, 0.0)
    rank.start_section("misspelled", 0.0)
    found = rank.expired(2.0)
    assert found is not None
    assert found.what is Silence.OUT_OF_SECTION
    assert [one.name for one in found.open_sections] == ["misspelled"]


def test_the_first_runs_of_a_section_have_the_limit_of_the_warm_up() -> None:
    limits = HangLimits(
        section_seconds=MappingProxyType({"step": 2.0}),
        warmup_seconds=MappingProxyType({"step": 30.0}),
        warmup_iterations=2,
    )
    rank = RankDeadlines(limits, 0.0)
    for number, limit in enumerate([30.0, 30.0, 2.0, 2.0]):
        rank.start_section("step", 0.0)
        assert rank.next_deadline() == limit, number
        rank.end_section("step", 0.0)
    again = RankDeadlines(limits, 0.0)
    again.start_section("step", 0.0)
    assert again.next_deadline() == 30.0, "a new process warms up anew"


def test_a_rank_that_invents_names_does_not_fill_the_memory() -> None:
    rank = RankDeadlines(sections(step=2.0), 0.0)
    for number in range(5000):
        rank.start_section(f"n{number}", 0.0)
    found = rank.expired(1e6)
    assert found is None
    rank.end_all_sections(1.0)
    rank.start_section("step", 1.0)
    assert rank.next_deadline() == 3.0
    assert len(rank.seen.sections) + len(rank.seen.warmup) <= 2000


def test_the_present_replaces_what_was_lost_on_the_way() -> None:
    rank = RankDeadlines(sections(a=10.0, b=5.0, c=1.0), 0.0)
    rank.start_section("a", 0.0)
    rank.start_section("c", 0.0)
    rank.now_in(("a", "b"), 0.9)
    found = rank.expired(5.9)
    assert found is not None
    assert [(one.name, pytest.approx(one.seconds)) for one in found.open_sections] == [("a", 5.9), ("b", 5.0)]


def test_calculated_time_outs_are_the_longest_times_the_factor() -> None:
    limits = HangLimits(warmup_iterations=1)
    first, second = Durations(), Durations()
    for seen, step in ((first, 2.0), (second, 3.0)):
        rank = RankDeadlines(limits, 0.0, seen)
        rank.spoke(1.0)
        rank.start_section("step", 5.0)
        rank.end_section("step", 25.0)
        rank.start_section("step", 26.0)
        rank.end_section("step", 26.0 + step)
        rank.heartbeat(40.0)
        rank.heartbeat(41.5)
        rank.start_section("hangs", 50.0)
    found = calculated((first, second), 2.0)
    assert found == Timeouts(
        initial_heartbeat=80.0,
        heartbeat=3.0,
        out_of_section=2.0 * (50.0 - 28.0),
        sections={"step": 6.0},
        warmup={"step": 40.0},
    )


def test_calculated_time_outs_become_limits_and_what_was_not_seen_keeps_its_own() -> None:
    limits = HangLimits(heartbeat_seconds=9.0, section_seconds=MappingProxyType({"step": 100.0, "save": 50.0}))
    rank = RankDeadlines(limits, 0.0)
    rank.start_section("step", 0.0)
    rank.use(limits.with_timeouts(Timeouts(sections={"step": 4.0})), 3.0)
    assert rank.next_deadline() == 4.0
    assert rank.limits.heartbeat_seconds == 9.0
    assert rank.limits.section_seconds == {"step": 4.0, "save": 50.0}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "end_all", "beat", "wait"]), st.sampled_from("abc"), st.floats(0.0, 3.0)
    ),
    max_size=60,
)


@given(STEPS)
def test_a_deadline_that_is_said_is_when_the_rank_expires(steps: list[tuple[str, str, float]]) -> None:
    limits = HangLimits(
        startup_seconds=7.0,
        heartbeat_seconds=4.0,
        out_of_section_seconds=2.5,
        section_seconds=MappingProxyType({"a": 3.0, "b": 6.0}),
    )
    rank, now = RankDeadlines(limits, 0.0), 0.0
    opened: dict[str, float] = {}
    for do, name, seconds in steps:
        now += seconds
        if do == "start":
            rank.start_section(name, now)
            opened[name] = now
        elif do == "end":
            rank.end_section(name, now)
            opened.pop(name, None)
        elif do == "end_all":
            rank.end_all_sections(now)
            opened.clear()
        elif do == "beat":
            rank.heartbeat(now)
        deadline = rank.next_deadline()
        assert deadline is not None, "one rule always applies here"
        assert rank.expired(deadline) is not None
        assert rank.expired(deadline - 1e-6) is None
        for section, since in opened.items():
            if section in limits.section_seconds:
                assert deadline <= since + limits.section_seconds[section]
