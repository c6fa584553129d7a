"""Why the next generation does not start: busy, in somebody's way, or never by itself."""

from __future__ import annotations

import pytest

from nvrx_watch.detectors.handoff import find_handoff_stuck
from nvrx_watch.memory import LIVE_GENERATION_NAME
from nvrx_watch.model import Queue, Severity, Snapshot
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    account,
    ago,
    blind,
    closed,
    ended_generation,
    foreign_subject,
    generation,
    generations,
    hold,
    queue,
    queued_rows,
    record,
    remember,
    row,
    running_rows,
    snapshot,
    verdict,
)

LIMITS = WatchThresholds(handoff=600)
ENDED = generations(g11=ended_generation(11))


def waiting(reason: str = "Resources", idle: float = 601, **overrides: object) -> Snapshot:
    """Generation 11 is over, nothing runs for so long, and 12 waits with this reason."""
    values: dict[str, object] = {
        "generations": generations(g11=ended_generation(11, closed=None, record=None)),
        "queue": queue(row(11, 0, "FAILED"), *queued_rows(12, reason=reason, dependency=""), *queued_rows(13)),
        "memory": remember({LIVE_GENERATION_NAME: (None, idle)}),
    }
    return snapshot(**{**values, **overrides})


def test_a_healthy_chain_hands_off() -> None:
    assert list(find_handoff_stuck(snapshot(), LIMITS)) == []


@pytest.mark.parametrize("reason", ["Priority", "Resources"])
def test_a_busy_cluster_is_a_warning(reason: str) -> None:
    (finding,) = find_handoff_stuck(waiting(reason), LIMITS)
    assert finding.severity is Severity.WARNING
    assert finding.key == "handoff_stuck:chain"
    assert reason in finding.title
    assert "squeue --start -j 12" in finding.advice


@pytest.mark.parametrize(
    "reason",
    [
        "JobHeldUser",
        "JobHeldAdmin",
        "DependencyNeverSatisfied",
        "BadConstraints",
        "PartitionTimeLimit",
        "InvalidAccount",
        "InvalidQOS",
        "QOSMaxWallDurationPerJobLimit",
        "AssocMaxCpuPerJobLimit",
        "launch failed requeued held",
        "(PartitionNodeLimit)",
    ],
)
def test_a_reason_that_does_not_pass_by_itself_is_critical(reason: str) -> None:
    (finding,) = find_handoff_stuck(waiting(reason), LIMITS)
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize("reason", ["ReqNodeNotAvail, May be reserved", "AssocGrpNodeLimit", "BeginTime", "", "Wombat"])
def test_a_reason_that_may_pass_or_is_not_known_is_a_warning(reason: str) -> None:
    (finding,) = find_handoff_stuck(waiting(reason), LIMITS)
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(("idle", "fires"), [(600, False), (601, True)])
def test_the_hand_off_gets_its_time(idle: float, fires: bool) -> None:
    assert bool(list(find_handoff_stuck(waiting(idle=idle), LIMITS))) is fires


def test_the_end_on_record_speaks_for_a_watcher_that_just_came() -> None:
    late = generations(g11=ended_generation(11))
    fresh = remember({LIVE_GENERATION_NAME: (None, 0)})
    accounting = {11: (account(11, 0, "FAILED", ended_at=ago(601)),)}
    assert list(find_handoff_stuck(waiting(memory=fresh, generations=late, accounting=accounting), LIMITS))
    accounting = {11: (account(11, 0, "FAILED", ended_at=ago(600)),)}
    assert list(find_handoff_stuck(waiting(memory=fresh, generations=late, accounting=accounting), LIMITS)) == []


def test_an_idle_time_that_nobody_knows_waits() -> None:
    assert list(find_handoff_stuck(waiting(memory=remember({})), LIMITS)) == []


@pytest.mark.parametrize(
    "overrides",
    [
        {"queue": blind()},
        {"verdict": verdict("completed")},
        {"hold": hold()},
        {"queue": queue(*running_rows(11), *queued_rows(12))},
        {"queue": queue(row(11, 0, "FAILED"))},
        {"queue": Queue(arrays={})},
    ],
)
def test_a_chain_that_runs_is_held_over_or_empty_is_not_stuck(overrides: dict[str, object]) -> None:
    assert list(find_handoff_stuck(waiting(**overrides), LIMITS)) == []


