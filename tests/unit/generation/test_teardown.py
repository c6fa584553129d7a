"""Carrying out a TeardownAction: what is chosen from one reading, and that only a later reading is success."""

from __future__ import annotations

import pytest

from nvrx_chain.errors import SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.hooks import VARIABLE
from nvrx_chain.generation.teardown import Cancels, carry_out, choose_cancels
from nvrx_chain.records.outcome import TeardownAction
from nvrx_chain.slurm.identity import format_comment
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_slurm import Act
from tests.fakes.generation_lab import CHAIN_ID, JOB_NAME, Lab

NOBODY: frozenset[int] = frozenset()


@pytest.fixture
def context(lab: Lab) -> TaskContext:
    return lab.arrive(1, 0)


def choose(
    lab: Lab,
    context: TaskContext,
    action: TeardownAction,
    *,
    spared: frozenset[int] = NOBODY,
    may_take: frozenset[int] | None = None,
) -> Cancels:
    reading = lab.slurm.queue("alice")
    assert isinstance(reading, QueueReading)
    return choose_cancels(action, reading, context.chain_identity(), 1, spared=spared, may_take=may_take)


def test_the_rest_of_the_chain_is_every_pending_task_of_all_its_generations(lab: Lab, context: TaskContext) -> None:
    assert choose(lab, context, TeardownAction.CANCEL_REST) == Cancels(pending_arrays=(1, 5, 6))


def test_spares_are_the_pending_tasks_of_this_generation_only(lab: Lab, context: TaskContext) -> None:
    assert choose(lab, context, TeardownAction.RELEASE_SPARES) == Cancels(pending_arrays=(1,))


def test_leaving_cancels_nothing(lab: Lab, context: TaskContext) -> None:
    assert choose(lab, context, TeardownAction.LEAVE).done


def test_pending_tasks_go_before_running_ones_so_that_a_freed_slot_starts_no_spare(
    lab: Lab, context: TaskContext
) -> None:
    assert choose(lab, context, TeardownAction.CANCEL_GENERATION) == Cancels(pending_arrays=(1,))
    lab.slurm.cancel(["1"], pending_only=True)
    assert choose(lab, context, TeardownAction.CANCEL_GENERATION) == Cancels(tasks=("1_0", "1_1", "1_2"))


def test_a_running_task_is_taken_only_with_leave_and_waited_for_without(lab: Lab, context: TaskContext) -> None:
    lab.slurm.cancel(["1"], pending_only=True)
    chosen = choose(lab, context, TeardownAction.LEAVE_THEN_CANCEL, spared=frozenset({1}), may_take=frozenset({0}))
    assert chosen == Cancels(tasks=("1_0",), waiting=("1_2",))
    assert not chosen.done


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.FAILED, JobState.NODE_FAIL])
def test_what_does_not_block_singleton_is_not_waited_for(lab: Lab, context: TaskContext, state: JobState) -> None:
    lab.slurm.cancel(["1"], pending_only=True)
    for task in range(3):
        lab.slurm.force_state(f"1_{task}", state)
    assert choose(lab, context, TeardownAction.CANCEL_GENERATION).done


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.STOPPED, JobState.UNKNOWN, JobState.RUNNING])
def test_what_is_not_known_to_be_over_blocks(lab: Lab, context: TaskContext, state: JobState) -> None:
    lab.slurm.cancel(["1"], pending_only=True)
    lab.slurm.force_state("1_0", state)
    assert "1_0" in choose(lab, context, TeardownAction.CANCEL_GENERATION).tasks


def test_a_list_that_slurm_cut_short_counts_as_pending(lab: Lab, context: TaskContext) -> None:
    reading = lab.slurm.queue("alice")
    assert isinstance(reading, QueueReading)
    from dataclasses import replace

    rows = tuple(replace(row, array_task_id=None) if row.state.is_pending else row for row in reading.tasks)
    chosen = choose_cancels(
        TeardownAction.RELEASE_SPARES,
        replace(reading, tasks=rows),
        context.chain_identity(),
        1,
        spared=NOBODY,
        may_take=NOBODY,
    )
    assert chosen.pending_arrays == (1,)


