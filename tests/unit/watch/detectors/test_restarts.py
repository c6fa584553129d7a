"""Restart cycles as a pattern: over the whole chain, up to the last release, and never one restart alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import replace

from nvrx_watch.detectors.cycle_facts import MOST_CYCLES
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.restarts import DETECTORS
from nvrx_watch.model import ActionKind, Cycle, Generation, LogActivity, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    RUN_DIRECTORY,
    ago_text,
    blind,
    closed,
    cycle,
    ended_generation,
    foreign_subject,
    generations,
    hold,
    manifest,
    queue,
    queued_rows,
    row,
    running_generation,
    running_rows,
    snapshot,
    sources,
    subject,
    verdict,
)
from tests.unit.watch.build_cycles import (
    CountingCycles,
    found,
    hostile_snapshots,
    named,
    row_of,
    skips_without,
    steers_nobody,
    with_cycles,
)

STORM = named(DETECTORS, "restart_storm")
SAME = named(DETECTORS, "same_iteration_crash")
BUDGET = named(DETECTORS, "restart_budget_low")
NO_CYCLES = sources({Source.CYCLES: "reading the run directory: Stale file handle"})


def test_a_healthy_chain_has_no_pattern_of_restarts() -> None:
    for detector in DETECTORS:
        assert found(detector, snapshot()) == ()


@pytest.mark.parametrize("detector", [STORM, SAME, BUDGET], ids=lambda one: one.name)
def test_unread_cycles_are_neither_a_pattern_nor_its_absence(detector: Detector) -> None:
    seen = with_cycles(*row_of(9, last_iteration=100), sources=NO_CYCLES)
    assert skips_without(detector, Source.CYCLES, seen)


def test_five_ends_within_the_window_are_a_storm() -> None:
    (finding,) = found(STORM, with_cycles(*row_of(5)))
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "restart_storm:chain"
    assert "5 restart cycles ended within 30m, median duration 1m" in finding.title
    assert "in each of them trained: n1, n2" in finding.details
    assert "log of the newest: /logs/app_cycle4.log" in finding.details
    assert finding.array_job_ids == (11,)


def test_four_ends_are_no_storm_and_neither_is_a_fifth_before_the_window() -> None:
    assert found(STORM, with_cycles(*row_of(4))) == ()
    assert found(STORM, with_cycles(cycle(0, started=1900, ended=1801), *row_of(4, first=1))) == ()
    assert len(found(STORM, with_cycles(cycle(0, started=1900, ended=1800), *row_of(4, first=1)))) == 1


def test_a_storm_is_counted_across_generations() -> None:
    before = ended_generation(10, cycles=row_of(3, newest_ended=400))
    now = running_generation(11, cycles=(*row_of(2), cycle(2, started=40, ended=None)))
    (finding,) = found(STORM, snapshot(generations=generations(g10=before, g11=now)))
    assert finding.array_job_ids == (10, 11)


def test_a_storm_asks_for_a_hold_of_what_is_queued() -> None:
    (finding,) = found(STORM, with_cycles(*row_of(5)))
    assert finding.action is not None
    assert finding.action.kind is ActionKind.HOLD
    assert finding.action.command == f"nvrx-chain hold --run-dir '{RUN_DIRECTORY}'"
    assert finding.action.command in finding.advice


def test_a_storm_of_a_foreign_chain_asks_for_a_hold_by_id() -> None:
    (finding,) = found(STORM, with_cycles(*row_of(5), subject=foreign_subject()))
    assert finding.action is not None
    assert finding.action.command == "scontrol hold 12,13"


@pytest.mark.parametrize(
    "seen",
    [
        with_cycles(*row_of(5), hold=hold()),
        with_cycles(*row_of(5), queue=queue(*running_rows(11))),
        with_cycles(*row_of(5), queue=blind()),
        with_cycles(*row_of(5), queue=queue(*running_rows(11), *queued_rows(12, reason="JobHeldUser"))),
    ],
    ids=["held", "nothing queued", "queue unseen", "held in the queue"],
)
def test_no_hold_is_asked_for_where_it_would_keep_nothing_back(seen: Snapshot) -> None:
    (finding,) = found(STORM, seen)
    assert finding.action is None


def test_what_ended_before_the_last_release_is_no_storm_any_more() -> None:
    # Otherwise `--allow hold` would undo an operator's release at once.
    cycles = row_of(5)
    released = hold(released_at=ago_text(10), released_by="ann")
    assert found(STORM, with_cycles(*cycles, hold=released)) == ()
    assert len(found(STORM, with_cycles(*cycles, hold=hold(released_at=ago_text(9_000))))) == 1


def test_a_chain_with_a_verdict_storms_no_more() -> None:
    assert found(STORM, with_cycles(*row_of(9), verdict=verdict("no_restart"))) == ()


def test_ends_in_the_future_count_as_just_now() -> None:
    assert len(found(STORM, with_cycles(*row_of(5, newest_ended=-10_000)))) == 1


def test_a_storm_without_a_common_node_says_so() -> None:
    cycles = tuple(cycle(n, started=200, ended=100, active_nodes=(f"n{n}",)) for n in range(5))
    (finding,) = found(STORM, with_cycles(*cycles))
    assert "no node trained in all of them" in finding.details


def test_many_nodes_are_folded_and_hostile_names_are_spelled_out() -> None:
    many = tuple(f"n{number:03d}" for number in range(1, 101))
    (finding,) = found(STORM, with_cycles(*row_of(5, active_nodes=many)))
    assert "in each of them trained: n[001-100]" in finding.details
    (finding,) = found(STORM, with_cycles(*row_of(5, active_nodes=(*many, "x\x1b[2J y"))))
    assert steers_nobody(finding)


def test_three_ends_at_one_iteration_are_the_same_crash() -> None:
    (finding,) = found(SAME, with_cycles(*row_of(3, last_iteration=1234)))
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "same_iteration_crash:chain"
    assert finding.title == "the last 3 restart cycles all ended at iteration 1234"
    assert finding.action is not None
    assert finding.action.kind is ActionKind.HOLD
    assert "skip the data" in finding.advice


SHORT_OF_IT = LogActivity(bytes=1, newest="/logs/x", iteration=60)
"""A log of the present cycle that has not got to where the others ended."""


def _dying(*cycles: Cycle, generation: int = 11) -> Generation:
    return running_generation(generation, cycles=(*cycles, cycle(99, started=40, ended=None)), log=SHORT_OF_IT)


def _ending_at(*iterations: int | None, each: float = 100) -> Snapshot:
    rows = row_of(len(iterations), each=each)
    ends = [replace(one, last_iteration=iteration) for one, iteration in zip(rows, iterations, strict=True)]
    return snapshot(generations=generations(g11=_dying(*ends)), iteration=50)


def test_the_span_and_the_number_decide() -> None:
    assert len(found(SAME, _ending_at(100, 103, 105))) == 1
    assert found(SAME, _ending_at(100, 103, 106)) == ()
    assert found(SAME, _ending_at(100, 100)) == ()
    # Only the newest three count.
    assert len(found(SAME, _ending_at(7, 500, 500, 501))) == 1


def test_an_end_without_an_iteration_is_no_witness() -> None:
    assert found(SAME, _ending_at(100, None, 100)) == ()


def test_a_cycle_of_a_moment_never_trained() -> None:
    assert found(SAME, _ending_at(100, 100, 100, each=4.9)) == ()
    assert len(found(SAME, _ending_at(100, 100, 100, each=5))) == 1


def test_the_same_crash_is_seen_across_generations() -> None:
    before = [ended_generation(job, cycles=row_of(1, last_iteration=99)) for job in (9, 10)]
    seen = snapshot(generations=(*before, _dying(*row_of(1, last_iteration=100))), iteration=50)
    (finding,) = found(SAME, seen)
    assert finding.title.endswith("at iteration 99 to 100")
    assert finding.array_job_ids == (9, 10, 11)


@pytest.mark.parametrize(("reached", "saved", "count"), [(105, 50, 1), (106, 50, 0), (100, 105, 1), (100, 106, 0)])
def test_training_that_got_past_the_point_clears_it(reached: int, saved: int, count: int) -> None:
    log = LogActivity(bytes=1, newest="/logs/x", iteration=reached)
    now = running_generation(11, cycles=(*row_of(3, last_iteration=100), cycle(3, started=40, ended=None)), log=log)
    assert len(found(SAME, snapshot(generations=generations(g11=now), iteration=saved))) == count


def _budget(used: int, *, budget: int | None = 3, **overrides: object) -> Snapshot:
    cycles = (*row_of(used), cycle(used, started=40, ended=None))
    values: dict[str, object] = {"subject": foreign_subject(max_restarts=budget)}
    return with_cycles(*cycles, **{**values, **overrides})


def test_one_restart_left_is_a_warning_and_two_are_none() -> None:
    (finding,) = found(BUDGET, _budget(2))
    assert finding.severity is Severity.WARNING
    assert finding.key == "restart_budget_low:11"
    assert finding.title == "generation 11 has 1 restart left of 3"
    assert found(BUDGET, _budget(1)) == ()


def test_a_spent_budget_says_so_even_when_it_was_overdrawn() -> None:
    (finding,) = found(BUDGET, _budget(7))
    assert finding.title == "generation 11 has no restart left of 3"


def test_the_manifest_knows_the_budget_better_than_the_flag() -> None:
    # The builder's manifest allows 10.
    assert found(BUDGET, _budget(2, subject=subject(max_restarts=3, manifest=manifest()))) == ()
    assert len(found(BUDGET, _budget(9, subject=subject(max_restarts=None)))) == 1


def test_a_new_attempt_has_a_new_budget() -> None:
    now = (*row_of(3, newest_ended=700), *row_of(1, attempt=1), cycle(1, attempt=1, started=40, ended=None))
    assert found(BUDGET, with_cycles(*now, subject=foreign_subject(max_restarts=3))) == ()


@pytest.mark.parametrize(
    "seen",
    [
        _budget(9, budget=None),
        _budget(9, budget=-1),
        _budget(0, budget=1),
        _budget(9, verdict=verdict()),
        _budget(9, queue=queue(row(11, 0, "COMPLETED"), *queued_rows(12))),
        snapshot(
            subject=foreign_subject(max_restarts=1),
            generations=generations(g11=ended_generation(11, cycles=row_of(2))),
        ),
        snapshot(
            subject=foreign_subject(max_restarts=1),
            generations=generations(g11=running_generation(11, closed=closed(11), cycles=row_of(2))),
        ),
    ],
    ids=["unknown", "unlimited", "nothing used", "over", "task 0 ended", "ended", "closed"],
)
def test_a_budget_that_says_nothing_is_quiet(seen: Snapshot) -> None:
    assert found(BUDGET, seen) == ()


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda one: one.name)
def test_of_twenty_thousand_cycles_only_the_tail_is_looked_at(detector: Detector) -> None:
    # The worst case: every one of them is part of the pattern.
    rows = [CountingCycles(200, cycle(0, started=1000, ended=900, last_iteration=100)) for _ in range(100)]
    ended = tuple(
        ended_generation(job, cycles=one, record=None) for job, one in zip(range(1000, 1100), rows, strict=True)
    )
    seen = snapshot(generations=ended, iteration=100)
    list(detector.check(seen, WatchThresholds()))
    assert sum(one.touched for one in rows) <= MOST_CYCLES + 20


def test_a_steady_pass_over_a_long_healthy_chain_touches_a_handful_of_cycles() -> None:
    rows = [CountingCycles(200, cycle(0, started=90_000, ended=80_000, last_iteration=100)) for _ in range(100)]
    ended = tuple(
        ended_generation(job, cycles=one, record=None) for job, one in zip(range(1000, 1100), rows, strict=True)
    )
    seen = snapshot(generations=(*ended, running_generation(1100)), iteration=5000)
    for detector in DETECTORS:
        list(detector.check(seen, WatchThresholds()))
    assert sum(one.touched for one in rows) <= 10


@given(seen=hostile_snapshots())
def test_no_cycle_makes_a_detector_raise(seen: Snapshot) -> None:
    for detector in DETECTORS:
        for finding in detector.check(seen, WatchThresholds()):
            assert steers_nobody(finding)