def test_an_older_generation_that_only_completes_does_not_run() -> None:
    rows = queue(row(11, 0, "COMPLETING"), *queued_rows(12, reason="Resources"))
    assert list(find_handoff_stuck(waiting(queue=rows), LIMITS))


def test_a_chain_that_has_not_begun_waits_like_any_job() -> None:
    rows = queue(*queued_rows(11, reason="Priority"), *queued_rows(12))
    new = waiting(generations=(generation(11), generation(12)), queue=rows)
    (finding,) = find_handoff_stuck(new, LIMITS)
    assert finding.severity is Severity.INFO
    hopeless = queue(*queued_rows(11, reason="BadConstraints"))
    (finding,) = find_handoff_stuck(waiting(generations=(generation(11),), queue=hopeless), LIMITS)
    assert finding.severity is Severity.CRITICAL


def test_what_singleton_waits_for_is_named() -> None:
    rows = queue(row(11, 0, "FAILED"), row(11, 3, "PENDING"), *queued_rows(12))
    (finding,) = find_handoff_stuck(waiting(queue=rows), LIMITS)
    assert finding.array_job_ids == (12,)
    assert "it waits for 11_3 PENDING" in finding.details
    assert finding.severity is Severity.WARNING


def test_a_stranger_of_the_same_name_is_named() -> None:
    rows = queue(row(11, 0, "FAILED"), *queued_rows(12), foreign=(row(99, 0),))
    (finding,) = find_handoff_stuck(waiting(queue=rows), LIMITS)
    assert "it waits for 99_0 RUNNING" in finding.details
    assert finding.severity is Severity.WARNING


def test_a_dependency_on_nothing_is_critical() -> None:
    (finding,) = find_handoff_stuck(waiting("Dependency"), LIMITS)
    assert finding.severity is Severity.CRITICAL


def test_a_generation_that_was_moved_to_a_partition_of_its_own_is_critical() -> None:
    moved = queue(row(11, 0, "FAILED"), *queued_rows(12, reason="Priority", partition="starved"), *queued_rows(13))
    (finding,) = find_handoff_stuck(waiting(queue=moved), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert any("partition starved" in line for line in finding.details)


def test_a_list_of_partitions_that_holds_the_siblings_is_no_move() -> None:
    several = queue(row(11, 0, "FAILED"), *queued_rows(12, reason="Priority", partition="batch,long"), *queued_rows(13))
    (finding,) = find_handoff_stuck(waiting(queue=several), LIMITS)
    assert finding.severity is Severity.WARNING


def test_a_held_spare_does_not_make_a_busy_cluster_hopeless() -> None:
    rows = queue(
        row(11, 0, "FAILED"),
        row(12, 0, "PENDING", reason="Priority"),
        row(12, 4, "PENDING", reason="JobHeldUser"),
    )
    (finding,) = find_handoff_stuck(waiting(queue=rows), LIMITS)
    assert finding.severity is Severity.WARNING


def test_a_foreign_chain_is_judged_the_same() -> None:
    seen = waiting("BadConstraints", subject=foreign_subject(), generations=(generation(11), generation(12)))
    (finding,) = find_handoff_stuck(seen, LIMITS)
    assert finding.severity is Severity.CRITICAL


def test_reasons_cannot_steer_a_terminal() -> None:
    (finding,) = find_handoff_stuck(waiting("\x1b[2J" + "x" * 5000), LIMITS)
    assert finding.title.isprintable()
    assert len(finding.title) < 400


def test_a_generation_that_is_closed_and_recorded_counts_as_ended_without_slurm() -> None:
    late = generations(g11=ended_generation(11, closed=closed(11), record=record(11)))
    rows = queue(*queued_rows(12, reason="Resources"))
    assert list(find_handoff_stuck(waiting(generations=late, queue=rows, memory=remember({})), LIMITS)) == []
    assert list(
        find_handoff_stuck(waiting(generations=late, queue=rows, memory=remember({})), WatchThresholds(handoff=599))
    )
