"""Generations that end again and again: the whole chain counts, and what is unknown does not."""

from __future__ import annotations

import pytest

from nvrx_chain.records.progress import UNREADABLE
from nvrx_watch.detectors.burning import find_generation_churn, find_no_progress
from nvrx_watch.memory import ITERATION_NAME
from nvrx_watch.model import ActionKind, Generation, Severity, Snapshot
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    account,
    ago,
    ago_text,
    blind,
    cycle,
    ended_generation,
    foreign_subject,
    generation,
    hold,
    queue,
    queued_rows,
    record,
    remember,
    row,
    running_generation,
    running_rows,
    snapshot,
    verdict,
)

LIMITS = WatchThresholds(churn_generations=3, churn_seconds=600, idle_generations=3)
QUEUED = queue(*queued_rows(14), *queued_rows(15))
NEXT = (generation(14), generation(15))


def short(job: int, seconds: float = 599, outcome: str = "failed", **overrides: object) -> Generation:
    return ended_generation(job, outcome, record=record(job, outcome, run_seconds=seconds, **overrides))


def idle(
    job: int, start: int | None = 100, end: int | None = 100, outcome: str = "failed", **more: object
) -> Generation:
    stated = record(job, outcome, iteration_at_start=start, iteration_at_end=end, **more)
    return ended_generation(job, outcome, record=stated)


def chain(*ended: Generation, **overrides: object) -> Snapshot:
    values: dict[str, object] = {"generations": (*ended, *NEXT), "queue": QUEUED, "iteration": 100}
    return snapshot(**{**values, **overrides})


def test_a_healthy_chain_burns_nothing() -> None:
    assert list(find_generation_churn(snapshot(), LIMITS)) == []
    assert list(find_no_progress(snapshot(), LIMITS)) == []


def test_three_short_failures_in_a_row_are_churn_and_ask_for_a_hold() -> None:
    (finding,) = find_generation_churn(chain(short(11), short(12), short(13)), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert finding.array_job_ids == (11, 12, 13)
    assert "11 failed after 9m" in finding.details[0]
    assert finding.action is not None
    assert finding.action.kind is ActionKind.HOLD
    assert finding.action.command.startswith("nvrx-chain hold --run-dir")


@pytest.mark.parametrize(
    "ended",
    [
        (short(12), short(13)),
        (short(11), short(12, 600), short(13)),
        (short(11), short(12), short(13, 600)),
    ],
)
def test_one_fewer_or_one_that_lasted_is_no_churn(ended: tuple[Generation, ...]) -> None:
    assert list(find_generation_churn(chain(*ended), LIMITS)) == []


@pytest.mark.parametrize("outcome", ["completed", "walltime", "terminated", "preempted", "superseded", "held"])
def test_an_end_that_is_no_failure_breaks_the_row(outcome: str) -> None:
    assert list(find_generation_churn(chain(short(11), short(12, outcome=outcome), short(13)), LIMITS)) == []


@pytest.mark.parametrize("outcome", ["failed", "unfinished", "lease_lost", "rendezvous_lost", "stuck", "refused"])
def test_every_failure_counts(outcome: str) -> None:
    assert list(find_generation_churn(chain(short(11), short(12, outcome=outcome), short(13)), LIMITS))


@pytest.mark.parametrize(
    "overrides",
    [
        {"hold": hold()},
        {"hold": hold(released_at=ago_text(300), released_by="ann")},
        {"verdict": verdict("no_restart")},
    ],
)
def test_a_chain_that_is_held_over_or_released_since_is_quiet(overrides: dict[str, object]) -> None:
    assert list(find_generation_churn(chain(short(11), short(12), short(13), **overrides), LIMITS)) == []
    assert list(find_no_progress(chain(idle(11), idle(12), idle(13), **overrides), LIMITS)) == []


def test_what_ended_after_the_release_counts_anew() -> None:
    released = hold(released_at=ago_text(700), released_by="ann")
    assert list(find_generation_churn(chain(short(11), short(12), short(13), hold=released), LIMITS))


@pytest.mark.parametrize(("ran", "fires"), [(599, True), (600, False)])
def test_a_generation_that_outlives_the_limit_ends_the_churn(ran: float, fires: bool) -> None:
    running = (short(11), short(12), short(13), running_generation(14), generation(15))
    rows = queue(*running_rows(14, started_at=ago(ran)), *queued_rows(15))
    assert bool(list(find_generation_churn(snapshot(generations=running, queue=rows), LIMITS))) is fires


def test_without_a_duration_nothing_is_counted() -> None:
    unknown = ended_generation(12, record=None)
    assert list(find_generation_churn(chain(short(11), unknown, short(13)), LIMITS)) == []


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -5.0])
def test_an_absurd_duration_is_replaced_by_the_times_on_record(seconds: float) -> None:
    stated = short(12, seconds, started_at=ago_text(700), ended_at=ago_text(600))
    assert list(find_generation_churn(chain(short(11), stated, short(13)), LIMITS))


def test_a_hold_is_not_asked_for_when_all_is_held_or_nothing_is_queued() -> None:
    held = queue(*queued_rows(14, reason="JobHeldUser"), *queued_rows(15, reason="JobHeldUser"))
    for rows in (held, queue(row(13, 0, "FAILED")), blind()):
        (finding,) = find_generation_churn(chain(short(11), short(12), short(13), queue=rows), LIMITS)
        assert finding.action is None


