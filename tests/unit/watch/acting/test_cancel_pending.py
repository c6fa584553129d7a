"""The waiting spares of an orphaned generation go one by one by their own ids, and nothing else ever does."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec.structs import replace as alter

from nvrx_chain.errors import SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.states import JobState
from nvrx_watch.acting.cancelling import SPECS_PER_CALL
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.model import ActionKind, Queue, Snapshot
from tests.fakes.fake_slurm import Act, AfterDoing
from tests.unit.watch.acting.scene import USER, Scene

SPARES = ("11_4", "11_5", "11_6")


def release(scene: Scene, *, snapshot: Snapshot | None = None, job: int | None = 11) -> ActionReport:
    return scene.act(ActionKind.CANCEL_PENDING, job, snapshot=snapshot)


def test_the_waiting_spares_go_by_their_own_ids(scene: Scene) -> None:
    scene.orphan()
    report = release(scene)
    assert (report.state, report.asked, report.gone) == (ActionState.DONE, SPARES, SPARES)
    assert not report.still_there
    assert scene.waiting(11) == []
    assert scene.slurm.cancelled() == list(SPARES)
    assert [call.arguments[1] for call in scene.slurm.asked("cancel")] == [True]


def test_running_tasks_and_later_generations_are_untouched(scene: Scene) -> None:
    scene.orphan()
    release(scene)
    assert scene.alive(11) == ["11_1", "11_2", "11_3"]
    assert [len(scene.waiting(job)) for job in scene.jobs[1:]] == [7, 7]


def test_a_foreign_chain_is_known_by_name_user_and_the_submit_time_that_the_pass_saw(foreign: Scene) -> None:
    foreign.orphan()
    report = release(foreign, snapshot=recorded(foreign.snapshot()))
    assert (report.state, report.gone) == (ActionState.DONE, SPARES)


def test_only_the_queue_is_read_and_only_of_the_chains_user(scene: Scene) -> None:
    scene.orphan()
    release(scene)
    assert {call.operation for call in scene.slurm.calls} == {"queue", "cancel"}
    assert {call.arguments for call in scene.slurm.asked("queue")} == {(USER,)}


def test_a_task_that_started_before_the_new_reading_is_not_asked_for(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.finish("11_1")
    report = release(scene, snapshot=seen)
    assert (report.state, report.asked) == (ActionState.DONE, ("11_5", "11_6"))
    assert scene.slurm.task("11_4").state is JobState.RUNNING


def test_a_task_that_starts_while_it_is_asked_for_survives_and_is_reported(scene: Scene) -> None:
    scene.orphan()
    scene.slurm.before["cancel"] = [lambda: scene.slurm.finish("11_1")]
    began = scene.clock.monotonic()
    report = release(scene)
    assert report.state is ActionState.INCOMPLETE
    assert (report.gone, report.still_there) == (("11_5", "11_6"), ("11_4",))
    assert "11_4" in report.why
    assert scene.slurm.task("11_4").state is JobState.RUNNING
    assert scene.clock.monotonic() - began < 5, "nobody waits for a task that nobody will cancel"


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PENDING, JobState.COMPLETING, JobState.UNKNOWN])
def test_a_task_zero_that_came_back_to_life_keeps_its_spares(scene: Scene, state: JobState) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.disguise = lambda row: replace(row, state=state, raw_state="X") if row.spec == "11_0" else row
    report = release(scene, snapshot=seen)
    assert report.state is ActionState.REFUSED
    assert not scene.slurm.changes()


def test_a_task_zero_that_the_pass_saw_alive_has_not_had_its_grace(scene: Scene) -> None:
    seen = scene.snapshot()
    scene.orphan()
    assert release(scene, snapshot=seen).state is ActionState.REFUSED
    assert not scene.slurm.changes()


def test_a_task_zero_that_slurm_forgot_needs_its_end_in_accounting(scene: Scene) -> None:
    scene.orphan()
    scene.clock.advance(400)
    assert "11_0" not in [row.spec for row in scene.snapshot().queue.rows(11)]  # type: ignore[union-attr]
    assert release(scene).state is ActionState.DONE


@pytest.mark.parametrize("accounting", [{}, Unobserved("slurmdbd is down")])
def test_a_task_zero_that_nobody_remembers_may_live(scene: Scene, accounting: object) -> None:
    scene.orphan()
    scene.clock.advance(400)
    report = release(scene, snapshot=scene.snapshot(accounting=accounting))
    assert report.state is ActionState.REFUSED
    assert not scene.slurm.changes()


@pytest.mark.parametrize("change", [{"state": JobState.RUNNING}, {"user": "bob"}, {"name": "other"}])
def test_accounting_of_a_live_task_or_of_another_job_is_no_end(scene: Scene, change: dict[str, object]) -> None:
    scene.orphan()
    scene.clock.advance(400)
    seen = scene.snapshot()
    assert not isinstance(seen.accounting, Unobserved)
    rows = tuple(replace(task, **change) for task in seen.accounting[11])  # type: ignore[arg-type]
    assert release(scene, snapshot=alter(seen, accounting={11: rows})).state is ActionState.REFUSED
    assert not scene.slurm.changes()


DISGUISES = {
    "name": lambda row: replace(row, name="other"),
    "user": lambda row: replace(row, user="bob"),
    "comment": lambda row: replace(row, comment="nvrx-chain:another/1"),
    "submit time": lambda row: replace(row, submitted_at=row.submitted_at + timedelta(hours=1)),
    "no submit time": lambda row: replace(row, submitted_at=None),
}


@pytest.mark.parametrize("what", DISGUISES)
def test_an_id_that_was_given_out_again_is_refused(scene: Scene, what: str) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.disguise = DISGUISES[what]
    report = release(scene, snapshot=seen)
    assert report.state is ActionState.REFUSED
    assert not scene.slurm.changes()


@pytest.mark.parametrize("what", sorted(set(DISGUISES) - {"comment"}))
def test_an_id_of_a_foreign_chain_that_was_given_out_again_is_refused(foreign: Scene, what: str) -> None:
    foreign.orphan()
    seen = foreign.snapshot()
    foreign.slurm.disguise = DISGUISES[what]
    assert release(foreign, snapshot=seen).state is ActionState.REFUSED
    assert not foreign.slurm.changes()


def test_one_strange_row_is_enough_to_refuse_the_whole_job(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.disguise = lambda row: replace(row, name="other") if row.spec == "11_5" else row
    assert release(scene, snapshot=seen).state is ActionState.REFUSED
    assert not scene.slurm.changes()


def test_a_job_that_the_pass_did_not_see_is_refused(scene: Scene) -> None:
    scene.orphan()
    stranger = scene.slurm.submit(["--job-name=train", "--array=0-3", "--hold", "x.sh"]).array_job_id
    seen = scene.snapshot()
    assert release(scene, snapshot=seen, job=stranger).state is ActionState.REFUSED
    assert release(scene, snapshot=seen, job=None).state is ActionState.REFUSED
    assert not scene.slurm.changes()


def cut(row: QueuedTask) -> QueuedTask:
    """The last waiting task as squeue prints a list that it cut short."""
    return replace(row, array_task_id=None) if row.spec == "11_6" else row


def test_a_row_that_stands_for_several_tasks_is_left_alone(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.disguise = cut
    report = release(scene, snapshot=seen)
    assert scene.slurm.cancelled() == ["11_4", "11_5"]
    assert report.state is ActionState.INCOMPLETE
    assert scene.waiting(11) == ["11_6"]


def test_a_list_that_is_cut_afterwards_shows_nothing_of_its_job_as_gone(scene: Scene) -> None:
    scene.orphan()
    hidden = replace(scene.slurm.task("11_6"), array_task_id=None)
    seen = scene.snapshot()
    original = scene.slurm.queue

    def cut_afterwards(user: str | None = None) -> object:
        reading = original(user)
        assert not isinstance(reading, Unobserved)
        return replace(reading, tasks=(*reading.tasks, hidden)) if scene.slurm.asked("cancel") else reading

    scene.slurm.queue = cut_afterwards  # type: ignore[method-assign,assignment]
    report = release(scene, snapshot=seen)
    assert (report.state, report.gone, report.still_there) == (ActionState.INCOMPLETE, (), SPARES)


def test_a_cut_list_may_hide_task_zero(scene: Scene) -> None:
    scene.orphan()
    scene.clock.advance(400)
    seen = scene.snapshot()
    scene.slurm.disguise = cut
    assert release(scene, snapshot=seen).state is ActionState.REFUSED
    assert not scene.slurm.changes()


def test_a_second_watcher_finds_nothing_left(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    assert release(scene, snapshot=seen).state is ActionState.DONE
    assert release(scene, snapshot=seen).state is ActionState.NOTHING_LEFT
    assert len(scene.slurm.asked("cancel")) == 1


def test_two_watchers_at_the_same_moment_both_see_it_done_and_nothing_else_is_touched(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    others: list[ActionReport] = []
    scene.slurm.before["cancel"] = [lambda: others.append(release(scene, snapshot=seen))]
    assert release(scene, snapshot=seen).state is ActionState.DONE
    assert others[0].state is ActionState.DONE
    assert set(scene.slurm.cancelled()) == set(SPARES)
    assert scene.alive(11) == ["11_1", "11_2", "11_3"]


def test_a_yes_of_scancel_is_no_proof(scene: Scene) -> None:
    scene.orphan()
    scene.slurm.always("cancel", Act.IGNORED)
    began = scene.clock.monotonic()
    report = release(scene)
    assert (report.state, report.still_there, report.gone) == (ActionState.INCOMPLETE, SPARES, ())
    assert 10 < scene.clock.monotonic() - began <= 20
    assert len(scene.slurm.asked("cancel")) == 1


def test_a_scancel_that_timed_out_and_worked_is_done(scene: Scene) -> None:
    scene.orphan()
    scene.slurm.script("cancel", AfterDoing(SlurmAmbiguous("cancel jobs", part="scancel did not end in 25 s")))
    report = release(scene)
    assert (report.state, report.gone) == (ActionState.DONE, SPARES)
    assert "did not end" in report.why


@pytest.mark.parametrize("error", [SlurmError("cancel jobs", part="not yours"), SlurmAmbiguous("cancel jobs")])
def test_a_scancel_that_failed_is_reported_with_its_text(scene: Scene, error: SlurmError) -> None:
    scene.orphan()
    scene.slurm.script("cancel", error)
    report = release(scene)
    assert (report.state, report.still_there) == (ActionState.FAILED, SPARES)
    assert str(error) in report.why


def test_a_queue_that_goes_blind_before_the_reading_stops_everything(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.script("queue", Unobserved("slurmctld is away"))
    report = release(scene, snapshot=seen)
    assert report.state is ActionState.FAILED
    assert not scene.slurm.changes()


def test_a_queue_that_goes_blind_after_the_cancel_shows_nothing_as_gone(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.before["cancel"] = [lambda: scene.slurm.always("queue", Unobserved("slurmctld is away"))]
    report = release(scene, snapshot=seen)
    assert (report.state, report.asked, report.gone) == (ActionState.FAILED, SPARES, ())
    assert "slurmctld is away" in report.why


def test_a_queue_that_comes_back_in_time_is_believed(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.before["cancel"] = [lambda: scene.slurm.script("queue", *[Unobserved("away")] * 3)]
    assert release(scene, snapshot=seen).state is ActionState.DONE


def test_a_blind_pass_does_nothing(scene: Scene) -> None:
    scene.orphan()
    report = release(scene, snapshot=scene.snapshot(queue=Unobserved("squeue did not answer")))
    assert report.state is ActionState.FAILED
    assert not scene.slurm.calls


def test_a_dry_run_reads_and_touches_nothing(scene: Scene) -> None:
    scene.orphan()
    report = scene.act(ActionKind.CANCEL_PENDING, 11, desk=scene.desk(rights=scene.rights(dry_run=True)))
    assert (report.state, report.asked, report.gone) == (ActionState.DRY_RUN, SPARES, ())
    assert {call.operation for call in scene.slurm.calls} == {"queue"}


def test_a_job_that_is_no_array_has_no_spares(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    scene.slurm.disguise = lambda row: replace(row, is_array=False) if row.state.is_pending else row
    assert release(scene, snapshot=seen).state is ActionState.NOTHING_LEFT
    assert not scene.slurm.changes()


def test_many_spares_are_asked_for_in_chunks(scene: Scene) -> None:
    scene.orphan()
    seen = scene.snapshot()
    assert isinstance(seen.queue, Queue)
    model = scene.slurm.task("11_4")
    many = [replace(model, array_task_id=index) for index in range(1000, 1450)]
    scene.slurm.disguise = None
    original = scene.slurm.queue

    def crowded(user: str | None = None) -> object:
        reading = original(user)
        assert not isinstance(reading, Unobserved)
        return replace(reading, tasks=(*reading.tasks, *many)) if not scene.slurm.asked("cancel") else reading

    scene.slurm.queue = crowded  # type: ignore[method-assign,assignment]
    report = release(scene, snapshot=seen)
    sizes = [len(call.arguments[0]) for call in scene.slurm.asked("cancel")]  # type: ignore[arg-type]
    assert sizes == [SPECS_PER_CALL, SPECS_PER_CALL, 53]
    assert report.state is ActionState.DONE


def test_an_array_of_its_own_is_no_generation_however_much_it_looks_like_one(foreign: Scene) -> None:
    # A parameter sweep: its task 0 has ended, the others wait for a slot, the next sweep waits for it as singleton.
    foreign.orphan()
    report = release(foreign)
    assert report.state is ActionState.REFUSED
    assert "no generation has a cycle record" in report.why
    assert foreign.slurm.cancelled() == []


def test_an_array_with_cycle_records_is_a_generation_without_a_successor_too(foreign: Scene) -> None:
    foreign.orphan()
    seen = foreign.snapshot()
    assert isinstance(seen.queue, Queue)
    alone = alter(recorded(seen), queue=alter(seen.queue, arrays={11: seen.queue.rows(11)}))
    assert release(foreign, snapshot=alone).state is ActionState.DONE


def recorded(seen: Snapshot) -> Snapshot:
    """The same with cycle records of every generation."""
    return alter(seen, generations=tuple(alter(one, has_directory=True) for one in seen.generations))
