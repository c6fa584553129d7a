"""Spares that task 0 left behind: found by proof, never by silence."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nvrx_chain.slurm.model import QueuedTask
from nvrx_watch.detectors.orphans import find_orphaned_generation, find_orphaned_running_spares
from nvrx_watch.memory import task_zero_name
from nvrx_watch.model import ActionKind, Severity, Snapshot
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    NOW,
    account,
    ago,
    blind,
    foreign_subject,
    generation,
    generations,
    queue,
    queued_rows,
    remember,
    row,
    running_generation,
    running_rows,
    snapshot,
)

LIMITS = WatchThresholds(orphan_grace=60, running_orphan_grace=120)
SPARES = (row(11, 3, "PENDING"), row(11, 4, "PENDING"))
LATER = queued_rows(12)


def orphan(*rows: QueuedTask, ended: float | None = 61, **overrides: object) -> Snapshot:
    """Generation 11 with these rows of it, and an accounted end of its task 0 so many seconds ago."""
    at = ago(ended) if ended is not None else None
    values: dict[str, object] = {
        "queue": queue(*rows, *LATER),
        "accounting": {11: (account(11, 0, "FAILED", ended_at=at),)},
    }
    return snapshot(**{**values, **overrides})


def test_a_healthy_chain_has_no_orphans() -> None:
    assert list(find_orphaned_generation(snapshot(), LIMITS)) == []
    assert list(find_orphaned_running_spares(snapshot(), LIMITS)) == []


def test_pending_spares_of_an_ended_task_0_are_released_by_id() -> None:
    (finding,) = find_orphaned_generation(orphan(row(11, 0, "FAILED"), *SPARES), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "orphaned_generation:11"
    assert finding.action is not None
    assert finding.action.kind is ActionKind.CANCEL_PENDING
    assert finding.action.array_job_id == 11
    assert finding.action.command == "scancel 11_3 11_4"


def test_accounting_speaks_for_a_task_0_that_squeue_no_longer_lists() -> None:
    (finding,) = find_orphaned_generation(orphan(*SPARES), LIMITS)
    assert "sacct" in finding.title


def test_silence_about_task_0_is_never_an_end() -> None:
    assert list(find_orphaned_generation(orphan(*SPARES, accounting={}), LIMITS)) == []
    assert list(find_orphaned_generation(orphan(*SPARES, accounting=blind()), LIMITS)) == []
    absent = remember({task_zero_name(11): ("absent", 9999)})
    assert list(find_orphaned_generation(orphan(*SPARES, accounting={}, memory=absent), LIMITS)) == []


@pytest.mark.parametrize(("ended", "fires"), [(59, False), (60, False), (61, True), (-300, False)])
def test_the_grace_is_kept_and_an_end_in_the_future_is_of_just_now(ended: float, fires: bool) -> None:
    found = list(find_orphaned_generation(orphan(row(11, 0, "FAILED"), *SPARES, ended=ended), LIMITS))
    assert bool(found) is fires


@pytest.mark.parametrize("state", ["COMPLETING", "RUNNING", "SUSPENDED", "PENDING", "XYZ", "SPECIAL_EXIT"])
def test_a_task_0_that_is_not_ended_for_good_is_alive_whatever_accounting_says(state: str) -> None:
    assert list(find_orphaned_generation(orphan(row(11, 0, state), *SPARES), LIMITS)) == []


@pytest.mark.parametrize("state", ["NODE_FAIL", "TIMEOUT", "CANCELLED by 1001", "COMPLETED", "OUT_OF_ME+", "PREEMPTED"])
def test_every_ended_state_of_task_0_orphans_its_spares(state: str) -> None:
    accounting = {11: (account(11, 0, state, ended_at=ago(61)),)}
    assert len(list(find_orphaned_generation(orphan(row(11, 0, state), *SPARES, accounting=accounting), LIMITS))) == 1


def test_an_end_without_a_time_waits_until_this_watcher_has_seen_it_for_the_grace() -> None:
    rows = (row(11, 0, "NODE_FAIL"), *SPARES)
    fresh = remember({task_zero_name(11): ("NODE_FAIL", 60)})
    old = remember({task_zero_name(11): ("NODE_FAIL", 61)})
    running = remember({task_zero_name(11): ("RUNNING", 9999)})
    assert list(find_orphaned_generation(orphan(*rows, accounting={}), LIMITS)) == []
    assert list(find_orphaned_generation(orphan(*rows, accounting={}, memory=fresh), LIMITS)) == []
    assert list(find_orphaned_generation(orphan(*rows, accounting={}, memory=running), LIMITS)) == []
    assert len(list(find_orphaned_generation(orphan(*rows, accounting={}, memory=old), LIMITS))) == 1


def test_an_end_before_the_submission_is_no_time_at_all() -> None:
    nonsense = {11: (account(11, 0, "FAILED", ended_at=ago(10**8)),)}
    assert list(find_orphaned_generation(orphan(*SPARES, accounting=nonsense), LIMITS)) == []


def test_an_accounted_job_of_an_earlier_life_of_the_id_is_not_believed() -> None:
    earlier = {11: (account(11, 0, "FAILED", submitted_at=ago(10**7), ended_at=ago(10**6)),)}
    assert list(find_orphaned_generation(orphan(*SPARES, accounting=earlier), LIMITS)) == []


def test_a_task_0_with_a_live_attempt_in_accounting_is_alive() -> None:
    requeued = {11: (account(11, 0, "NODE_FAIL"), account(11, 0, "RUNNING"))}
    assert list(find_orphaned_generation(orphan(*SPARES, accounting=requeued), LIMITS)) == []


def test_a_row_that_may_hide_task_0_is_not_taken_for_its_absence() -> None:
    hidden = row(11, None, "PENDING")
    assert list(find_orphaned_generation(orphan(*SPARES, hidden), LIMITS)) == []


def test_spares_that_slurm_does_not_name_one_by_one_are_reported_without_an_action() -> None:
    (finding,) = find_orphaned_generation(orphan(row(11, 0, "FAILED"), row(11, None, "PENDING")), LIMITS)
    assert finding.action is None


def test_a_long_list_of_spares_is_one_quoted_range() -> None:
    rows = tuple(row(11, task, "PENDING") for task in range(3, 40))
    (finding,) = find_orphaned_generation(orphan(row(11, 0, "FAILED"), *rows), LIMITS)
    assert finding.action is not None
    assert finding.action.command == "scancel '11_[3-39]'"


def test_a_generation_that_still_assembles_is_orphaned_like_any_other() -> None:
    waiting = generations(g11=generation(11, has_directory=True))
    rows = (row(11, 0, "CANCELLED by 1001"), *SPARES)
    accounting = {11: (account(11, 0, "CANCELLED by 1001", ended_at=ago(90)),)}
    assert list(find_orphaned_generation(orphan(*rows, generations=waiting, accounting=accounting), LIMITS))


def test_a_foreign_chain_is_released_in_the_same_way() -> None:
    seen = orphan(row(11, 0, "FAILED"), *SPARES, subject=foreign_subject(), generations=(generation(11),))
    (finding,) = find_orphaned_generation(seen, LIMITS)
    assert finding.action is not None


def test_without_a_queue_nothing_is_said() -> None:
    seen = snapshot(queue=blind(), accounting={11: (account(11, 0),)})
    assert list(find_orphaned_generation(seen, LIMITS)) == []
    assert list(find_orphaned_running_spares(seen, LIMITS)) == []


def test_running_spares_are_reported_with_their_command_and_never_acted_on() -> None:
    rows = (row(11, 0, "NODE_FAIL"), row(11, 1), row(11, 2))
    (finding,) = find_orphaned_running_spares(orphan(*rows, ended=121, accounting=_node_fail(121)), LIMITS)
    assert finding.severity is Severity.WARNING
    assert finding.action is None
    assert "scancel 11_1 11_2" in finding.advice
    assert "11_1 on n2" in finding.details[0]


def _node_fail(ended: float) -> dict[int, tuple[object, ...]]:
    return {11: (account(11, 0, "NODE_FAIL", ended_at=ago(ended)),)}


@pytest.mark.parametrize(
    ("ended", "severity"),
    [(120, None), (121, Severity.WARNING), (240, Severity.WARNING), (241, Severity.CRITICAL)],
)
def test_running_spares_become_critical_after_twice_the_grace(ended: float, severity: Severity | None) -> None:
    rows = (row(11, 0, "NODE_FAIL"), row(11, 1))
    found = list(find_orphaned_running_spares(orphan(*rows, accounting=_node_fail(ended)), LIMITS))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_spares_that_are_on_their_way_out_are_left_alone() -> None:
    rows = (row(11, 0, "NODE_FAIL"), row(11, 1, "COMPLETING"), row(11, 2, "CANCELLED"))
    assert list(find_orphaned_running_spares(orphan(*rows, accounting=_node_fail(9999)), LIMITS)) == []


def test_ranks_that_say_they_are_gone_are_mentioned() -> None:
    left = generations(g11=running_generation(left=frozenset({1})))
    rows = (row(11, 0, "NODE_FAIL"), row(11, 1), row(11, 2))
    (finding,) = find_orphaned_running_spares(orphan(*rows, accounting=_node_fail(500), generations=left), LIMITS)
    assert "1 task of them say" in finding.details[1]


def test_the_identity_of_an_incident_does_not_grow_with_its_age() -> None:
    seen = orphan(row(11, 0, "FAILED"), *running_rows(11)[3:])
    keys = set()
    for minutes in (0, 5, 50):
        later = snapshot(queue=seen.queue, accounting=seen.accounting, taken_at=NOW + timedelta(minutes=minutes))
        keys.update(finding.key for finding in find_orphaned_generation(later, LIMITS))
    assert keys == {"orphaned_generation:11"}