def test_a_foreign_chain_churns_by_accounting() -> None:
    accounting = {job: (account(job, 0, started_at=ago(1000), ended_at=ago(900)),) for job in (11, 12, 13)}
    ended = tuple(generation(job) for job in (11, 12, 13))
    seen = chain(*ended, subject=foreign_subject(), accounting=accounting)
    (finding,) = find_generation_churn(seen, LIMITS)
    assert finding.action is not None
    assert finding.action.command == "scontrol hold 14 15"
    ended_well = accounting | {12: (account(12, 0, "TIMEOUT", started_at=ago(1000), ended_at=ago(900)),)}
    assert list(find_generation_churn(chain(*ended, subject=foreign_subject(), accounting=ended_well), LIMITS)) == []


def test_three_generations_at_the_same_iteration_are_no_progress_and_say_what_they_cost() -> None:
    (finding,) = find_no_progress(chain(idle(11), idle(12), idle(13)), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert "stays at iteration 100" in finding.title
    # Three of an hour on three nodes each.
    assert "9.0 node-hours" in finding.details[0]
    assert finding.action is not None
    assert finding.action.kind is ActionKind.HOLD


def test_never_checkpointed_at_all_is_no_progress() -> None:
    never = tuple(idle(job, None, None) for job in (11, 12, 13))
    (finding,) = find_no_progress(chain(*never, iteration=None), LIMITS)
    assert "no checkpoint at all" in finding.title


def test_two_idle_generations_are_one_too_few() -> None:
    assert list(find_no_progress(chain(idle(12), idle(13)), LIMITS)) == []


def test_a_new_checkpoint_anywhere_in_the_row_clears_it() -> None:
    assert list(find_no_progress(chain(idle(11), idle(12, 100, 101), idle(13, 101, 101)), LIMITS)) == []


def test_falling_back_and_catching_up_again_and_again_is_no_progress() -> None:
    saw = (idle(11, 100, 200), idle(12, 100, 200), idle(13, 100, 200), idle(14, 100, 200))
    seen = snapshot(generations=(*saw, generation(15)), queue=queue(*queued_rows(15)), iteration=200)
    (finding,) = find_no_progress(seen, LIMITS)
    assert finding.array_job_ids == (12, 13, 14)


def test_a_wanted_step_back_that_gets_further_each_time_is_progress() -> None:
    back = (idle(10, 800, 900), idle(11, 500, 600), idle(12, 600, 700), idle(13, 700, 800))
    assert list(find_no_progress(chain(*back, iteration=800), LIMITS)) == []


def test_an_unreadable_iteration_is_skipped_and_not_scored() -> None:
    unreadable = idle(12, 100, UNREADABLE)
    assert list(find_no_progress(chain(idle(11), unreadable, idle(13)), LIMITS)) == []
    (finding,) = find_no_progress(chain(idle(10), idle(11), unreadable, idle(13)), LIMITS)
    assert finding.array_job_ids == (10, 11, 13)


def test_a_generation_that_never_launched_takes_no_credit() -> None:
    never = idle(12, None, 150, launched_at=None)
    (finding,) = find_no_progress(chain(idle(11), never, idle(13)), LIMITS)
    assert 12 in finding.array_job_ids


@pytest.mark.parametrize("outcome", ["terminated", "superseded", "held"])
def test_what_somebody_took_away_neither_counts_nor_clears(outcome: str) -> None:
    taken = idle(12, outcome=outcome)
    assert list(find_no_progress(chain(idle(11), taken, idle(13)), LIMITS)) == []
    (finding,) = find_no_progress(chain(idle(10), idle(11), taken, idle(13)), LIMITS)
    assert 12 not in finding.array_job_ids


def test_the_generation_that_runs_now_can_end_it() -> None:
    assert list(find_no_progress(chain(idle(11), idle(12), idle(13), iteration=101), LIMITS)) == []


def test_a_foreign_chain_is_judged_by_what_this_watcher_saw() -> None:
    accounting = {job: (account(job, 0, started_at=ago(1000), ended_at=ago(900)),) for job in (11, 12, 13)}
    ended = tuple(generation(job, cycles=(cycle(0, started=1000, ended=900),)) for job in (11, 12, 13))

    def seen(seconds: float, iteration: object = 100) -> Snapshot:
        memory = remember({ITERATION_NAME: (100, seconds)})
        return chain(*ended, subject=foreign_subject(), accounting=accounting, memory=memory, iteration=iteration)

    (finding,) = find_no_progress(seen(1000), LIMITS)
    assert finding.array_job_ids == (11, 12, 13)
    assert "0.2 node-hours" in finding.details[0] or "0.3 node-hours" in finding.details[0]
    assert list(find_no_progress(seen(999), LIMITS)) == []
    assert list(find_no_progress(seen(1000, iteration=150), LIMITS)) == []
    assert list(find_no_progress(seen(1000, iteration=None), LIMITS)) == []
    assert list(find_no_progress(seen(1000, iteration=blind()), LIMITS)) == []
