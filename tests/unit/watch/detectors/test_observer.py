"""The watcher's own eyes: what it could not see is said, and is never called gone."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.clock import format_time
from nvrx_watch.detectors.observer import DETECTORS
from nvrx_watch.memory import ITERATION_NAME, QUEUE_EMPTY_NAME, Memory, Seen, task_zero_name
from nvrx_watch.model import Finding, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    NOW,
    account,
    ago,
    ago_text,
    blind,
    cycle,
    generations,
    queue,
    queued_rows,
    remember,
    row,
    running_generation,
    running_rows,
    snapshot,
    sources,
    verdict,
)
from tests.unit.watch.build_cycles import (
    TIMES,
    CountingCycles,
    found,
    hostile_snapshots,
    named,
    skips_without,
    steers_nobody,
    with_cycles,
)

OBSERVER = named(DETECTORS, "observer")
SKEW = named(DETECTORS, "clock_skew")
RUN_DIR = named(DETECTORS, "run_dir_unwritable_or_full")
LIMIT = WatchThresholds().free_bytes


def test_a_chain_in_plain_sight_has_nothing_to_say() -> None:
    for detector in DETECTORS:
        assert found(detector, snapshot()) == ()


# observer


@pytest.mark.parametrize("source", list(Source))
def test_each_blind_source_is_a_warning_with_its_reason(source: Source) -> None:
    (finding,) = found(OBSERVER, snapshot(sources=sources({source: "Connection refused"})))
    assert finding.severity is Severity.WARNING
    assert finding.key == f"observer:{source.value}"
    assert finding.details == ("Connection refused",)
    assert OBSERVER.needs == frozenset()


def test_two_blind_sources_are_two_incidents() -> None:
    seen = snapshot(sources=sources({Source.QUEUE: "x", Source.ACCOUNTING: "y"}))
    assert [one.scope for one in found(OBSERVER, seen)] == ["queue", "accounting"]


def last_seen(seconds: float) -> Memory:
    """The queue was seen last so many seconds ago, and the same as hours before."""
    entry = Seen(value="no", since=ago_text(90_000), looked_at=ago_text(seconds))
    return Memory(seen={QUEUE_EMPTY_NAME: entry})


def _blind_queue(memory: Memory) -> Finding:
    seen = snapshot(queue=blind("timed out"), memory=memory, sources=sources({Source.QUEUE: "timed out"}))
    (finding,) = found(OBSERVER, seen)
    return finding


def test_a_queue_that_no_pass_has_seen_for_long_is_critical() -> None:
    assert _blind_queue(last_seen(899)).severity is Severity.WARNING
    finding = _blind_queue(last_seen(900))
    assert finding.severity is Severity.CRITICAL
    assert finding.title == "the queue could not be observed for 15m"
    assert "squeue" in finding.advice


def test_a_queue_that_was_never_seen_is_blind_for_as_long_as_the_watcher_remembers() -> None:
    assert _blind_queue(Memory()).severity is Severity.WARNING
    assert _blind_queue(remember({ITERATION_NAME: (5, 899)})).severity is Severity.WARNING
    assert _blind_queue(remember({ITERATION_NAME: (5, 900), "x": (1, 3)})).severity is Severity.CRITICAL


@pytest.mark.parametrize("at", ["", "yesterday", "2026-01-01T00:00:00"])
def test_a_damaged_memory_makes_no_blindness_critical(at: str) -> None:
    entry = Seen(value="no", since=at, looked_at=at)
    assert _blind_queue(Memory(seen={QUEUE_EMPTY_NAME: entry})).severity is Severity.WARNING


def test_other_sources_stay_a_warning_however_long() -> None:
    (finding,) = found(OBSERVER, snapshot(memory=last_seen(90_000), sources=sources({Source.NODES: "x"})))
    assert finding.severity is Severity.WARNING


def test_what_a_site_does_not_have_is_one_information() -> None:
    missing = {Source.ACCOUNTING: "accounting storage is disabled", Source.NODES: "no scheduler is asked"}
    (finding,) = found(OBSERVER, snapshot(sources=sources(unavailable=missing)))
    assert finding.severity is Severity.INFO
    assert finding.title == "watched without accounting, nodes"
    assert "accounting: accounting storage is disabled" in finding.details


def _hidden(**overrides: object) -> Snapshot:
    return snapshot(**{"queue": queue(arrays={}, sees_user=False), **overrides})


def test_jobs_that_were_never_visible_may_be_private() -> None:
    (finding,) = found(OBSERVER, _hidden())
    assert finding.severity is Severity.WARNING
    assert finding.key == "observer:jobs"
    assert finding.title == "cannot see the jobs of ann: they may be private"


@pytest.mark.parametrize(
    "overrides",
    [
        {"queue": queue(arrays={}, sees_user=True)},
        {"queue": queue(*running_rows(11), sees_user=False)},
        {"queue": queue(arrays={}, sees_user=False, doubtful={11: "another comment"})},
        {"accounting": {11: (account(11, 0, "COMPLETED"),)}},
        {"memory": remember({task_zero_name(11): ("RUNNING", 900)})},
        {"verdict": verdict()},
        {"generations": ()},
    ],
    ids=["sees the user", "sees a job", "doubtful", "accounting", "seen before", "over", "no generation"],
)
def test_jobs_that_were_ever_visible_are_not_private(overrides: dict[str, object]) -> None:
    assert found(OBSERVER, _hidden(**overrides)) == ()


def test_a_queue_that_was_not_read_hides_nothing() -> None:
    assert found(OBSERVER, snapshot(queue=blind())) == ()


@pytest.mark.parametrize(("unreadable", "severity"), [(1, Severity.INFO), (9, Severity.INFO), (10, Severity.WARNING)])
def test_unreadable_cycle_records_are_counted(unreadable: int, severity: Severity) -> None:
    runs = running_generation(11, unreadable_cycles=unreadable)
    note = f"{unreadable} cycle records of job 11 are unreadable"
    seen = snapshot(generations=generations(g11=runs), sources=sources(notes=[note]))
    (finding,) = found(OBSERVER, seen)
    assert (finding.severity, finding.key) == (severity, "observer:skipped")
    assert finding.details == (note,)


def test_notes_are_information_and_not_without_end() -> None:
    (finding,) = found(OBSERVER, snapshot(sources=sources(notes=[f"note {number}" for number in range(500)])))
    assert finding.severity is Severity.INFO
    assert len(finding.details) == 11
    assert finding.details[-1] == "and 490 more"


# clock_skew


def test_a_file_of_the_future_says_that_clocks_differ() -> None:
    assert found(SKEW, snapshot(file_clock_ahead_seconds=120.0)) == ()
    (finding,) = found(SKEW, snapshot(file_clock_ahead_seconds=121.0))
    assert finding.severity is Severity.WARNING
    assert finding.key == "clock_skew:clock"
    assert finding.details == ("the newest file of the run directory: 2m ahead",)


@pytest.mark.parametrize("ahead", [{"started": -121, "ended": None}, {"started": 10, "ended": -121}])
def test_a_cycle_of_the_future_does_too(ahead: dict[str, int | None]) -> None:
    (finding,) = found(SKEW, with_cycles(cycle(0, **ahead)))
    assert finding.details == ("the newest cycle records: 2m ahead",)


def test_two_minutes_ahead_are_still_fine_and_the_past_always_is() -> None:
    assert found(SKEW, with_cycles(cycle(0, started=-120, ended=-120))) == ()
    assert found(SKEW, with_cycles(cycle(0, started=10**9, ended=None))) == ()


def test_slurm_of_the_future_does_but_not_by_its_guess_for_a_pending_task() -> None:
    guess = row(11, 3, "PENDING", started_at=ago(-90_000))
    assert found(SKEW, snapshot(queue=queue(*running_rows(11)[:3], guess, *queued_rows(12)))) == ()
    for late in (
        row(11, 0, started_at=ago(-121)),
        row(11, 0, submitted_at=ago(-121)),
        row(11, 3, "PENDING", submitted_at=ago(-121)),
    ):
        seen = snapshot(queue=queue(late, row(11, 1), *queued_rows(12)))
        (finding,) = found(SKEW, seen)
        assert finding.details == ("Slurm: 2m ahead",)
    assert len(found(SKEW, snapshot(accounting={11: (account(11, 0, ended_at=ago(-121)),)}))) == 1


def test_clocks_are_judged_by_what_was_seen() -> None:
    seen = snapshot(queue=blind(), accounting=blind(), file_clock_ahead_seconds=None)
    assert found(SKEW, seen) == ()
    unread = snapshot(generations=generations(g11=running_generation(11, cycles=blind())), queue=blind())
    assert found(SKEW, unread) == ()


# run_dir_unwritable_or_full


def test_a_directory_that_cannot_be_written_is_critical() -> None:
    (finding,) = found(RUN_DIR, snapshot(can_write_run_directory=False))
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "run_dir_unwritable_or_full:run-directory"
    assert finding.title == "the run directory cannot be written"


def test_the_last_free_byte_decides() -> None:
    (finding,) = found(RUN_DIR, snapshot(free_bytes=LIMIT - 1))
    assert finding.title == "the run directory is nearly full"
    assert "free: 1024 MiB" in finding.details
    assert found(RUN_DIR, snapshot(free_bytes=LIMIT)) == ()


def test_a_reader_who_does_not_know_whether_it_can_write_says_nothing() -> None:
    assert found(RUN_DIR, snapshot(can_write_run_directory=None, free_bytes=None)) == ()


def test_an_unread_directory_is_neither_full_nor_read_only() -> None:
    seen = snapshot(can_write_run_directory=False, sources=sources({Source.RECORDS: "it hangs"}))
    assert skips_without(RUN_DIR, Source.RECORDS, seen)


def test_a_long_chain_costs_no_more_than_a_short_one() -> None:
    rows = CountingCycles(20_000, cycle(0))
    seen = snapshot(generations=generations(g11=running_generation(11, cycles=rows)))
    for detector in DETECTORS:
        list(detector.check(seen, WatchThresholds()))
    assert rows.touched <= 3


_INSTANTS = TIMES.map(lambda at: format_time(at) if isinstance(at, datetime) and at.tzinfo and at.year > 1 else "x")


@given(seen=hostile_snapshots(), at=_INSTANTS, ended=TIMES, reason=st.text(max_size=30))
def test_no_time_and_no_text_makes_a_detector_raise(
    seen: Snapshot, at: str, ended: datetime | None, reason: str
) -> None:
    given_times = snapshot(
        subject=seen.subject,
        generations=seen.generations,
        queue=queue(row(11, 0, started_at=ended, submitted_at=ended)),
        accounting={11: (account(11, 0, ended_at=ended),)},
        memory=Memory(seen={QUEUE_EMPTY_NAME: Seen(value=reason, since=at, looked_at=at)}),
        file_clock_ahead_seconds=seen.file_clock_ahead_seconds,
        sources=sources(dict.fromkeys(Source, reason), notes=seen.sources.notes),
        can_write_run_directory=False,
        taken_at=NOW,
    )
    for detector in DETECTORS:
        for finding in detector.check(given_times, WatchThresholds()):
            assert steers_nobody(finding)
            assert finding.action is None
