"""The fake does what was measured on a real Slurm; what both must do is in client_contract.py."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_chain.slurm.states import JobState, NodeState
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_controller import Limits
from tests.fakes.fake_slurm import Act, AfterDoing, FakeSlurm

EARLY = datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def slurm(clock: FakeClock) -> FakeSlurm:
    return FakeSlurm(clock)


def chain(slurm: FakeSlurm, array: str = "0-4%3", *options: str) -> int:
    argv = ["--parsable", "--job-name=llama", f"--array={array}", "--dependency=singleton", *options, "/w/x.sbatch"]
    return slurm.submit(argv).array_job_id


def rows(slurm: FakeSlurm, job: int) -> dict[int | None, QueuedTask]:
    reading = slurm.queue()
    assert not isinstance(reading, Unobserved)
    return {task.array_task_id: task for task in reading.of(job)}


def states(slurm: FakeSlurm, job: int) -> dict[int | None, JobState]:
    return {index: task.state for index, task in rows(slurm, job).items()}


def test_a_successor_starts_beside_a_predecessor_that_ignores_term(slurm: FakeSlurm, clock: FakeClock) -> None:
    first, second = chain(slurm), chain(slurm)
    slurm.ignore_term(f"{first}_0")
    slurm.cancel([str(first)])
    assert states(slurm, first)[0] is JobState.COMPLETING
    assert states(slurm, second)[0] is JobState.RUNNING
    assert rows(slurm, second)[0].nodelist != rows(slurm, first)[0].nodelist
    clock.advance(29)
    assert states(slurm, first)[0] is JobState.COMPLETING
    clock.advance(1)
    assert states(slurm, first)[0] is JobState.CANCELLED


def test_a_cold_spare_takes_the_slot_of_a_task_that_is_completing(slurm: FakeSlurm) -> None:
    job = chain(slurm)
    slurm.ignore_term(f"{job}_0")
    slurm.cancel([f"{job}_0"])
    assert states(slurm, job) == {
        0: JobState.COMPLETING,
        1: JobState.RUNNING,
        2: JobState.RUNNING,
        3: JobState.RUNNING,
        4: JobState.PENDING,
    }


def test_tasks_that_wait_or_run_keep_the_successor_back(slurm: FakeSlurm) -> None:
    first, second = chain(slurm), chain(slurm)
    slurm.finish(f"{first}_0", 1)
    assert rows(slurm, first)[3].state is JobState.RUNNING
    assert {task.reason for task in rows(slurm, second).values()} == {"Dependency"}


def test_a_dead_node_is_noticed_late_and_soon_after_a_nudge(slurm: FakeSlurm, clock: FakeClock) -> None:
    job = chain(slurm)
    slurm.lose_node("n1")
    clock.advance(199)
    nodes = slurm.nodes(["n1"])
    assert not isinstance(nodes, Unobserved)
    assert nodes["n1"].responding
    clock.advance(1)
    nodes = slurm.nodes(["n1"])
    assert not isinstance(nodes, Unobserved)
    assert (nodes["n1"].raw_state, nodes["n1"].responding) == ("allocated*", False)
    slurm.lose_node("n2")
    slurm.nudge(f"{job}_1")
    clock.advance(12)
    nodes = slurm.nodes(["n2"])
    assert not isinstance(nodes, Unobserved)
    assert not nodes["n2"].responding


def test_a_dead_node_is_given_up_after_slurmd_timeout(slurm: FakeSlurm, clock: FakeClock) -> None:
    job = chain(slurm)
    slurm.lose_node("n1")
    clock.advance(299)
    assert states(slurm, job)[0] is JobState.RUNNING
    clock.advance(1)
    assert states(slurm, job)[0] is JobState.NODE_FAIL
    nodes = slurm.nodes(["n1"])
    assert not isinstance(nodes, Unobserved)
    assert (nodes["n1"].state, nodes["n1"].reason) == (NodeState.DOWN, "Not responding")


def test_what_is_cancelled_on_a_dead_node_completes_with_the_node_and_blocks_nobody(
    slurm: FakeSlurm, clock: FakeClock
) -> None:
    first, second = chain(slurm), chain(slurm)
    slurm.lose_node("n1")
    slurm.cancel([str(first)])
    assert states(slurm, second)[0] is JobState.RUNNING
    clock.advance(200)
    assert states(slurm, first)[0] is JobState.COMPLETING
    clock.advance(100)
    assert states(slurm, first)[0] is JobState.CANCELLED


def test_a_node_that_comes_back_still_runs_what_ran_there(slurm: FakeSlurm, clock: FakeClock) -> None:
    job = chain(slurm)
    slurm.lose_node("n1")
    clock.advance(250)
    slurm.restore_node("n1")
    clock.advance(1000)
    assert states(slurm, job)[0] is JobState.RUNNING


def test_a_node_set_down_fails_its_task_at_once_and_the_spare_starts(slurm: FakeSlurm) -> None:
    job = chain(slurm)
    slurm.set_down("n1")
    assert states(slurm, job)[0] is JobState.NODE_FAIL
    assert states(slurm, job)[3] is JobState.RUNNING
    assert rows(slurm, job)[3].nodelist == "n4"


def test_a_released_task_of_an_old_generation_runs_beside_the_new_one(slurm: FakeSlurm) -> None:
    first, second = chain(slurm), chain(slurm)
    slurm.hold([f"{first}_4"])
    for index in range(4):
        slurm.cancel([f"{first}_{index}"])
    assert states(slurm, second)[0] is JobState.RUNNING
    slurm.release([f"{first}_4"])
    assert states(slurm, first)[4] is JobState.RUNNING
    assert slurm.task(f"{first}_4").job_id > second


def test_the_cancelled_rest_is_one_row_without_an_index(slurm: FakeSlurm) -> None:
    job = chain(slurm)
    slurm.cancel([str(job)], pending_only=True)
    assert states(slurm, job) == {
        0: JobState.RUNNING,
        1: JobState.RUNNING,
        2: JobState.RUNNING,
        None: JobState.CANCELLED,
    }
    accounted = slurm.accounting([job], EARLY)
    assert not isinstance(accounted, Unobserved)
    assert sorted(str(task.array_task_id) for task in accounted) == ["0", "1", "2", "None"]


def test_a_waiting_task_cancelled_alone_is_forgotten(slurm: FakeSlurm) -> None:
    job = chain(slurm, "0-5%1")
    slurm.cancel([f"{job}_3"])
    assert set(states(slurm, job)) == {0, 1, 2, 4, 5}


def test_the_last_task_to_start_has_the_id_of_the_array(slurm: FakeSlurm) -> None:
    job = chain(slurm, "0-2")
    assert [task.job_id for task in rows(slurm, job).values()] == [job + 1, job + 2, job]


def test_ended_tasks_leave_the_queue_and_stay_in_accounting(slurm: FakeSlurm, clock: FakeClock) -> None:
    job = chain(slurm, "0-0")
    slurm.finish(f"{job}_0", 93, step_exit_codes=(93,))
    details = slurm.show_job(job)
    assert isinstance(details, tuple)
    assert (details[0].exit_code, details[0].exit_signal) == (93, 0)
    clock.advance(301)
    assert states(slurm, job) == {}
    assert slurm.show_job(job) is None
    accounted = slurm.accounting([job], EARLY)
    assert not isinstance(accounted, Unobserved)
    assert [(task.state, task.exit_code, task.step_exit_codes) for task in accounted] == [(JobState.FAILED, 93, (93,))]


def test_accounting_shows_no_code_of_a_cancelled_task(slurm: FakeSlurm) -> None:
    job = chain(slurm, "0-0")
    slurm.cancel([str(job)])
    accounted = slurm.accounting([job], EARLY)
    assert not isinstance(accounted, Unobserved)
    (task,) = accounted
    assert (task.exit_code, task.exit_signal, task.cancelled_by) == (0, 0, 1001)
    assert task.raw_state == "CANCELLED by 1001"


def test_waiting_generations_are_not_in_accounting(slurm: FakeSlurm) -> None:
    chain(slurm)
    assert slurm.accounting([chain(slurm)], EARLY) == ()


def test_a_time_limit_ends_a_task(slurm: FakeSlurm, clock: FakeClock) -> None:
    job = chain(slurm, "0-0", "--time=10")
    clock.advance(599)
    assert states(slurm, job)[0] is JobState.RUNNING
    clock.advance(1)
    assert states(slurm, job)[0] is JobState.TIMEOUT


def test_other_users_with_the_name_are_independent(slurm: FakeSlurm) -> None:
    argv = ["--parsable", "--job-name=llama", "--array=0-0", "--dependency=singleton", "/x"]
    theirs = slurm.submit_as("bob", argv)
    mine = chain(slurm, "0-0")
    assert (states(slurm, theirs)[0], states(slurm, mine)[0]) == (JobState.RUNNING, JobState.RUNNING)
    reading = slurm.queue("bob")
    assert not isinstance(reading, Unobserved)
    assert {task.array_job_id for task in reading.tasks} == {theirs}


def test_tasks_of_several_nodes_get_whole_nodes_until_there_are_none(slurm: FakeSlurm) -> None:
    job = chain(slurm, "0-4", "--nodes=3")
    assert [task.nodelist for task in rows(slurm, job).values()] == ["n[1-3]", "n[4-6]", "", "", ""]
    assert rows(slurm, job)[2].reason == "Resources"


def test_a_read_fails_once_or_always(slurm: FakeSlurm) -> None:
    slurm.script("queue", Unobserved("squeue did not answer in 25 s"))
    assert isinstance(slurm.queue(), Unobserved)
    assert not isinstance(slurm.queue(), Unobserved)
    slurm.always("queue", Unobserved("down"))
    slurm.script("queue", Act.NORMAL)
    assert not isinstance(slurm.queue(), Unobserved)
    assert isinstance(slurm.queue(), Unobserved)
    slurm.always("queue", Act.NORMAL)
    assert not isinstance(slurm.queue(), Unobserved)
    assert len(slurm.asked("queue")) == 5


def test_an_ambiguous_submit_is_queued_all_the_same(slurm: FakeSlurm) -> None:
    slurm.script("submit", AfterDoing(SlurmAmbiguous("submit a job", part="Socket timed out")))
    with pytest.raises(SlurmAmbiguous):
        chain(slurm)
    assert states(slurm, 1)[0] is JobState.RUNNING


def test_a_failed_submit_is_not_queued(slurm: FakeSlurm) -> None:
    slurm.script("submit", SlurmError("submit a job", part="AssocMaxSubmitJobLimit"))
    with pytest.raises(SlurmError, match="AssocMaxSubmitJobLimit"):
        chain(slurm)
    assert states(slurm, 1) == {}


def test_a_lost_submit_gives_its_id_to_the_next(slurm: FakeSlurm) -> None:
    slurm.script("submit", Act.IGNORED)
    lost = chain(slurm)
    assert states(slurm, lost) == {}
    assert chain(slurm) == lost


def test_a_cancel_that_says_yes_can_do_nothing(slurm: FakeSlurm) -> None:
    job = chain(slurm)
    slurm.script("cancel", Act.IGNORED)
    slurm.cancel([str(job)])
    assert states(slurm, job)[0] is JobState.RUNNING
    slurm.cancel([str(job)])
    assert states(slurm, job)[0] is JobState.CANCELLED


def test_a_cancel_that_fails_can_have_worked(slurm: FakeSlurm) -> None:
    job = chain(slurm)
    slurm.script("cancel", AfterDoing(SlurmAmbiguous("cancel jobs")))
    with pytest.raises(SlurmAmbiguous):
        slurm.cancel([str(job)])
    assert states(slurm, job)[0] is JobState.CANCELLED


def test_a_state_that_nothing_leads_to_can_be_forced(slurm: FakeSlurm) -> None:
    job = chain(slurm)
    slurm.force_state(f"{job}_0", JobState.SUSPENDED)
    assert slurm.task(f"{job}_0").state is JobState.SUSPENDED


def test_only_what_runs_can_finish(slurm: FakeSlurm) -> None:
    job = chain(slurm)
    with pytest.raises(AssertionError, match="does not run"):
        slurm.finish(f"{job}_4")


_DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "cancel", "cancel task", "finish", "hold", "release", "lose", "restore", "wait"]),
        st.integers(0, 4),
    ),
    max_size=40,
)


@given(_DEEDS)
def test_whatever_happens_nodes_and_throttles_are_kept(deeds: list[tuple[str, int]]) -> None:
    clock = FakeClock()
    slurm = FakeSlurm(clock, limits=Limits(slurmd_timeout_seconds=60, min_job_age_seconds=30))
    jobs = [chain(slurm)]
    for deed, number in deeds:
        job = jobs[number % len(jobs)]
        if deed == "submit":
            jobs.append(chain(slurm, "0-4%3", f"--nodes={number % 2 + 1}"))
        elif deed == "cancel":
            slurm.cancel([str(job)], pending_only=bool(number % 2))
        elif deed == "cancel task":
            slurm.ignore_term(f"{job}_{number}")
            slurm.cancel([f"{job}_{number}"])
        elif deed == "finish" and slurm.task(f"{job}_{number}").state is JobState.RUNNING:
            slurm.finish(f"{job}_{number}", number)
        elif deed in ("hold", "release"):
            (slurm.hold if deed == "hold" else slurm.release)([f"{job}_{number}" if number else str(job)])
        elif deed in ("lose", "restore"):
            (slurm.lose_node if deed == "lose" else slurm.restore_node)(f"n{number + 1}")
        else:
            clock.advance(number * 15)
        _check(slurm)


def _check(slurm: FakeSlurm) -> None:
    reading = slurm.queue()
    assert not isinstance(reading, Unobserved)
    held_nodes: list[str] = []
    for task in reading.tasks:
        assert bool(task.nodelist) != task.state.is_pending or task.state is JobState.CANCELLED
        if task.nodelist and not task.state.is_terminal:
            held_nodes += expand_nodes(task.nodelist)
    assert len(set(held_nodes)) == len(held_nodes)
    for job in {task.array_job_id for task in reading.tasks}:
        assert sum(task.state is JobState.RUNNING for task in reading.of(job)) <= 3
