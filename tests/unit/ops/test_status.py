"""Status folds files and one reading of the queue, and never takes silence for an end."""

from __future__ import annotations

import json

import msgspec
import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.ops.status import ChainState, ChainStatus, GenerationState
from nvrx_chain.ops.survey import survey_chain
from nvrx_chain.records.control import Drained, DrainedNode
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.ops.conftest import STAMP, ChainOnDisk, World, give_away


def survey(world: World, chain: ChainOnDisk) -> ChainStatus:
    return survey_chain(chain.open(), world.slurm, world.clock)


def end_all(world: World, *jobs: int) -> None:
    for job in jobs:
        for index in range(5):
            world.slurm.finish(f"{job}_{index}", 1)


def test_one_entry_per_generation_with_counts_and_reasons(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    chain.lease(jobs[0], "running")
    chain.record(jobs[0], start=None, end=None, outcome=None)
    chain.iteration("120\n")
    seen = survey(world, chain)
    first, second, _ = seen.generations
    assert seen.state is ChainState.RUNNING
    assert [generation.array_job_id for generation in seen.generations] == [*jobs]
    assert [generation.sequence for generation in seen.generations] == [1, 2, 3]
    assert (first.state, first.tasks) == (GenerationState.RUNNING, {"running": 3, "pending": 2})
    assert first.phase == "running"
    assert (first.iteration_at_start, first.iteration_now) == (None, 120)
    assert (second.state, second.tasks) == (GenerationState.QUEUED, {"pending": 5})
    assert second.pending_reasons == {"Dependency": 5}
    assert second.iteration_now is None
    assert len(world.slurm.asked("queue")) == 1


def test_a_generation_that_ended_has_its_outcome_and_its_span(world: World, chain: ChainOnDisk) -> None:
    first, second, _ = chain.submit_three()
    chain.lease(first, "closing")
    chain.record(first, start=40, end=120, outcome=Outcome.FAILED)
    chain.close(first, Outcome.FAILED, "the launcher exited with 1")
    end_all(world, first)
    chain.iteration("150\n")
    seen = survey(world, chain).generations[0]
    assert (seen.state, seen.outcome, seen.exit_code) == (GenerationState.ENDED, Outcome.FAILED, 1)
    assert seen.evidence == ("the launcher exited with 1",)
    assert (seen.iteration_at_start, seen.iteration_at_end, seen.iteration_now) == (40, 120, None)
    assert seen.phase is None
    assert world.slurm.task(f"{second}_0").state is JobState.RUNNING


def test_a_phase_of_a_dead_task_0_is_not_shown_as_the_present(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.lease(job, "running")
    world.slurm.finish(f"{job}_0", 1)
    assert survey(world, chain).generations[0].phase == "task 0 has ended"


def test_completing_tasks_count_as_running(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    for index in range(5):
        world.slurm.ignore_term(f"{job}_{index}")
    world.slurm.cancel([str(job)])
    seen = survey(world, chain)
    assert seen.generations[0].state is GenerationState.COMPLETING
    assert seen.state is ChainState.RUNNING


def test_a_state_that_is_not_known_counts_as_running(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.slurm.cancel([str(job)])
    world.slurm.force_state(f"{job}_0", JobState.UNKNOWN)
    assert survey(world, chain).state is ChainState.RUNNING


def test_without_an_answer_of_slurm_only_the_files_speak(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    chain.lease(first, "assembling (1 of 2)")
    world.slurm.always("queue", Unobserved("squeue did not answer in 25 s"))
    seen = survey(world, chain)
    assert seen.no_answer == "squeue did not answer in 25 s"
    assert not world.slurm.asked("config"), "a controller that hangs lets every question wait"
    assert seen.state is ChainState.UNKNOWN
    assert {generation.tasks is None for generation in seen.generations} == {True}
    assert {generation.state for generation in seen.generations} == {GenerationState.UNKNOWN}
    assert seen.generations[0].phase == "assembling (1 of 2)"


def test_a_chain_ran_dry_only_when_slurm_answered(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    for job in jobs:
        chain.close(job, Outcome.FAILED)
    world.slurm.cancel([str(job) for job in reversed(jobs)])
    assert survey(world, chain).state is ChainState.RAN_DRY
    world.slurm.always("queue", Unobserved("down"))
    silent = survey(world, chain)
    assert silent.state is ChainState.UNKNOWN
    assert {generation.state for generation in silent.generations} == {GenerationState.ENDED}


def test_a_chain_that_slurm_forgot_ran_dry(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    world.slurm.cancel([str(job) for job in reversed(jobs)])
    world.clock.advance(10_000)
    seen = survey(world, chain)
    assert {tuple(generation.tasks or {"?": 1}) for generation in seen.generations} == {("?",)}
    assert seen.generations[0].tasks == {}
    assert seen.state is ChainState.RAN_DRY


def test_a_submission_without_an_id_may_be_alive_so_the_chain_is_not_dry(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.intend(2)
    world.slurm.cancel([str(job)])
    seen = survey(world, chain)
    assert seen.generations[1].state is GenerationState.UNRESOLVED
    assert seen.generations[1].array_job_id is None
    assert seen.state is ChainState.UNKNOWN


def test_a_doubtful_job_is_a_problem_and_its_rows_are_not_believed(world: World, chain: ChainOnDisk) -> None:
    job = world.slurm.submit(["--job-name=mine", "x.sh"]).array_job_id
    chain.record_id(1, job)
    seen = survey(world, chain)
    assert "has the name 'mine'" in (seen.generations[0].problem or "")
    assert seen.generations[0].tasks is None
    assert seen.state is ChainState.UNKNOWN


def test_an_id_of_another_users_job_shows_nothing_of_it(world: World, chain: ChainOnDisk) -> None:
    chain.record_id(1, world.slurm.submit_as("bob", chain.argv(1)))
    assert survey(world, chain).generations[0].tasks == {}


def test_a_stray_is_named_and_keeps_the_chain_from_being_dry(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.slurm.cancel([str(job)])
    stray = world.slurm.submit(chain.argv(1)).array_job_id
    seen = survey(world, chain)
    assert seen.strays == (stray,)
    assert seen.state is ChainState.UNKNOWN


def test_a_verdict_ends_a_chain_whatever_the_queue_shows(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.decide(Verdict.COMPLETED, "done")
    seen = survey(world, chain)
    assert seen.state is ChainState.ENDED
    assert seen.verdict is not None
    assert seen.verdict.why == "done"


def test_the_verdict_of_another_chain_is_none_of_ours(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.decide(Verdict.COMPLETED, chain_id="older")
    assert survey(world, chain).verdict is None


def test_a_held_chain_is_held_once_nothing_runs(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    chain.brake()
    world.slurm.hold([str(second), str(third)])
    running = survey(world, chain)
    assert running.is_held
    assert running.state is ChainState.RUNNING
    end_all(world, first)
    held = survey(world, chain)
    assert held.state is ChainState.HELD
    assert held.generations[1].pending_reasons == {"JobHeldUser": 5}
    world.slurm.always("queue", Unobserved("down"))
    assert survey(world, chain).state is ChainState.HELD


def test_a_chain_that_waits_for_nodes_is_queued(world: World, chain: ChainOnDisk) -> None:
    world.slurm = FakeSlurm(world.clock, user=world.slurm.user, nodes=())
    chain.submit_three()
    seen = survey(world, chain)
    assert seen.state is ChainState.QUEUED
    assert seen.generations[0].pending_reasons == {"Resources": 5}


def test_a_chain_without_a_job_is_not_submitted(world: World, chain: ChainOnDisk) -> None:
    assert survey(world, chain).state is ChainState.NOT_SUBMITTED


def test_records_that_cannot_be_listed_do_not_make_a_chain_that_was_not_submitted(
    world: World, chain: ChainOnDisk
) -> None:
    chain.submit(1)
    chain.run.submissions.rename(chain.run.path / "aside")
    chain.run.submissions.write_text("not a directory")
    seen = survey(world, chain)
    assert seen.state is ChainState.UNKNOWN
    assert any("submissions" in problem for problem in seen.problems)


def test_an_iteration_that_cannot_be_read_is_told_from_none(world: World, chain: ChainOnDisk) -> None:
    assert survey(world, chain).iteration is None
    chain.iteration("garbage")
    seen = survey(world, chain)
    assert seen.iteration == -1
    assert any("not a number" in problem for problem in seen.problems)


def test_damaged_files_are_problems_and_no_crash(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.run.outcome.write_text("{")
    chain.run.hold.write_text("[]")
    chain.lease(job, "running")
    chain.run.generation(job).lease(0).write_bytes(b"\xff\xfe")
    seen = survey(world, chain)
    assert seen.verdict is None
    assert seen.generations[0].phase is None
    assert len(seen.problems) == 2


def test_a_file_that_somebody_else_put_there_is_not_believed(world: World) -> None:
    chain = world.make_chain()
    job = chain.submit(1)
    chain.decide(Verdict.COMPLETED)
    if give_away(chain.run.outcome) != 0:
        pytest.skip("only root can give a file away")
    seen = survey(world, chain)
    assert seen.verdict is None
    assert any("belongs to uid" in problem for problem in seen.problems)
    assert seen.generations[0].array_job_id == job


def test_another_cluster_is_no_answer(world: World) -> None:
    chain = world.make_chain(cluster="prod")
    chain.submit(1)
    seen = survey(world, chain)
    assert seen.no_answer == "it was submitted on cluster prod, and this is fake"
    assert seen.state is ChainState.UNKNOWN


def test_cycles_are_counted_from_the_launchers_records(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    assert survey(world, chain).generations[0].cycles is None
    cycles = chain.run.generation(job).cycle_infos
    cycles.mkdir(parents=True)
    for name in (f"cycle_info.{job}.0.0", f"cycle_info.{job}.0.1", f".cycle_info.{job}.0.2.tmp"):
        (cycles / name).write_text("{}")
    (cycles / f"cycle_info.{job}.current").symlink_to(f"cycle_info.{job}.0.1")
    assert survey(world, chain).generations[0].cycles == 2


def test_a_chain_that_ends_while_it_is_looked_at_has_not_run_dry(world: World, chain: ChainOnDisk) -> None:
    """The verdict is read after the queue: the other way round there would be a moment with neither."""
    job = chain.submit(1)
    world.slurm.cancel([str(job)])

    class EndsNow(type(world.slurm)):  # type: ignore[misc]
        def queue(self, user: str | None = None) -> object:
            reading = super().queue(user)
            chain.decide(Verdict.COMPLETED)
            return reading

    ending = EndsNow(world.clock, user=world.slurm.user)
    assert survey_chain(chain.open(), ending, world.clock).state is ChainState.ENDED


def test_the_json_form_has_these_fields(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    seen = json.loads(msgspec.json.encode(survey(world, chain)))
    assert list(seen) == [
        "schema",
        "chain_id",
        "name",
        "user",
        "cluster",
        "run_directory",
        "submitted_at",
        "read_at",
        "state",
        "verdict",
        "hold",
        "shape",
        "chain_depth",
        "iteration",
        "target_iteration",
        "generations",
        "strays",
        "no_answer",
        "problems",
        "ending",
    ]
    assert list(seen["generations"][0]) == [
        "sequence",
        "array_job_id",
        "state",
        "tasks",
        "pending_reasons",
        "phase",
        "outcome",
        "exit_code",
        "closed_by",
        "evidence",
        "iteration_at_start",
        "iteration_at_end",
        "iteration_now",
        "cycles",
        "submitted_at",
        "started_at",
        "ended_at",
        "problem",
        "drained",
    ]


def drain(
    chain: ChainOnDisk, job: int, task: int, *, is_active: bool = True, excluded: bool = True, of: int = 0
) -> None:
    """What task 0 of a generation publishes about a task; `of`: stamped with another job id."""
    node = DrainedNode(node=f"n{task + 1}", state="draining", reason="xid 79", by="root", since=None)
    record = Drained(
        task=task,
        task_nodes=(node.node,),
        drained_nodes=(node,),
        is_active=is_active,
        excluded=excluded,
        seen_at="2026-01-01T00:00:00Z",
        returned_at=None,
        poll=1,
        poll_seconds=60.0,
        answer_age_seconds=0.0,
        array_job_id=of or job,
        **STAMP,  # type: ignore[arg-type]
    )
    control = chain.run.generation(job).control
    control.mkdir(parents=True, exist_ok=True)
    write_atomic(chain.run.generation(job).drained(task), encode_record(record))


def test_drained_tasks_that_hold_their_nodes_are_shown_and_no_others(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    drain(chain, job, 1)
    drain(chain, job, 0, excluded=False)
    drain(chain, job, 2, is_active=False)
    # Its task has not started: this marker is of nobody.
    drain(chain, job, 4)
    seen = survey(world, chain).generations[0].drained
    assert [(task.array_task_id, task.excluded) for task in seen] == [(0, False), (1, True)]
    assert seen[1].nodes[0].reason == "xid 79"
    world.slurm.finish(f"{job}_1")
    assert [task.array_task_id for task in survey(world, chain).generations[0].drained] == [0]
    chain.close(job, Outcome.FAILED, "the launcher exited with 1")
    assert survey(world, chain).generations[0].drained == ()


def test_a_drain_marker_of_another_job_or_without_sense_is_not_shown(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    drain(chain, job, 1, of=job + 7)
    drain(chain, job, 2)
    chain.run.generation(job).drained(2).write_bytes(b"{}")
    assert survey(world, chain).generations[0].drained == ()


def test_while_slurm_is_silent_the_markers_speak(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    drain(chain, job, 1)
    world.slurm.always("queue", Unobserved("Socket timed out"))
    assert [task.array_task_id for task in survey(world, chain).generations[0].drained] == [1]
