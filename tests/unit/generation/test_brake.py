"""A chain whose generations fail without a new checkpoint is held, not burned."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.clock import format_time
from nvrx_chain.errors import SlurmAmbiguous, Unobserved
from nvrx_chain.generation.brake import brake_if_needed, hold_chain, judge_brake, records_for_brake
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.records.control import GenerationRecord, Hold
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.outcome import BRAKE_COUNTS, Outcome
from nvrx_chain.records.progress import UNREADABLE
from tests.fakes.fake_slurm import Act
from tests.fakes.generation_lab import Lab, read, terminate

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
BRAKE = 300.0


def record(
    outcome: Outcome | None = Outcome.FAILED,
    *,
    seconds: float | None = 10.0,
    start: int | None = 100,
    end: int | None = 100,
    hour: int = 1,
    launched: bool = True,
    job: int = 1,
) -> GenerationRecord:
    """A generation that ended in this hour."""
    at = START + timedelta(hours=hour)
    return GenerationRecord(
        chain_id="train-1",
        started_at=format_time(at),
        launched_at=format_time(at) if launched else None,
        ended_at=format_time(at) if outcome else None,
        outcome=outcome,
        exit_code=1,
        signalled=False,
        near_wall=False,
        iteration_at_start=start,
        iteration_at_end=end,
        cycles=None,
        run_seconds=seconds,
        array_job_id=job,
        array_task_id=0,
        restart_count=0,
        host="n1",
        boot_id="b",
        pid=1,
        pid_started_at=1,
    )


def is_held(*records: GenerationRecord, released_hour: int | None = None) -> bool:
    released = START + timedelta(hours=released_hour, minutes=30) if released_hour is not None else None
    return judge_brake(records, released, BRAKE) is not None


FAST = record()
LONG = record(seconds=BRAKE)


def test_two_fast_failures_in_a_row_hold_and_one_does_not() -> None:
    assert not is_held()
    assert not is_held(FAST)
    assert is_held(FAST, FAST)


def test_a_failure_of_exactly_the_brake_time_is_no_fast_one() -> None:
    assert not is_held(FAST, LONG)
    assert not is_held(LONG, FAST)
    assert is_held(record(seconds=BRAKE - 0.1), FAST)


def test_three_failures_of_any_length_hold() -> None:
    assert not is_held(LONG, LONG)
    assert is_held(LONG, LONG, LONG)
    assert is_held(LONG, FAST, LONG)


@pytest.mark.parametrize("outcome", sorted(Outcome, key=lambda outcome: outcome.value))
def test_only_failed_and_unfinished_count(outcome: Outcome) -> None:
    assert is_held(record(outcome), record(outcome)) is (outcome in BRAKE_COUNTS)
    assert {Outcome.FAILED, Outcome.UNFINISHED} == BRAKE_COUNTS


@pytest.mark.parametrize("outcome", [Outcome.LEASE_LOST, Outcome.TERMINATED, Outcome.PREEMPTED, Outcome.WALLTIME])
def test_an_end_from_outside_between_two_failures_neither_counts_nor_clears(outcome: Outcome) -> None:
    assert is_held(FAST, record(outcome, seconds=None), FAST)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.HELD, Outcome.NOT_ASSEMBLED, Outcome.TERMINATED])
def test_a_generation_that_launched_nothing_made_no_progress_whatever_checkpoint_it_found(outcome: Outcome) -> None:
    # It knew no iteration at its start, and 500 was there at its end.
    idle = record(outcome, seconds=None, start=None, end=500, launched=False)
    assert is_held(FAST, idle, FAST)


def test_generations_that_fail_before_they_launch_anything_are_braked_too() -> None:
    broken = record(seconds=None, start=None, end=500, launched=False)
    assert is_held(broken, broken)


def test_a_new_checkpoint_clears_what_was_before_it() -> None:
    assert not is_held(FAST, FAST, record(end=101))
    assert not is_held(FAST, record(end=101), FAST)
    assert is_held(FAST, record(end=101), FAST, FAST)


def test_the_first_checkpoint_of_a_chain_is_progress_and_going_back_is_not() -> None:
    assert not is_held(FAST, record(start=None, end=1))
    assert is_held(FAST, record(start=100, end=50))
    assert is_held(FAST, record(start=None, end=None))


@pytest.mark.parametrize(("start", "end"), [(UNREADABLE, 5), (5, UNREADABLE), (UNREADABLE, UNREADABLE)])
def test_an_unreadable_iteration_neither_counts_nor_clears(start: int, end: int) -> None:
    unknown = record(start=start, end=end)
    assert not is_held(FAST, unknown)
    assert is_held(FAST, unknown, FAST)


def test_only_generations_that_ended_after_the_last_release_count() -> None:
    before, after = record(hour=1), record(hour=3)
    assert not is_held(before, before, released_hour=2)
    assert not is_held(before, after, released_hour=2)
    assert is_held(before, after, after, released_hour=2)


def test_a_generation_without_an_end_is_nothing_yet() -> None:
    assert not is_held(FAST, record(None))
    assert is_held(FAST, FAST, record(None))


@given(st.lists(st.sampled_from(sorted(Outcome, key=lambda o: o.value)), max_size=8), st.booleans())
def test_no_chain_is_held_without_at_least_two_failures(outcomes: list[Outcome], fast: bool) -> None:
    records = [record(outcome, seconds=1.0 if fast else 1000.0) for outcome in outcomes]
    if is_held(*records):
        assert sum(outcome in BRAKE_COUNTS for outcome in outcomes) >= (2 if fast else 3)


# On a real chain


@pytest.fixture
def context(lab: Lab) -> TaskContext:
    return lab.arrive(1, 0)


def write(lab: Lab, job: int, what: GenerationRecord) -> None:
    directory = lab.directory(job)
    directory.path.mkdir(exist_ok=True)
    write_atomic(directory.record, encode_record(what))


def reasons(lab: Lab, job: int) -> set[str]:
    return {lab.slurm.task(f"{job}_{task}").reason for task in range(5)}


def test_the_hold_is_written_and_every_queued_generation_is_held(lab: Lab, context: TaskContext) -> None:
    assert hold_chain(context, "it fails", 60)
    assert reasons(lab, 5) == reasons(lab, 6) == {"JobHeldUser"}
    assert "JobHeldUser" not in reasons(lab, 1)
    hold = lab.chain.hold()
    assert hold is not None
    assert (hold.why, hold.array_job_ids, hold.released_at) == ("it fails", (5, 6), None)
    assert "1_0" in hold.by


def test_a_hold_that_says_yes_and_does_nothing_is_repeated(lab: Lab, context: TaskContext) -> None:
    lab.slurm.script("hold", Act.IGNORED, SlurmAmbiguous("hold jobs"))
    assert hold_chain(context, "it fails", 60)
    assert reasons(lab, 5) == {"JobHeldUser"}


def test_a_slurm_that_stays_away_leaves_the_hold_written_and_not_verified(lab: Lab, context: TaskContext) -> None:
    lab.slurm.always("queue", Unobserved("away"))
    began = lab.clock.monotonic()
    assert not hold_chain(context, "it fails", 60)
    assert lab.clock.monotonic() - began <= 63
    assert read(lab.run.hold, Hold).why == "it fails"


def test_a_term_ends_the_wait_for_a_hold(lab: Lab, context: TaskContext) -> None:
    lab.slurm.always("queue", Unobserved("away"))
    lab.clock.after(3, lambda: terminate(context))
    began = lab.clock.monotonic()
    assert not hold_chain(context, "it fails", 120)
    assert lab.clock.monotonic() - began <= 5


def test_jobs_of_others_are_not_held(lab: Lab, context: TaskContext) -> None:
    other = lab.slurm.submit_as("alice", ["--array=0-2", "--job-name=train", "--comment=mine", "--hold", "x"])
    foreign = lab.slurm.submit_as("alice", ["--array=0-2", "--job-name=other", "--dependency=singleton", "x"])
    lab.record(9, foreign)
    assert hold_chain(context, "it fails", 60)
    assert ("hold", ((str(foreign),),)) not in [(c.operation, c.arguments) for c in lab.slurm.calls]
    assert ("hold", ((str(other),),)) not in [(c.operation, c.arguments) for c in lab.slurm.calls]


def test_the_operators_own_hold_is_not_overwritten(lab: Lab, context: TaskContext) -> None:
    mine = Hold(
        chain_id="train-1", by="alice on login1", why="maintenance", held_at=format_time(START), array_job_ids=(5,)
    )
    lab.chain.write_hold(mine)
    assert hold_chain(context, "it fails", 60)
    assert lab.chain.hold() == mine
    assert reasons(lab, 6) == {"JobHeldUser"}


def test_a_chain_with_nothing_left_to_hold_is_held_at_once(lab: Lab) -> None:
    context = lab.context(6, 0)
    lab.slurm.cancel(["1", "5"])
    assert hold_chain(context, "it fails", 60)
    assert lab.slurm.asked("hold") == []


def test_the_records_of_this_chain_in_order_and_no_other_s_decide(lab: Lab) -> None:
    context = lab.context(6, 0)
    write(lab, 1, record(job=1))
    write(lab, 5, record(job=5))
    assert [r.array_job_id for r in records_for_brake(context)] == [1, 5]
    assert brake_if_needed(context)
    assert lab.chain.hold() is not None


def test_one_failure_does_not_hold(lab: Lab) -> None:
    context = lab.context(5, 0)
    write(lab, 1, record(job=1))
    assert not brake_if_needed(context)
    assert lab.chain.hold() is None
    assert lab.slurm.asked("hold") == []


def test_after_a_release_the_same_failures_do_not_hold_again(lab: Lab) -> None:
    context = lab.context(6, 0)
    write(lab, 1, record(job=1))
    write(lab, 5, record(job=5))
    released = format_time(START + timedelta(hours=2))
    lab.chain.write_hold(
        Hold(
            chain_id="train-1",
            by="brake",
            why="it fails",
            held_at=format_time(START),
            array_job_ids=(),
            released_at=released,
            released_by="alice",
        )
    )
    assert not brake_if_needed(context)
