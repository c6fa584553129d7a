"""Shared questions: the order of the witnesses, and what is unknown stays unknown."""

from __future__ import annotations

from datetime import datetime

import pytest

from nvrx_chain.records.outcome import Outcome
from nvrx_watch.detectors import facts
from tests.unit.watch.build import (
    NOW,
    account,
    ago,
    ago_text,
    blind,
    closed,
    cycle,
    ended_generation,
    generation,
    generations,
    queue,
    queued_rows,
    record,
    row,
    running_generation,
    snapshot,
)


def test_the_queues_own_row_is_trusted_before_accounting() -> None:
    seen = snapshot(queue=queue(row(11, 0, "FAILED")), accounting={11: (account(11, 0, "NODE_FAIL"),)})
    end = facts.task_zero_end(seen, 11)
    assert end is not None
    assert (end.witness, end.raw_state) == ("squeue", "FAILED")
    # The time in accounting is that of another end.
    assert end.ended_at is None


def test_accounting_adds_the_time_and_who_cancelled() -> None:
    seen = snapshot(
        queue=queue(row(11, 0, "CANCELLED")), accounting={11: (account(11, 0, "CANCELLED by 1001", ended_at=ago(5)),)}
    )
    end = facts.task_zero_end(seen, 11)
    assert end is not None
    assert (end.ended_at, end.cancelled_by) == (ago(5), 1001)


def test_of_several_accounted_ends_the_newest_counts() -> None:
    rows = (account(11, 0, "NODE_FAIL", ended_at=ago(900)), account(11, 0, "FAILED", ended_at=ago(100)))
    for order in (rows, rows[::-1]):
        end = facts.task_zero_end(snapshot(queue=queue(*queued_rows(12)), accounting={11: order}), 11)
        assert end is not None
        assert end.raw_state == "FAILED"


def test_a_live_row_wins_over_everything_that_says_the_generation_is_over() -> None:
    over = ended_generation(11)
    assert not facts.has_ended(snapshot(generations=generations(g11=over)), over)


def test_files_speak_for_a_generation_that_slurm_has_forgotten() -> None:
    gone = queue(*queued_rows(12))
    for one in (ended_generation(11, record=None), ended_generation(11, closed=None)):
        assert facts.has_ended(snapshot(queue=gone, generations=generations(g11=one)), one)
    running = running_generation(11)
    assert not facts.has_ended(snapshot(queue=gone, generations=generations(g11=running)), running)
    assert facts.has_ended(snapshot(queue=blind(), generations=generations()), ended_generation(11))


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("COMPLETED", Outcome.COMPLETED),
        ("TIMEOUT", Outcome.WALLTIME),
        ("CANCELLED by 5", Outcome.TERMINATED),
        ("PREEMPTED", Outcome.PREEMPTED),
        ("NODE_FAIL", Outcome.LEASE_LOST),
        ("OUT_OF_MEMORY", Outcome.FAILED),
    ],
)
def test_a_generation_without_words_is_judged_by_slurms_state(state: str, outcome: Outcome) -> None:
    seen = snapshot(queue=queue(*queued_rows(12)), accounting={11: (account(11, 0, state),)})
    assert facts.outcome_of(seen, generation(11)) is outcome


def test_the_generations_own_word_comes_first() -> None:
    seen = snapshot(queue=queue(*queued_rows(12)), accounting={11: (account(11, 0, "FAILED"),)})
    assert facts.outcome_of(seen, generation(11, closed=closed(11, "walltime"))) is Outcome.WALLTIME
    assert facts.outcome_of(seen, generation(11, closed=blind(), record=blind())) is Outcome.FAILED
    assert facts.outcome_of(snapshot(queue=blind()), generation(11)) is None


def test_a_run_is_measured_by_what_is_there() -> None:
    gone = snapshot(queue=queue(*queued_rows(12)), accounting={})
    assert facts.run_seconds(gone, ended_generation(11)) == 3600
    unstated = ended_generation(11, record=record(11, run_seconds=None), closed=None)
    assert facts.run_seconds(gone, unstated) == 3600
    by_cycles = generation(11, closed=closed(11, closed_at=ago_text(100)), cycles=(cycle(0, started=700, ended=100),))
    assert facts.run_seconds(gone, by_cycles) == 600
    assert facts.run_seconds(gone, generation(11)) is None


def test_a_time_without_a_zone_is_unknown_and_one_in_the_future_is_now() -> None:
    assert facts.seconds_since(datetime(2026, 1, 1), NOW) is None
    assert facts.seconds_since(None, NOW) is None
    assert facts.seconds_since(ago(-500), NOW) == 0.0


def test_later_jobs_are_those_of_the_same_chain_in_its_order() -> None:
    assert facts.later_jobs(snapshot(), 11) == (12, 13)
    assert facts.later_jobs(snapshot(), 13) == ()
    assert facts.later_jobs(snapshot(), 99) == ()
    only_queued = snapshot(queue=queue(row(11, 0), *queued_rows(14)))
    assert facts.ordered_jobs(only_queued) == (11, 12, 13, 14)
