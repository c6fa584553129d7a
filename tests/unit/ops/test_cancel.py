"""A cancel decides first, takes the queued generations before the running one, and believes only a later reading."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.errors import IdentityError, RecordError, SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.ops.cancel import CancelReport, ask_before_cancel, cancel_chain, render_cancel
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_slurm import Act, FakeSlurm
from tests.unit.ops.conftest import USER, ChainOnDisk, World

LIVE = {JobState.PENDING, JobState.RUNNING}


def cancel(world: World, chain: ChainOnDisk, *, seconds: float = 120.0, why: str | None = None) -> CancelReport:
    return cancel_chain(chain.open(), world.desk(), why=why, seconds=seconds)


def states(world: World, job: int) -> set[JobState]:
    return {world.slurm.task(f"{job}_{index}").state for index in range(5)}


def test_everything_of_the_chain_goes_and_no_further_generation_starts(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    report = cancel(world, chain)
    assert report.is_complete
    assert report.decided_now
    assert report.asked == report.gone == jobs
    assert not report.still_there
    for job in jobs:
        assert states(world, job) == {JobState.CANCELLED}
    assert not any(world.slurm.task(f"{job}_{index}").nodelist for job in jobs[1:] for index in range(5))


def test_queued_tasks_are_asked_for_before_running_ones(world: World, chain: ChainOnDisk) -> None:
    first, second, third = (str(job) for job in chain.submit_three())
    cancel(world, chain)
    calls = [call.arguments for call in world.slurm.asked("cancel")]
    assert calls == [((third, second, first), True), ((first,), False)]


class WatchedSlurm(FakeSlurm):
    """Notes which verdict is on disk when something is cancelled."""

    verdict_at_cancel: list[str]
    outcome: Path

    def cancel(self, specs: Sequence[str], *, pending_only: bool = False) -> None:
        self.verdict_at_cancel.append(json.loads(self.outcome.read_text())["verdict"])
        super().cancel(specs, pending_only=pending_only)


def test_the_verdict_stands_before_the_first_cancel(world: World, chain: ChainOnDisk) -> None:
    slurm = WatchedSlurm(world.clock, user=USER)
    slurm.verdict_at_cancel, slurm.outcome = [], chain.run.outcome
    world.slurm = slurm
    chain.submit_three()
    cancel(world, chain, why="wrong data")
    assert slurm.verdict_at_cancel == ["cancelled", "cancelled"]
    outcome = json.loads(chain.run.outcome.read_text())
    assert (outcome["by"], outcome["why"]) == ("alice on login", "wrong data")


def test_jobs_with_the_same_name_that_are_not_the_chains_are_untouched(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    of_bob = world.slurm.submit_as("bob", chain.argv(1))
    other_chain = world.make_chain(world.root / "other", chain_id="other").submit(1)
    no_chain = world.slurm.submit(["--job-name=train", "--hold", "x.sh"]).array_job_id
    assert cancel(world, chain).is_complete
    assert states(world, of_bob) == LIVE
    assert states(world, other_chain) <= LIVE
    assert world.slurm.task(str(no_chain)).state is JobState.PENDING


def test_a_forged_id_of_another_users_job_cancels_nothing_of_his(world: World, chain: ChainOnDisk) -> None:
    own = chain.submit(1)
    foreign = world.slurm.submit_as("bob", chain.argv(2))
    chain.record_id(2, foreign)
    report = cancel(world, chain)
    assert report.is_complete
    assert report.asked == (own,)
    assert states(world, foreign) == LIVE


def test_a_job_on_record_that_is_not_the_chains_beyond_doubt_is_left_alone_and_reported(
    world: World, chain: ChainOnDisk
) -> None:
    own = chain.submit(1)
    renamed = world.slurm.submit(["--job-name=mine", "--array=0-1", "x.sh"]).array_job_id
    chain.record_id(2, renamed)
    report = cancel(world, chain)
    assert report.gone == (own,)
    assert "has the name 'mine'" in report.left_alone[renamed]
    assert not report.is_complete
    assert world.slurm.task(f"{renamed}_0").state is JobState.RUNNING


def test_a_scancel_that_does_nothing_is_repeated_and_then_reported(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    world.slurm.always("cancel", Act.IGNORED)
    report = cancel(world, chain, seconds=30)
    assert not report.is_complete
    assert not report.gone
    assert report.still_there == {first: "3 running, 2 pending", second: "5 pending", third: "5 pending"}
    assert world.clock.monotonic() == pytest.approx(31, abs=2)
    assert "still there  11: 3 running, 2 pending" in render_cancel(report)


def test_the_running_generation_is_cancelled_although_a_pending_task_cannot_be(
    world: World, chain: ChainOnDisk
) -> None:
    first, second, _ = chain.submit_three()
    world.slurm.always("cancel", Act.IGNORED)
    cancel(world, chain, seconds=10)
    specs = [call.arguments for call in world.slurm.asked("cancel") if not call.arguments[1]]
    assert specs
    assert {str(first), str(second)} <= set(specs[0][0])  # type: ignore[call-overload]


def test_a_scancel_that_works_at_the_third_time_is_enough(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    world.slurm.script("cancel", Act.IGNORED, SlurmAmbiguous("cancel jobs", part="socket timed out"))
    report = cancel(world, chain)
    assert report.is_complete
    assert report.gone == jobs
    assert any("socket timed out" in line for line in world.said)


def test_a_generation_that_starts_in_between_is_cancelled_too(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    world.slurm.script("cancel", Act.IGNORED)
    for index in range(3):
        world.clock.after(0.5, lambda index=index: world.slurm.finish(f"{first}_{index}", 1))
    for index in (3, 4):
        world.clock.after(0.7, lambda index=index: world.slurm.finish(f"{first}_{index}", 1))
    report = cancel(world, chain)
    assert world.slurm.task(f"{second}_0").nodelist, "the second generation was to start"
    assert report.is_complete
    assert {second, third} <= set(report.gone)


def test_a_controller_that_is_away_leaves_the_verdict_and_is_reported(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    world.slurm.always("queue", Unobserved("squeue did not answer in 25 s"))
    report = cancel(world, chain, seconds=60)
    assert report.no_answer == "squeue did not answer in 25 s"
    assert not report.is_complete
    assert not report.gone
    assert not world.slurm.asked("cancel")
    assert chain.open().verdict() is not None
    assert len(world.said) == 1
    assert "Slurm could not be read: squeue did not answer" in render_cancel(report)
    assert "nothing of it was in the queue" not in render_cancel(report)


def test_a_controller_that_comes_back_is_enough(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    world.slurm.always("queue", Unobserved("down"))
    world.clock.after(20, lambda: world.slurm.always("queue", Act.NORMAL))
    report = cancel(world, chain)
    assert report.is_complete
    assert report.gone == jobs


def test_a_task_that_is_completing_is_reported_and_not_waited_for(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.slurm.ignore_term(f"{job}_0")
    report = cancel(world, chain)
    assert report.is_complete
    assert report.completing == {job: "1 completing"}
    assert report.gone == ()
    assert world.clock.monotonic() < 10


def test_a_chain_that_has_ended_says_how_and_loses_what_is_left_of_it(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    chain.decide(Verdict.COMPLETED, "iteration 500 has reached the target 500")
    report = cancel(world, chain)
    assert not report.decided_now
    assert report.gone == jobs
    assert json.loads(chain.run.outcome.read_text())["verdict"] == "completed"
    assert "had ended before: completed by 11_0 on n1" in render_cancel(report)


def test_a_second_cancel_is_no_error(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    cancel(world, chain)
    again = cancel(world, chain)
    assert again.is_complete
    assert not again.decided_now
    assert again.asked == ()
    assert "nothing of it was in the queue" in render_cancel(again)


@pytest.mark.parametrize("content", ["{", ""])
def test_a_verdict_that_cannot_be_read_is_an_error_before_anything_is_cancelled(
    world: World, chain: ChainOnDisk, content: str
) -> None:
    chain.submit_three()
    chain.run.outcome.write_text(content)
    with pytest.raises(RecordError, match="reading the verdict"):
        cancel(world, chain)
    assert not world.slurm.asked("cancel")


def test_the_verdict_of_an_older_chain_in_its_place_is_an_error(world: World, chain: ChainOnDisk) -> None:
    chain.decide(Verdict.COMPLETED, chain_id="older")
    with pytest.raises(RecordError, match="another chain is in its place"):
        cancel(world, chain)


def test_another_users_chain_is_refused_and_nothing_is_written(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    with pytest.raises(IdentityError, match="refused"):
        cancel_chain(chain.open(), world.desk(uid=os.getuid() + 1))
    assert not chain.run.outcome.exists()
    assert not world.slurm.asked("cancel")


def test_on_another_cluster_nothing_is_written(world: World) -> None:
    chain = world.make_chain(cluster="prod")
    with pytest.raises(IdentityError, match="submitted on cluster prod"):
        cancel(world, chain)
    assert not chain.run.outcome.exists()


def test_a_job_whose_submission_got_no_answer_is_cancelled(world: World, chain: ChainOnDisk) -> None:
    known, lost = chain.submit(1), chain.submit(2, on_record=False)
    report = cancel(world, chain)
    assert report.gone == (known, lost)
    assert report.is_complete
    assert report.unresolved == ()


def test_a_submission_that_is_nowhere_is_named(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    chain.intend(2)
    report = cancel(world, chain)
    assert report.unresolved == (2,)
    assert report.is_complete
    assert "unresolved   submission 2" in render_cancel(report)


def test_a_stray_with_the_chains_comment_is_left_alone_and_reported(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    stray = world.slurm.submit(chain.argv(1)).array_job_id
    report = cancel(world, chain)
    assert "not on record" in report.left_alone[stray]
    assert not report.is_complete


def test_a_refusal_of_slurm_is_in_the_report(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.slurm.always("cancel", SlurmError("cancel jobs", part="Access/permission denied"))
    report = cancel(world, chain, seconds=5)
    assert report.refusals == ("cancel jobs: Access/permission denied",)
    assert job in report.still_there
    assert "Slurm said   cancel jobs: Access/permission denied" in render_cancel(report)


def test_the_question_names_the_directory_and_the_jobs(chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    question = ask_before_cancel(chain.open())
    assert str(chain.run.path) in question
    assert " ".join(str(job) for job in jobs) in question


def test_the_json_form_has_these_fields(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    assert list(json.loads(msgspec.json.encode(cancel(world, chain)))) == [
        "schema",
        "chain_id",
        "name",
        "run_directory",
        "verdict",
        "decided_now",
        "asked",
        "gone",
        "completing",
        "still_there",
        "left_alone",
        "unresolved",
        "refusals",
        "no_answer",
    ]