def submit_foreign(lab: Lab) -> list[int]:
    """Jobs that look like ours and are not: another user, name, comment, chain; and one that we never recorded."""
    array = ["--parsable", "--array=0-2%1", "script"]
    ours = format_comment(CHAIN_ID, 9)
    return [
        lab.slurm.submit_as("bob", [*array, f"--job-name={JOB_NAME}", f"--comment={ours}"]),
        lab.slurm.submit_as("alice", [*array, "--job-name=other", f"--comment={ours}"]),
        lab.slurm.submit_as("alice", [*array, f"--job-name={JOB_NAME}", "--comment=mine"]),
        lab.slurm.submit_as("alice", [*array, f"--job-name={JOB_NAME}", "--comment=nvrx-chain:train-12/1"]),
        lab.slurm.submit_as("alice", [*array, f"--job-name={JOB_NAME}", f"--comment={ours}"]),
    ]


def test_jobs_of_others_are_never_touched(lab: Lab, context: TaskContext) -> None:
    foreign = submit_foreign(lab)
    for sequence, job in enumerate(foreign[:4], start=10):
        # Even a record of ours that names them does not make them ours.
        lab.record(sequence, job)
    before = {job: lab.states_of(job) for job in foreign}
    assert carry_out(context, TeardownAction.CANCEL_REST, seconds=60)
    assert {job: lab.states_of(job) for job in foreign} == before
    assert all("PENDING" not in lab.states_of(job) for job in (1, 5, 6))


def test_the_rest_of_the_chain_is_gone_and_running_tasks_are_untouched(lab: Lab, context: TaskContext) -> None:
    assert carry_out(context, TeardownAction.CANCEL_REST, seconds=60)
    assert list(lab.states(1).values()) == ["RUNNING"] * 3 + ["CANCELLED"] * 2
    assert set(lab.states(5).values()) == set(lab.states(6).values()) == {"CANCELLED"}


def test_a_scancel_that_says_yes_and_does_nothing_is_repeated(lab: Lab, context: TaskContext) -> None:
    lab.slurm.script("cancel", Act.IGNORED, Act.IGNORED)
    assert carry_out(context, TeardownAction.RELEASE_SPARES, seconds=60)
    assert len(lab.slurm.asked("cancel")) == 3
    assert [call.arguments for call in lab.slurm.asked("cancel")][-1] == (("1",), True)


@pytest.mark.parametrize("error", [SlurmAmbiguous("cancel jobs"), SlurmError("cancel jobs")])
def test_a_scancel_that_fails_is_repeated(lab: Lab, context: TaskContext, error: Exception) -> None:
    lab.slurm.script("cancel", error)
    assert carry_out(context, TeardownAction.RELEASE_SPARES, seconds=60)
    assert len(lab.slurm.asked("cancel")) == 2


def test_a_queue_that_cannot_be_read_is_no_success_and_is_read_again_later(lab: Lab, context: TaskContext) -> None:
    lab.slurm.script("queue", Unobserved("away"), Unobserved("away"))
    began = lab.clock.monotonic()
    assert carry_out(context, TeardownAction.RELEASE_SPARES, seconds=60)
    assert lab.clock.monotonic() - began >= 10
    assert "PENDING" not in lab.states(1).values()


def test_a_slurm_that_stays_away_ends_within_the_time_as_not_verified(lab: Lab, context: TaskContext) -> None:
    lab.slurm.always("queue", Unobserved("away"))
    began = lab.clock.monotonic()
    assert not carry_out(context, TeardownAction.RELEASE_SPARES, seconds=60)
    assert 50 <= lab.clock.monotonic() - began <= 60
    assert lab.slurm.asked("cancel") == []


def test_a_scancel_that_never_works_ends_within_the_time_and_asks_at_a_bounded_rate(
    lab: Lab, context: TaskContext
) -> None:
    lab.slurm.always("cancel", Act.IGNORED)
    assert not carry_out(context, TeardownAction.RELEASE_SPARES, seconds=120)
    assert len(lab.slurm.asked("queue")) <= 45


def test_generations_that_cannot_be_listed_are_not_taken_for_none(lab: Lab, context: TaskContext) -> None:
    hidden = lab.run.submissions.rename(lab.run.path / "hidden")
    lab.run.submissions.write_text("")

    def mend() -> None:
        lab.run.submissions.unlink()
        hidden.rename(lab.run.submissions)

    lab.clock.after(12, mend)
    assert carry_out(context, TeardownAction.CANCEL_REST, seconds=60)
    assert set(lab.states(6).values()) == {"CANCELLED"}


def test_leaving_asks_slurm_nothing(lab: Lab, context: TaskContext) -> None:
    assert carry_out(context, TeardownAction.LEAVE, seconds=60)
    assert lab.slurm.asked("queue") == []


def test_the_hook_switches_the_release_off(lab: Lab, context: TaskContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-release")
    assert carry_out(context, TeardownAction.CANCEL_REST, seconds=60)
    assert lab.slurm.asked("cancel") == []
