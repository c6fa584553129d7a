"""One squeue, one sacct, one sinfo per pass, however long the chain is; and what a site without accounting gets."""

from __future__ import annotations

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.states import JobState
from nvrx_watch.model import Unavailable
from nvrx_watch.slurm_facts import MOST_ACCOUNTED, MOST_CALLS, Accounting, SlurmFacts, unavailable_or_unobserved
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def slurm(clock: FakeClock) -> FakeSlurm:
    return FakeSlurm(clock)


def submit(slurm: FakeSlurm, array: str = "0-1%2", name: str = "train") -> int:
    argv = ["--parsable", f"--job-name={name}", f"--array={array}", "--dependency=singleton", "/w/x.sbatch"]
    return slurm.submit(argv).array_job_id


def accounted(answer: Accounting | Unobserved) -> Accounting:
    assert isinstance(answer, Accounting)
    return answer


def test_one_user_is_asked_for_by_name_and_several_with_everybody(slurm: FakeSlurm) -> None:
    facts = SlurmFacts(slurm)
    facts.queue(frozenset({"alice"}))
    facts.queue(frozenset({"alice", "bob"}))
    assert [call.arguments for call in slurm.asked("queue")] == [("alice",), (None,)]


def test_nothing_to_ask_costs_no_call(slurm: FakeSlurm) -> None:
    facts = SlurmFacts(slurm)
    assert accounted(facts.accounting([[]])).rows == {}
    assert facts.nodes([]) == {}
    assert slurm.calls == []


def test_what_has_ended_is_asked_for_once(slurm: FakeSlurm) -> None:
    job = submit(slurm)
    slurm.finish(f"{job}_0", 1)
    slurm.finish(f"{job}_1", 0)
    facts = SlurmFacts(slurm)
    first, second = accounted(facts.accounting([[job]])), accounted(facts.accounting([[job]]))
    assert first.rows == second.rows
    assert {task.state for task in first.rows[job]} == {JobState.FAILED, JobState.COMPLETED}
    assert len(slurm.asked("accounting")) == 1
    facts.forget_all_but(frozenset())
    facts.accounting([[job]])
    assert len(slurm.asked("accounting")) == 2


def test_what_still_runs_is_asked_for_again(slurm: FakeSlurm) -> None:
    job = submit(slurm)
    slurm.finish(f"{job}_0", 1)
    facts = SlurmFacts(slurm)
    facts.accounting([[job]])
    facts.accounting([[job]])
    assert len(slurm.asked("accounting")) == 2


def test_half_an_array_never_settles_while_the_queue_shows_the_other_half(slurm: FakeSlurm) -> None:
    job = submit(slurm)
    slurm.finish(f"{job}_0", 1)
    slurm.finish(f"{job}_1", 0)
    facts = SlurmFacts(slurm)
    facts.accounting([[job]], live=frozenset({job}))
    facts.accounting([[job]])
    assert len(slurm.asked("accounting")) == 2


def test_a_hundred_generations_are_one_call(slurm: FakeSlurm) -> None:
    jobs = [submit(slurm, "0-0%1") for _ in range(20)]
    SlurmFacts(slurm).accounting([jobs])
    assert len(slurm.asked("accounting")) == 1


def test_more_ids_than_one_sacct_takes_are_asked_for_in_several(slurm: FakeSlurm) -> None:
    ids = list(range(1, 2 * MOST_ACCOUNTED + 2))
    answer = accounted(SlurmFacts(slurm).accounting([ids[:8], ids[8:]]))
    asked = [call.arguments[0] for call in slurm.asked("accounting")]
    assert sorted(job for chunk in asked for job in chunk) == ids
    assert [len(chunk) for chunk in asked] == [MOST_ACCOUNTED, MOST_ACCOUNTED, 1]
    assert answer.left_out == frozenset()


def test_what_is_over_the_bound_is_said_to_be_left_out(slurm: FakeSlurm) -> None:
    ids = list(range(1, MOST_CALLS * MOST_ACCOUNTED + 3))
    answer = accounted(SlurmFacts(slurm).accounting([ids]))
    assert len(slurm.asked("accounting")) == MOST_CALLS
    assert answer.left_out == {1, 2}


def test_what_has_settled_takes_no_room(slurm: FakeSlurm) -> None:
    job = submit(slurm)
    for task in (0, 1):
        slurm.finish(f"{job}_{task}", 1)
    facts = SlurmFacts(slurm)
    facts.accounting([[job]])
    others = list(range(1000, 1000 + MOST_ACCOUNTED))
    answer = accounted(facts.accounting([[job], others]))
    assert len(slurm.asked("accounting")) == 2
    assert len(answer.rows[job]) == 2


def test_without_accounting_the_newest_job_of_each_chain_is_asked_for_in_turn(clock: FakeClock) -> None:
    slurm = FakeSlurm(clock, accounting=False, nodes=[f"n{number}" for number in range(20)])
    jobs = [submit(slurm, name=f"chain{number}") for number in range(5)]
    for job in jobs:
        slurm.finish(f"{job}_0", 93)
    facts = SlurmFacts(slurm)
    newest = [[job] for job in jobs]
    first = accounted(facts.accounting(newest))
    assert len(slurm.asked("show_job")) == MOST_CALLS
    assert len(first.left_out) == len(jobs) - MOST_CALLS
    second = accounted(facts.accounting(newest))
    assert second.left_out == frozenset()
    # An end that was seen once is still known in a pass that asks about others.
    assert all([task.exit_code for task in second.rows[job] if task.state.is_terminal] == [93] for job in jobs)
    assert len(slurm.asked("show_job")) == 2 * MOST_CALLS


def test_without_accounting_one_chain_costs_one_question(clock: FakeClock) -> None:
    slurm = FakeSlurm(clock, accounting=False)
    old, new = submit(slurm), submit(slurm)
    slurm.finish(f"{old}_0", 1)
    SlurmFacts(slurm).accounting([[old, new]])
    assert [call.arguments for call in slurm.asked("show_job")] == [(new,)]


def test_accounting_that_is_down_is_unobserved_and_not_missing(slurm: FakeSlurm) -> None:
    slurm.always("accounting", Unobserved("sacct failed with 1: Problem talking to the database: Connection refused"))
    answer = SlurmFacts(slurm).accounting([[1]])
    assert isinstance(answer, Unobserved)
    assert not isinstance(unavailable_or_unobserved(answer), Unavailable)
    assert slurm.asked("show_job") == []


def test_a_site_without_accounting_is_asked_once_and_scontrol_takes_its_place(clock: FakeClock) -> None:
    slurm = FakeSlurm(clock, accounting=False)
    job = submit(slurm)
    slurm.finish(f"{job}_0", 93)
    facts = SlurmFacts(slurm)
    for _ in range(3):
        answer = accounted(facts.accounting([[job]]))
        assert isinstance(unavailable_or_unobserved(answer), Unavailable)
        (ended,) = [task for task in answer.rows[job] if task.state.is_terminal]
        assert (ended.array_task_id, ended.exit_code) == (0, 93)
    assert len(slurm.asked("accounting")) == 1
    assert len(slurm.asked("show_job")) == 3


def test_a_job_that_scontrol_has_forgotten_has_no_rows(clock: FakeClock) -> None:
    slurm = FakeSlurm(clock, accounting=False)
    answer = accounted(SlurmFacts(slurm).accounting([[999]]))
    assert answer.rows == {}
