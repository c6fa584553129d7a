"""Holding and extending run the nvrx-chain command, once, by an argv, and believe what comes back with care."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.records.control import Hold
from nvrx_watch.acting.desk import CommandAnswer
from nvrx_watch.acting.perform import perform
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.model import ActionKind
from tests.unit.watch import build
from tests.unit.watch.acting.scene import CHAIN_ID, Scene, finding
from tests.unit.watch.acting.test_cancel_chain import no_restart, verdict


def held(scene: Scene, **changes: object) -> Hold:
    return build.hold(chain_id=CHAIN_ID, **changes)


def said(done: tuple[int, ...] = (12, 13), code: int = 0, **changes: object) -> CommandAnswer:
    body = {"schema": 1, "action": "hold", "done": done, "not_done": {}, "left_alone": {}, "no_answer": None}
    return CommandAnswer(returncode=code, stdout=msgspec.json.encode({**body, **changes}).decode(), stderr="")


def hold(scene: Scene, **given: object) -> ActionReport:
    return scene.act(ActionKind.HOLD, None, **given)  # type: ignore[arg-type]


def extend(scene: Scene, **given: object) -> ActionReport:
    return scene.act(ActionKind.EXTEND, None, **given)  # type: ignore[arg-type]


def test_a_hold_runs_the_command_of_this_interpreter_without_a_shell(scene: Scene) -> None:
    scene.answer = said()
    report = hold(scene)
    (argv,) = scene.commands
    assert argv[:7] == (sys.executable, "-I", "-m", "nvrx_chain", "hold", "--run-dir", str(scene.run.path))
    assert (report.state, report.asked, report.still_there) == (ActionState.DONE, ("12", "13"), ())


def test_what_is_not_held_is_still_there(scene: Scene) -> None:
    scene.answer = said((12,), 1, not_done={13: "it is not held"})
    report = hold(scene)
    assert (report.state, report.still_there) == (ActionState.INCOMPLETE, ("13",))
    assert "13: it is not held" in report.why


def test_a_hold_that_could_not_be_verified_failed(scene: Scene) -> None:
    scene.answer = said((), 1, no_answer="slurmctld is away")
    assert hold(scene).state is ActionState.FAILED


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (CommandAnswer(returncode=2, stdout="", stderr="Error: No such command 'hold'.\n"), "No such command"),
        (CommandAnswer(returncode=None, stdout="", stderr=""), "did not end in time"),
        (CommandAnswer(returncode=0, stdout="junk \x1b[31m \ud800", stderr=""), "junk"),
        (CommandAnswer(returncode=0, stdout="{}", stderr=""), "ended with 0"),
    ],
)
def test_an_answer_that_says_nothing_is_a_failure(scene: Scene, answer: CommandAnswer, text: str) -> None:
    scene.answer = answer
    report = hold(scene)
    assert report.state is ActionState.FAILED
    assert text in report.why
    assert "\x1b" not in report.why


def test_a_chain_that_is_held_or_over_is_not_held_again(scene: Scene) -> None:
    for changes in ({"hold": held(scene)}, {"verdict": verdict("completed")}):
        assert hold(scene, snapshot=scene.snapshot(**changes)).state is ActionState.NOTHING_LEFT
    assert not scene.commands


def test_a_chain_that_was_released_may_be_held_again(scene: Scene) -> None:
    scene.answer = said()
    released = held(scene, released_at=build.ago_text(5), released_by="ann")
    assert hold(scene, snapshot=scene.snapshot(hold=released)).state is ActionState.DONE


@pytest.mark.parametrize("source", ["hold", "verdict"])
@pytest.mark.parametrize("kind", [ActionKind.HOLD, ActionKind.EXTEND])
def test_what_could_not_be_read_stops_both(scene: Scene, kind: ActionKind, source: str) -> None:
    seen = scene.snapshot(**{source: Unobserved("permission denied")})
    assert scene.act(kind, None, snapshot=seen).state is ActionState.FAILED
    assert not scene.commands


@pytest.mark.parametrize("kind", [ActionKind.HOLD, ActionKind.EXTEND])
def test_a_dry_run_runs_no_command(scene: Scene, kind: ActionKind) -> None:
    desk = scene.desk(rights=scene.rights(dry_run=True), keep_queued=9)
    report = scene.act(kind, None, desk=desk)
    assert report.state is ActionState.DRY_RUN
    assert kind.value in report.why
    assert not scene.commands
    assert not scene.slurm.changes()


@pytest.mark.parametrize("kind", [ActionKind.HOLD, ActionKind.EXTEND])
def test_a_run_directory_that_could_be_an_option_is_not_named(scene: Scene, kind: ActionKind) -> None:
    seen = scene.snapshot(subject=scene.subject(run_directory=Path("--yes")))
    assert scene.act(kind, None, snapshot=seen, desk=scene.desk(keep_queued=9)).state is ActionState.REFUSED
    assert not scene.commands


def test_a_command_that_cannot_be_started_is_a_failure(scene: Scene) -> None:
    def broken(argv: object, seconds: float) -> CommandAnswer:
        raise NvrxError("start python", part="no such file")

    report = hold(scene, desk=scene.desk(run_command=broken))
    assert (report.state, "no such file" in report.why) == (ActionState.FAILED, True)


def submitting(scene: Scene, *, code: int = 0) -> object:
    """An `extend` that submits one generation."""

    def run(argv: tuple[str, ...], seconds: float) -> CommandAnswer:
        scene.commands.append(tuple(argv))
        scene.slurm.submit(scene.argv(len(scene.jobs) + 1))
        return CommandAnswer(returncode=code, stdout="", stderr="boom" if code else "")

    return run


def test_one_generation_is_submitted_when_too_few_wait(scene: Scene) -> None:
    report = extend(scene, desk=scene.desk(keep_queued=5, run_command=submitting(scene)))
    (argv,) = scene.commands
    assert argv == (sys.executable, "-I", "-m", "nvrx_chain", "extend", "--run-dir", str(scene.run.path), "--by", "1")
    assert report.state is ActionState.DONE
    assert "queued: job" in report.why


def test_enough_queued_generations_need_no_other(scene: Scene) -> None:
    assert extend(scene, desk=scene.desk(keep_queued=2)).state is ActionState.NOTHING_LEFT
    assert not scene.commands


def test_the_rest_of_a_generation_that_has_begun_is_no_queued_generation(scene: Scene) -> None:
    seen = scene.snapshot()
    first, second, third = seen.generations
    begun = replace(second, rendezvous=build.rendezvous(second.array_job_id))
    seen = replace(seen, generations=(first, begun, third))
    desk = scene.desk(keep_queued=2, run_command=submitting(scene))
    assert extend(scene, snapshot=seen, desk=desk).state is ActionState.DONE


def test_what_somebody_else_submitted_since_the_pass_counts(scene: Scene) -> None:
    seen = scene.snapshot()
    scene.slurm.submit(scene.argv(4))
    assert extend(scene, snapshot=seen, desk=scene.desk(keep_queued=3)).state is ActionState.NOTHING_LEFT
    assert not scene.commands


def test_a_success_that_the_queue_does_not_show_is_incomplete(scene: Scene) -> None:
    assert extend(scene, desk=scene.desk(keep_queued=5)).state is ActionState.INCOMPLETE


def test_a_command_that_is_not_there_yet_is_a_failure_with_its_words(scene: Scene) -> None:
    scene.answer = CommandAnswer(returncode=2, stdout="", stderr="Usage: ...\n\nError: No such command 'extend'.\n")
    report = extend(scene, desk=scene.desk(keep_queued=5))
    assert (report.state, "No such command 'extend'" in report.why) == (ActionState.FAILED, True)


def test_a_failure_after_a_submission_says_both(scene: Scene) -> None:
    report = extend(scene, desk=scene.desk(keep_queued=5, run_command=submitting(scene, code=1)))
    assert report.state is ActionState.FAILED
    assert "boom" in report.why
    assert "queued since" in report.why


@pytest.mark.parametrize("changes", [{"verdict": verdict("exhausted")}, {"hold": build.hold(chain_id=CHAIN_ID)}])
def test_a_chain_that_is_over_or_held_is_not_extended(scene: Scene, changes: dict[str, object]) -> None:
    report = extend(scene, snapshot=scene.snapshot(**changes), desk=scene.desk(keep_queued=9))
    assert report.state is ActionState.REFUSED
    assert not scene.commands


def test_a_chain_with_a_no_restart_verdict_is_not_extended(scene: Scene) -> None:
    first, *rest = scene.snapshot().generations
    seen = scene.snapshot(generations=(replace(first, no_restart=no_restart()), *rest))
    assert extend(scene, snapshot=seen, desk=scene.desk(keep_queued=9)).state is ActionState.REFUSED
    assert not scene.commands


def test_a_job_with_a_copied_comment_stops_the_counting(scene: Scene) -> None:
    scene.slurm.submit(scene.argv(4, name="other"))
    assert extend(scene, desk=scene.desk(keep_queued=9)).state is ActionState.REFUSED
    assert not scene.commands


def test_a_blind_queue_stops_the_counting(scene: Scene) -> None:
    seen = scene.snapshot()
    scene.slurm.always("queue", Unobserved("away"))
    assert extend(scene, snapshot=seen, desk=scene.desk(keep_queued=9)).state is ActionState.FAILED
    assert not scene.commands


def test_a_pass_submits_once_whatever_asks_for_it(scene: Scene) -> None:
    desk = scene.desk(keep_queued=9, run_command=submitting(scene))
    requests = [finding(ActionKind.EXTEND, job, detector=f"d{job}") for job in (None, 11, 12)]
    assert len(perform(requests, scene.snapshot(), desk)) == 1
    assert len(scene.commands) == 1


def test_a_chain_that_is_to_be_stopped_is_not_extended_in_the_same_pass(scene: Scene) -> None:
    desk = scene.desk(keep_queued=9)
    reports = perform([finding(ActionKind.EXTEND, None), finding(ActionKind.HOLD, None)], scene.snapshot(), desk)
    assert [report.request.kind for report in reports] == [ActionKind.HOLD, ActionKind.EXTEND]
    assert reports[1].state is ActionState.REFUSED
    assert [argv[4] for argv in scene.commands] == ["hold"]
