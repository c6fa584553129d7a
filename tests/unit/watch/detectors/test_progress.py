"""Restarts against the checkpoint: what moves is progress, what cannot be read is neither that nor its absence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.records.control import GenerationRecord
from nvrx_watch.detectors.progress import DETECTORS
from nvrx_watch.memory import BEST_ITERATION_NAME, ITERATION_NAME, Memory, Value, lease_name, log_name
from nvrx_watch.model import Generation, LogActivity, Severity, Snapshot, Source, Unavailable
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    ago_text,
    blind,
    closed,
    cycle,
    ended_generation,
    generations,
    hold,
    queue,
    queued_rows,
    record,
    remember,
    rendezvous,
    row,
    running_generation,
    snapshot,
    sources,
    verdict,
)
from tests.unit.watch.build_cycles import (
    found,
    hostile_snapshots,
    named,
    row_of,
    skips_without,
    steers_nobody,
    with_cycles,
)

STALLED = named(DETECTORS, "stalled_progress")
NEVER = named(DETECTORS, "never_checkpointed")
FROZEN = named(DETECTORS, "cycle_stalled")
REGRESSED = named(DETECTORS, "checkpoint_regressed")


def at_iteration(value: Value, seconds: float) -> Memory:
    return remember({ITERATION_NAME: (value, seconds), BEST_ITERATION_NAME: (value, seconds)})


# stalled_progress


def test_three_ends_since_the_checkpoint_moved_are_stalled_progress() -> None:
    seen = with_cycles(*row_of(3), iteration=150, memory=at_iteration(150, 500))
    (finding,) = found(STALLED, seen)
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "stalled_progress:chain"
    assert finding.title == "3 restart cycles ended since the checkpoint got to iteration 150"
    assert finding.details == ("node-hours spent on them: 0.2", "log: /logs/app_cycle2.log")
    assert "nvrx-chain hold" in finding.advice
    assert finding.action is None


def test_two_ends_are_not_and_neither_is_a_third_before_it_moved() -> None:
    memory = at_iteration(150, 250)
    assert found(STALLED, with_cycles(*row_of(2), memory=memory)) == ()
    # The oldest of the three ended 250 s ago, when the iteration was another one.
    assert found(STALLED, with_cycles(*row_of(3), memory=memory)) == ()
    assert len(found(STALLED, with_cycles(*row_of(3), memory=at_iteration(150, 251)))) == 1


def test_stalled_progress_is_judged_across_generations() -> None:
    before = ended_generation(10, cycles=row_of(2, newest_ended=400))
    now = running_generation(11, cycles=(*row_of(1), cycle(1, started=40, ended=None)))
    seen = snapshot(generations=generations(g10=before, g11=now), memory=at_iteration(150, 9000))
    assert len(found(STALLED, seen)) == 1


def _began(job: int, iteration: int | None) -> GenerationRecord:
    return record(job, None, iteration_at_start=iteration)


@pytest.mark.parametrize(("start", "count"), [(150, 1), (149, 0), (None, 0), (-1, 0)])
def test_a_first_pass_believes_the_record_of_the_generation(start: int | None, count: int) -> None:
    now = running_generation(11, cycles=row_of(3), record=_began(11, start))
    assert len(found(STALLED, snapshot(generations=generations(g11=now), iteration=150))) == count


def test_the_record_of_an_earlier_generation_counts_only_while_all_later_ones_agree() -> None:
    before = ended_generation(10, cycles=row_of(2, newest_ended=900), record=record(10, iteration_at_start=150))
    agrees = running_generation(11, cycles=row_of(1), record=_began(11, 150))
    moved = running_generation(11, cycles=row_of(1), record=_began(11, 100))
    assert len(found(STALLED, snapshot(generations=generations(g10=before, g11=agrees)))) == 1
    assert found(STALLED, snapshot(generations=generations(g10=before, g11=moved))) == ()


def test_a_memory_of_another_iteration_says_nothing_about_this_one() -> None:
    assert found(STALLED, with_cycles(*row_of(3), iteration=151, memory=at_iteration(150, 9000))) == ()


def test_without_any_checkpoint_progress_is_not_called_stalled() -> None:
    assert found(STALLED, with_cycles(*row_of(9), iteration=None, memory=at_iteration(None, 9000))) == ()


def test_a_release_and_a_verdict_end_stalled_progress() -> None:
    cycles, memory = row_of(3), at_iteration(150, 9000)
    released = hold(released_at=ago_text(20), released_by="ann")
    assert found(STALLED, with_cycles(*cycles, memory=memory, hold=released)) == ()
    assert found(STALLED, with_cycles(*cycles, memory=memory, verdict=verdict())) == ()


@pytest.mark.parametrize("source", [Source.CYCLES, Source.ITERATION])
def test_stalled_progress_is_skipped_while_a_source_is_unseen(source: Source) -> None:
    seen = with_cycles(*row_of(5), memory=at_iteration(150, 9000), sources=sources({source: "it hangs"}))
    assert skips_without(STALLED, source, seen)


# never_checkpointed


def _untrained(*cycles_seconds: float, **overrides: object) -> Snapshot:
    """Generations that ran so long, the last one still running, and no checkpoint."""
    *ended, present = cycles_seconds
    made: list[Generation] = [
        ended_generation(100 + place, record=record(100 + place, run_seconds=seconds), cycles=None)
        for place, seconds in enumerate(ended)
    ]
    made.append(running_generation(111, cycles=(cycle(0, started=present, ended=None),)))
    values: dict[str, object] = {
        "generations": tuple(made),
        "iteration": None,
        "queue": queue(row(111, 0), *queued_rows(112)),
    }
    return snapshot(**{**values, **overrides})


def test_two_hours_without_a_checkpoint_are_a_warning_and_four_are_critical() -> None:
    assert found(NEVER, _untrained(7200)) == ()
    (finding,) = found(NEVER, _untrained(7201))
    assert finding.severity is Severity.WARNING
    assert finding.key == "never_checkpointed:chain"
    assert "latest_checkpointed_iteration.txt" in finding.details[0]
    assert found(NEVER, _untrained(14_400))[0].severity is Severity.WARNING
    assert found(NEVER, _untrained(14_401))[0].severity is Severity.CRITICAL


def test_the_time_of_all_generations_counts_by_record_or_by_cycles() -> None:
    assert len(found(NEVER, _untrained(3000, 3000, 1201))) == 1
    assert found(NEVER, _untrained(3000, 3000, 1200)) == ()
    cycles = (*row_of(36, each=100), cycle(36, started=40, ended=None))
    before = ended_generation(10, record=None, cycles=row_of(36, each=100, newest_ended=5000))
    both = generations(g10=before, g11=running_generation(11, cycles=cycles))
    assert len(found(NEVER, snapshot(generations=both, iteration=None))) == 1
    assert found(NEVER, with_cycles(*cycles, iteration=None)) == ()


def test_a_launcher_without_cycle_records_trains_from_its_start() -> None:
    runs = running_generation(11, cycles=None, rendezvous=rendezvous(11, started_at=ago_text(7300)))
    assert len(found(NEVER, snapshot(generations=generations(g11=runs), iteration=None))) == 1
    waits = running_generation(11, cycles=None, rendezvous=rendezvous(11, started_at=None))
    assert found(NEVER, snapshot(generations=generations(g11=waits), iteration=None)) == ()


def test_a_record_left_open_by_a_killed_launcher_does_not_train_on() -> None:
    dead = ended_generation(10, record=None, cycles=(cycle(0, started=90_000, ended=None),))
    now = running_generation(11, cycles=(cycle(0, started=90_000, ended=None), cycle(1, started=60, ended=None)))
    assert found(NEVER, snapshot(generations=generations(g10=dead, g11=now), iteration=None)) == ()


@pytest.mark.parametrize(
    "overrides",
    [{"iteration": 0}, {"memory": at_iteration(7, 90)}, {"verdict": verdict()}],
    ids=["there is one", "there was one", "over"],
)
def test_a_checkpoint_of_any_time_is_one(overrides: dict[str, object]) -> None:
    assert found(NEVER, _untrained(90_000, **overrides)) == ()


@pytest.mark.parametrize("source", [Source.CYCLES, Source.ITERATION])
def test_an_unread_iteration_is_no_missing_checkpoint(source: Source) -> None:
    assert skips_without(NEVER, source, _untrained(90_000, sources=sources({source: "it hangs"})))


# cycle_stalled


def _still(log: float, saved: float | None, *, started: float = 90_000, number: int = 1, **more: object) -> Snapshot:
    """A running generation whose log and checkpoint have been the same for so long."""
    earlier = row_of(number, newest_ended=started)
    runs = running_generation(11, cycles=(*earlier, cycle(number, started=started, ended=None)))
    seen: dict[str, tuple[Value, float]] = {log_name(11): (1_000_000, log), lease_name(11, 0): (700, 3)}
    if saved is not None:
        seen[ITERATION_NAME] = (150, saved)
    values: dict[str, object] = {"generations": generations(g11=runs), "memory": remember(seen)}
    return snapshot(**{**values, **more})


def test_a_log_and_a_checkpoint_that_both_stand_still_are_a_stalled_cycle() -> None:
    (finding,) = found(FROZEN, _still(1800, 5000))
    assert finding.severity is Severity.WARNING
    assert finding.key == "cycle_stalled:11"
    assert finding.title.startswith("nothing has moved in cycle 1 of generation 11 for 30m")
    assert finding.details[0] == "log: /logs/app_cycle1.log"
    assert "the lease of task 0 moves" in finding.details[1]
    assert finding.action is None


def test_one_second_less_is_none_and_twice_as_long_is_critical() -> None:
    assert found(FROZEN, _still(1799, 5000)) == ()
    assert found(FROZEN, _still(3599, 5000))[0].severity is Severity.WARNING
    (finding,) = found(FROZEN, _still(3600, 5000))
    assert finding.severity is Severity.CRITICAL
    assert finding.action is None


@pytest.mark.parametrize(
    "seen",
    [_still(5, 90_000), _still(90_000, 5), _still(90_000, 90_000, started=60), _still(90_000, 90_000, started=-60)],
    ids=["log grows", "checkpoint moved", "cycle is young", "cycle starts in the future"],
)
def test_any_movement_is_life(seen: Snapshot) -> None:
    assert found(FROZEN, seen) == ()


def test_the_first_cycle_of_a_generation_may_be_silent_for_longer() -> None:
    assert found(FROZEN, _still(3599, 5000, number=0)) == ()
    assert found(FROZEN, _still(3600, 5000, number=0))[0].severity is Severity.WARNING
    assert found(FROZEN, _still(7200, 7200, number=0))[0].severity is Severity.CRITICAL


def test_launchers_that_neither_restart_nor_leave_are_stalled_too() -> None:
    runs = running_generation(11, cycles=row_of(2, newest_ended=2000))
    memory = remember({log_name(11): (1_000_000, 2500), lease_name(11, 0): (700, 400)})
    (finding,) = found(FROZEN, snapshot(generations=generations(g11=runs), memory=memory))
    assert "generation 11 since its cycle 1 ended for 33m" in finding.title
    assert finding.details == ("log: /logs/app_cycle0.log", "the lease of task 0 has stood still for 6m too")


def test_a_launcher_without_cycle_records_can_stall() -> None:
    runs = running_generation(11, cycles=None, rendezvous=rendezvous(11, started_at=ago_text(4000)))
    memory = remember({log_name(11): (1_000_000, 4000)})
    (finding,) = found(FROZEN, snapshot(generations=generations(g11=runs), memory=memory))
    assert "nothing has moved in generation 11 for 1h06m" in finding.title


def test_an_unreadable_iteration_resets_no_timer_and_a_site_without_one_judges_by_the_log() -> None:
    assert len(found(FROZEN, _still(1800, 5000, iteration=blind("not a number")))) == 1
    none = Unavailable("no checkpoint iteration file is known")
    assert len(found(FROZEN, _still(1800, None, iteration=none))) == 1


@pytest.mark.parametrize("log", [None, blind("the log cannot be read"), LogActivity(bytes=1_000_001, newest="/logs/x")])
def test_a_log_that_is_not_seen_or_was_another_before_proves_nothing(log: object) -> None:
    base = _still(90_000, 90_000)
    runs = running_generation(11, cycles=base.generations[0].cycles, log=log)
    assert found(FROZEN, snapshot(generations=generations(g11=runs), memory=base.memory)) == ()


def test_a_first_pass_knows_of_no_stall() -> None:
    assert found(FROZEN, _still(0, 0)) == ()
    assert found(FROZEN, _still(90_000, 90_000, memory=Memory())) == ()


def test_a_generation_that_is_over_or_never_launched_does_not_stall() -> None:
    base = _still(90_000, 90_000)
    cycles = base.generations[0].cycles
    over = running_generation(11, cycles=cycles, closed=closed(11))
    gone = queue(row(11, 0, "COMPLETED"), *queued_rows(12))
    waits = running_generation(11, cycles=None, rendezvous=rendezvous(11, started_at=None))
    for seen in (
        snapshot(generations=generations(g11=over), memory=base.memory),
        _still(90_000, 90_000, queue=gone),
        _still(90_000, 90_000, verdict=verdict()),
        snapshot(generations=generations(g11=waits), memory=base.memory),
    ):
        assert found(FROZEN, seen) == ()


def test_a_stalled_cycle_is_skipped_while_cycles_are_unseen() -> None:
    seen = _still(90_000, 90_000, sources=sources({Source.CYCLES: "it hangs"}))
    assert skips_without(FROZEN, Source.CYCLES, seen)


def test_a_stall_is_seen_without_a_scheduler() -> None:
    assert len(found(FROZEN, _still(1800, 5000, queue=Unavailable("no scheduler is asked")))) == 1


# checkpoint_regressed


def _best(best: Value, now: Value, seconds: float = 300) -> Memory:
    return remember({BEST_ITERATION_NAME: (best, 9000), ITERATION_NAME: (now, seconds)})


def test_a_checkpoint_below_the_best_is_a_warning_and_the_best_itself_is_none() -> None:
    (finding,) = found(REGRESSED, snapshot(iteration=100, memory=_best(200, 100)))
    assert finding.severity is Severity.WARNING
    assert finding.key == "checkpoint_regressed:chain"
    assert finding.title == "the checkpoint went back to iteration 100 from 200"
    assert finding.details == ("lost: 100 iterations",)
    assert found(REGRESSED, snapshot(iteration=200, memory=_best(200, 200))) == ()
    assert found(REGRESSED, snapshot(iteration=201, memory=_best(200, 201))) == ()


def test_a_checkpoint_counts_as_gone_only_when_it_stays_so() -> None:
    (finding,) = found(REGRESSED, snapshot(iteration=None, memory=_best(200, None, 120)))
    assert finding.title == "the checkpoint is gone; iteration 200 was seen before"
    assert found(REGRESSED, snapshot(iteration=None, memory=_best(200, None, 119))) == ()
    assert found(REGRESSED, snapshot(iteration=None, memory=_best(200, 200, 900))) == ()


@pytest.mark.parametrize("best", [None, "200"])
def test_a_best_that_is_no_number_says_nothing(best: Value) -> None:
    assert found(REGRESSED, snapshot(iteration=1, memory=_best(best, 1))) == ()


def test_a_chain_that_is_over_has_lost_nothing() -> None:
    assert found(REGRESSED, snapshot(iteration=100, memory=_best(200, 100), verdict=verdict())) == ()


def test_an_unread_iteration_has_not_gone_back() -> None:
    seen = snapshot(iteration=blind(), memory=_best(200, None), sources=sources({Source.ITERATION: "not a number"}))
    assert skips_without(REGRESSED, Source.ITERATION, seen)


def test_a_healthy_chain_makes_progress() -> None:
    for detector in DETECTORS:
        assert found(detector, snapshot(memory=at_iteration(150, 60))) == ()


_REMEMBERED = st.tuples(st.one_of(st.none(), st.integers(-(10**18), 10**18), st.text(max_size=3)), st.floats(-1e6, 1e6))


@given(seen=hostile_snapshots(), iteration=_REMEMBERED, best=_REMEMBERED, log=_REMEMBERED)
def test_no_cycle_and_no_memory_makes_a_detector_raise(
    seen: Snapshot, iteration: tuple[Value, float], best: tuple[Value, float], log: tuple[Value, float]
) -> None:
    memory = remember({ITERATION_NAME: iteration, BEST_ITERATION_NAME: best, log_name(11): log})
    given_memory = snapshot(generations=seen.generations, iteration=seen.iteration, queue=seen.queue, memory=memory)
    for detector in DETECTORS:
        for finding in detector.check(given_memory, WatchThresholds()):
            assert steers_nobody(finding)
            assert finding.action is None
