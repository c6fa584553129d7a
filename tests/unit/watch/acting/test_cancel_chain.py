"""A no-restart verdict that nobody carried out is carried out on what waits, and on nothing that runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as alter

from nvrx_chain.errors import SlurmError, Unobserved
from nvrx_chain.records.control import ChainOutcome, NoRestart
from nvrx_chain.records.files import encode_record, read_record, write_atomic
from nvrx_chain.records.outcome import Verdict
from nvrx_watch.acting.cancel_chain import find_witness
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.model import ActionKind, Snapshot
from tests.fakes.fake_slurm import Act
from tests.unit.watch.acting.scene import CHAIN_ID, Scene, stamp


def verdict(word: str = "no_restart", **changes: object) -> ChainOutcome:
    values: dict[str, object] = {
        "chain_id": CHAIN_ID,
        "verdict": Verdict(word),
        "array_job_id": 11,
        "by": "11_0 on n1",
        "why": "loss is NaN",
        "evidence": (),
        "decided_at": "2026-01-01T00:00:00Z",
    }
    return ChainOutcome(**{**values, **changes})  # type: ignore[arg-type]


def no_restart(job: int = 11) -> NoRestart:
    return NoRestart(**stamp(job, 0), node="n1", exit_code=93, cause="loss is NaN", written_at="2026-01-01T00:00:00Z")


def with_file(scene: Scene, **changes: object) -> Snapshot:
    """The first generation has the verdict file of a launcher."""
    first, *rest = scene.snapshot(**changes).generations
    return scene.snapshot(generations=(alter(first, no_restart=no_restart()), *rest), **changes)


def stop(scene: Scene, snapshot: Snapshot, **given: object) -> ActionReport:
    return scene.act(ActionKind.CANCEL_CHAIN, None, snapshot=snapshot, **given)  # type: ignore[arg-type]


def waiting_tasks(scene: Scene) -> tuple[str, ...]:
    """The queued generations, the last one first."""
    _, second, third = scene.jobs
    return tuple(f"{job}_{index}" for job in (third, second) for index in range(7))


def on_disk(scene: Scene) -> ChainOutcome | None:
    found = read_record(scene.run.outcome, ChainOutcome)
    assert not isinstance(found, Unobserved)
    return found


def test_the_queued_generations_go_by_id_and_the_running_one_stays(scene: Scene) -> None:
    report = stop(scene, with_file(scene))
    assert scene.slurm.cancelled() == list(waiting_tasks(scene))
    assert all(call.arguments[1] is True for call in scene.slurm.asked("cancel"))
    assert report.gone == waiting_tasks(scene)
    assert len(scene.alive(11)) == 7
    assert (report.state, "job 11 runs" in report.why) == (ActionState.INCOMPLETE, True)


def test_spares_of_the_generation_that_ended_go_too(scene: Scene) -> None:
    scene.slurm.hold(["11_4", "11_5", "11_6"])
    for index in range(4):
        scene.slurm.finish(f"11_{index}")
    assert scene.waiting(11) == ["11_4", "11_5", "11_6"]
    report = stop(scene, with_file(scene))
    assert {"11_4", "11_5", "11_6"} <= set(report.gone)
    assert scene.alive(11) == []


def test_the_verdict_is_on_disk_before_the_first_cancel(scene: Scene) -> None:
    seen, at_cancel = with_file(scene), []
    scene.slurm.before["cancel"] = [lambda: at_cancel.append(on_disk(scene))]
    stop(scene, seen)
    (written,) = at_cancel
    assert written is not None
    assert (written.verdict, written.chain_id, written.array_job_id) == (Verdict.NO_RESTART, CHAIN_ID, 11)
    assert (written.by, written.why) == ("nvrx-watch on login1", "loss is NaN")


def test_a_verdict_that_is_there_is_kept(scene: Scene) -> None:
    earlier = verdict("cancelled", by="alice on login2")
    write_atomic(scene.run.outcome, encode_record(earlier))
    stop(scene, with_file(scene))
    assert on_disk(scene) == earlier
    assert scene.slurm.cancelled() == list(waiting_tasks(scene))


def test_a_verdict_that_cannot_be_written_keeps_the_queue_as_it_is(scene: Scene) -> None:
    manifest = scene.manifest(run_directory=str(scene.root))
    report = stop(scene, with_file(scene, subject=scene.subject(manifest=manifest)))
    assert report.state is ActionState.FAILED
    assert not scene.slurm.changes()


def test_a_verdict_of_the_chain_is_a_witness_by_itself(scene: Scene) -> None:
    report = stop(scene, scene.snapshot(verdict=verdict()))
    assert report.gone == waiting_tasks(scene)
    assert on_disk(scene) is None, "it is not for the watcher to write it again"


@pytest.mark.parametrize("word", ["completed", "cancelled", "exhausted"])
def test_another_verdict_is_no_witness(scene: Scene, word: str) -> None:
    assert stop(scene, scene.snapshot(verdict=verdict(word))).state is ActionState.REFUSED
    assert not scene.slurm.calls


def test_the_verdict_of_an_older_chain_is_no_witness(scene: Scene) -> None:
    assert find_witness(scene.snapshot(verdict=verdict(chain_id="older"))) is None


def test_a_closed_file_that_says_no_restart_is_a_witness(scene: Scene) -> None:
    first, *rest = scene.snapshot().generations
    closed = scene.write_closed(11, "no_restart", evidence=("the launcher exited with 93",))
    found = find_witness(scene.snapshot(generations=(alter(first, closed=closed), *rest)))
    assert found is not None
    assert (found.cause, found.is_file) == ("the launcher exited with 93", False)


def test_a_verdict_file_of_another_job_is_no_witness(scene: Scene) -> None:
    first, *rest = scene.snapshot().generations
    seen = scene.snapshot(generations=(alter(first, no_restart=no_restart(99)), *rest))
    assert find_witness(seen) is None


def test_without_a_witness_nothing_is_done(scene: Scene) -> None:
    assert stop(scene, scene.snapshot()).state is ActionState.REFUSED
    assert not scene.slurm.calls


def test_an_unreadable_verdict_stops_it(scene: Scene) -> None:
    assert stop(scene, with_file(scene, verdict=Unobserved("permission denied"))).state is ActionState.FAILED
    assert not scene.slurm.calls


def test_a_generation_that_started_meanwhile_is_not_touched(scene: Scene) -> None:
    seen = with_file(scene)
    _, second, third = scene.jobs
    for index in (0, 1, 2, 3, 4, 5, 6):
        scene.slurm.finish(f"11_{index}")
    assert any(not row.state.is_pending for row in scene.truth(second))
    report = stop(scene, seen)
    assert {spec.partition("_")[0] for spec in report.asked} == {str(third)}


def test_a_generation_that_is_not_shown_to_be_the_chains_is_left_alone(scene: Scene) -> None:
    seen = with_file(scene)
    _, second, third = scene.jobs
    scene.slurm.disguise = lambda row: replace(row, comment="x") if row.array_job_id == second else row
    report = stop(scene, seen)
    assert {spec.partition("_")[0] for spec in report.asked} == {str(third)}
    assert report.state is ActionState.INCOMPLETE
    assert str(second) in report.why


def test_ids_that_were_given_out_again_are_refused(scene: Scene) -> None:
    seen = with_file(scene)
    scene.slurm.disguise = lambda row: replace(row, name="other")
    assert stop(scene, seen).state is ActionState.REFUSED
    assert not scene.slurm.changes()


def test_it_may_be_repeated(scene: Scene) -> None:
    seen = with_file(scene)
    stop(scene, seen)
    again = stop(scene, seen)
    assert not again.asked
    assert len(scene.slurm.asked("cancel")) == 1


def test_a_yes_of_scancel_is_no_proof(scene: Scene) -> None:
    scene.slurm.always("cancel", Act.IGNORED)
    report = stop(scene, with_file(scene))
    assert (report.state, report.gone) == (ActionState.INCOMPLETE, ())
    assert report.still_there == waiting_tasks(scene)


def test_a_refusal_is_reported(scene: Scene) -> None:
    scene.slurm.always("cancel", SlurmError("cancel jobs", part="Access denied"))
    report = stop(scene, with_file(scene))
    assert report.state is ActionState.FAILED
    assert "Access denied" in report.why


def test_a_dry_run_touches_nothing(scene: Scene) -> None:
    report = stop(scene, with_file(scene), desk=scene.desk(rights=scene.rights(dry_run=True)))
    assert (report.state, report.asked) == (ActionState.DRY_RUN, waiting_tasks(scene))
    assert not scene.slurm.changes()
    assert on_disk(scene) is None


def test_an_operator_who_is_not_root_does_not_write_the_verdict(scene: Scene) -> None:
    desk = scene.desk(rights=scene.rights(user="oscar", uid=4711, as_operator=True))
    assert stop(scene, with_file(scene), desk=desk).state is ActionState.REFUSED
    assert not scene.slurm.changes()
    assert on_disk(scene) is None
