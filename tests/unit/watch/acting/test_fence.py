"""A generation is fenced only after proof of death, closed once, and cleared so that no slot goes to a spare."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from nvrx_chain.clock import format_time
from nvrx_chain.errors import RecordError, SlurmAmbiguous, Unobserved
from nvrx_chain.records.control import Lease
from nvrx_chain.records.files import write_first
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.slurm.states import JobState
from nvrx_watch.acting.control_files import NO_TASK, pinned
from nvrx_watch.acting.perform import perform
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.detectors.registry import run_detectors
from nvrx_watch.memory import Memory, Seen, lease_name
from nvrx_watch.model import ActionKind
from nvrx_watch.thresholds import WatchThresholds
from tests.fakes.fake_slurm import Act
from tests.unit.watch.acting.scene import NAME, Scene

SPARES = ("11_3", "11_4", "11_5", "11_6")


def fence(scene: Scene, **given: object) -> ActionReport:
    return scene.act(ActionKind.FENCE, 11, **given)  # type: ignore[arg-type]


def lose_task_zero(scene: Scene) -> None:
    """Power loss of its node: the lease stands still, and Slurm has not noticed."""
    scene.write_lease(11)
    scene.slurm.lose_node(scene.slurm.task("11_0").nodelist)


def test_a_dead_task_zero_is_proven_closed_and_cleared(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.write_left(11, 1)
    scene.write_left(11, 2)
    for spec in ("11_1", "11_2"):
        scene.clock.after(70, partial(scene.slurm.finish, spec))
    report = fence(scene)
    assert report.state is ActionState.DONE, report
    assert report.asked == (*SPARES, "11_0")
    assert set(report.gone) == set(report.asked)
    closed = scene.closed(11)
    assert closed is not None
    assert (closed.outcome, closed.closed_by) == (Outcome.LEASE_LOST, "nvrx-watch on login1")
    assert (closed.array_job_id, closed.array_task_id, closed.pid) == (11, NO_TASK, os.getpid())
    assert closed.leases["0"].counter == 700
    assert closed.leases["0"].still_seconds >= 10
    assert "stands still" in closed.evidence[0]


def test_slurm_is_made_to_look_only_after_the_lease_stood_still(scene: Scene) -> None:
    lose_task_zero(scene)
    nudged_at: list[float] = []
    original = scene.slurm.nudge

    def nudge(spec: str) -> None:
        nudged_at.append(scene.clock.monotonic())
        assert spec == "11_0"
        original(spec)

    scene.slurm.nudge = nudge  # type: ignore[method-assign]
    fence(scene)
    assert len(nudged_at) == 1
    assert nudged_at[0] >= 10


def test_pending_tasks_go_first_then_task_zero_then_whoever_did_not_leave(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.write_left(11, 1)
    report = fence(scene)
    calls = [call.arguments for call in scene.slurm.asked("cancel")]
    assert calls == [(SPARES, True), (("11_0",), False), (("11_2",), False)]
    # Task 1 has left and has not ended: the next pass takes it, by its own word.
    assert (report.state, report.still_there) == (ActionState.INCOMPLETE, ("11_1",))
    again = fence(scene)
    assert (again.state, again.asked) == (ActionState.DONE, ("11_1",))


def test_running_peers_get_their_time_to_leave_before_they_are_taken(scene: Scene) -> None:
    lose_task_zero(scene)
    taken_at: list[float] = []
    closed_at: list[float] = []
    original = scene.slurm.cancel

    def cancel(specs: object, *, pending_only: bool = False) -> None:
        if pending_only:
            closed_at.append(scene.clock.monotonic())
        if "11_1" in specs:  # type: ignore[operator]
            taken_at.append(scene.clock.monotonic())
        original(specs, pending_only=pending_only)  # type: ignore[arg-type]

    scene.slurm.cancel = cancel  # type: ignore[method-assign]
    assert fence(scene).state is ActionState.DONE
    assert taken_at[0] - closed_at[0] >= 40, "drain and KillWait"


def test_no_later_generation_is_touched(scene: Scene) -> None:
    lose_task_zero(scene)
    fence(scene)
    assert {spec.partition("_")[0] for spec in scene.slurm.cancelled()} == {"11"}


def test_a_lease_that_moves_is_life_and_no_signal_is_sent(scene: Scene) -> None:
    lose_task_zero(scene)
    for second in range(1, 40):
        scene.clock.after(second * 5, partial(scene.write_lease, 11, 700 + second))
    report = fence(scene)
    assert report.state is ActionState.REFUSED
    assert not scene.slurm.changes()
    assert scene.closed(11) is None


def test_a_lease_that_moves_again_during_the_probe_ends_it(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.clock.after(18, lambda: scene.write_lease(11, 701))
    report = fence(scene)
    assert report.state is ActionState.REFUSED
    assert scene.slurm.changes() == ["nudge"]
    assert scene.closed(11) is None


@pytest.mark.parametrize("seconds", [5.0, 11.0, 17.0, 20.0, 22.0, 23.5])
def test_a_task_that_wrote_the_same_counter_under_another_life_has_moved(scene: Scene, seconds: float) -> None:
    lose_task_zero(scene)
    scene.clock.after(seconds, lambda: scene.write_lease(11, 700, pid=99))
    assert fence(scene).state is ActionState.REFUSED
    assert not scene.slurm.cancelled()
    assert scene.closed(11) is None


def test_a_node_that_answers_is_no_proof_however_old_the_lease(scene: Scene) -> None:
    scene.write_lease(11)
    scene.clock.advance(3600)
    report = fence(scene)
    assert report.state is ActionState.REFUSED
    assert scene.slurm.changes() == ["nudge"]
    assert scene.closed(11) is None


def test_a_lease_that_cannot_be_read_is_no_proof(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.directory(11).lease(0).write_bytes(b"{")
    report = fence(scene)
    assert report.state is ActionState.FAILED
    assert not scene.slurm.changes()


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.STOPPED, JobState.UNKNOWN, JobState.CONFIGURING])
def test_states_that_count_as_alive_are_not_fenced_on_a_silent_node(scene: Scene, state: JobState) -> None:
    lose_task_zero(scene)
    seen = scene.snapshot()
    scene.slurm.force_state("11_0", state)
    scene.clock.advance(260)
    began = scene.clock.monotonic()
    assert fence(scene, snapshot=seen).state is ActionState.REFUSED
    assert scene.clock.monotonic() == began, "there is nothing to wait for"
    assert not scene.slurm.changes()


@pytest.mark.parametrize("interval", [-5.0, 0.0])
def test_a_made_up_interval_does_not_shorten_the_watching(scene: Scene, interval: float) -> None:
    scene.write_lease(11, interval_seconds=interval)
    scene.slurm.lose_node(scene.slurm.task("11_0").nodelist)
    scene.clock.advance(220)
    scene.clock.after(8, lambda: scene.write_lease(11, 701))
    assert fence(scene).state is ActionState.REFUSED
    assert scene.closed(11) is None


def test_a_task_that_writes_too_slowly_is_not_watched(scene: Scene) -> None:
    scene.write_lease(11, interval_seconds=1e300)
    scene.slurm.lose_node(scene.slurm.task("11_0").nodelist)
    began = scene.clock.monotonic()
    assert fence(scene).state is ActionState.FAILED
    assert scene.clock.monotonic() - began < 60
    assert not scene.slurm.changes()


def test_an_absurd_probe_time_does_not_hold_up_the_pass(scene: Scene) -> None:
    manifest = scene.manifest(thresholds=Thresholds(probe=1e12))
    scene.write_lease(11)
    began = scene.clock.monotonic()
    report = fence(scene, snapshot=scene.snapshot(subject=scene.subject(manifest=manifest)))
    assert report.state is ActionState.REFUSED
    assert scene.clock.monotonic() - began < 300


def test_an_id_that_was_given_out_again_is_refused(scene: Scene) -> None:
    lose_task_zero(scene)
    seen = scene.snapshot()
    for disguise in (
        lambda row: replace(row, name="other"),
        lambda row: replace(row, user="bob"),
        lambda row: replace(row, comment="nvrx-chain:another/1"),
        lambda row: replace(row, submitted_at=row.submitted_at + timedelta(hours=1)),
    ):
        scene.slurm.disguise = disguise
        assert fence(scene, snapshot=seen).state is ActionState.REFUSED
    assert not scene.slurm.changes()
    assert scene.closed(11) is None


def test_a_task_zero_that_was_started_anew_during_the_proof_lives(scene: Scene) -> None:
    lose_task_zero(scene)
    seen = scene.snapshot()
    later = scene.clock.now() + timedelta(seconds=99)

    def disguise_later() -> None:
        scene.slurm.disguise = lambda row: replace(row, started_at=later) if row.spec == "11_0" else row

    scene.clock.after(15, disguise_later)
    assert fence(scene, snapshot=seen).state is ActionState.REFUSED
    assert scene.closed(11) is None
    assert not scene.slurm.cancelled()


@pytest.mark.parametrize("change", [{"started_at": None}, {"job_id": 99}, {"state": JobState.PENDING}])
def test_a_task_zero_that_was_started_anew_after_the_closing_is_left_alone(
    scene: Scene, change: dict[str, object]
) -> None:
    lose_task_zero(scene)

    def come_back() -> None:
        scene.slurm.disguise = lambda row: replace(row, **change) if row.spec == "11_0" else row  # type: ignore[arg-type]

    scene.slurm.before["cancel"] = [come_back]
    report = fence(scene)
    assert scene.slurm.cancelled() == list(SPARES)
    assert report.state is ActionState.INCOMPLETE
    assert "left alone" in report.why


def test_a_queue_that_goes_blind_during_the_proof_stops_it(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.clock.after(12, lambda: scene.slurm.always("queue", Unobserved("slurmctld is away")))
    report = fence(scene)
    assert report.state is ActionState.FAILED
    assert "slurmctld is away" in report.why
    assert scene.closed(11) is None
    assert not scene.slurm.cancelled()


def test_a_queue_that_goes_blind_after_the_closing_takes_no_running_task(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.slurm.before["cancel"] = [lambda: scene.slurm.always("queue", Unobserved("slurmctld is away"))]
    report = fence(scene)
    assert report.state is ActionState.FAILED
    assert scene.slurm.cancelled() == list(SPARES)
    assert report.gone == ()


def test_peers_are_not_taken_when_the_queue_was_blind_during_their_time_to_leave(scene: Scene) -> None:
    lose_task_zero(scene)

    def blind_after_task_zero() -> None:
        scene.clock.after(5, lambda: scene.slurm.script("queue", Unobserved("away")))

    scene.slurm.before["cancel"] = [lambda: None, blind_after_task_zero]
    report = fence(scene)
    assert scene.slurm.cancelled() == [*SPARES, "11_0"]
    assert report.state is ActionState.INCOMPLETE
    assert report.still_there == ("11_1", "11_2")


def test_pending_tasks_that_stay_keep_task_zero_for_the_next_pass(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.slurm.script("cancel", Act.IGNORED)
    report = fence(scene)
    assert report.state is ActionState.INCOMPLETE
    assert scene.slurm.cancelled() == list(SPARES)
    assert fence(scene).state is ActionState.DONE


def test_a_refused_cancel_is_reported_with_its_text(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.slurm.script("cancel", SlurmAmbiguous("cancel jobs", part="scancel did not end"))
    report = fence(scene)
    assert report.state is ActionState.FAILED
    assert "did not end" in report.why


def test_a_closed_file_of_somebody_else_is_not_overwritten_and_its_peers_are_not_taken(scene: Scene) -> None:
    lose_task_zero(scene)
    before = scene.write_closed(11, "stuck", closed_by="11_2 on n3")
    scene.write_left(11, 1)
    report = fence(scene)
    assert scene.closed(11) == before
    assert scene.slurm.cancelled() == [*SPARES, "11_0", "11_1"]
    assert report.still_there == ("11_2",)


def test_a_left_file_of_another_job_gives_no_task_away(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.write_closed(11, "lease_lost", closed_by="11_2 on n3")
    scene.write_left(11, 1, array_job_id=99)
    scene.write_left(11, 2, array_task_id=5)
    report = fence(scene)
    assert scene.slurm.cancelled() == [*SPARES, "11_0"]
    assert report.still_there == ("11_1", "11_2")


def test_a_fence_that_broke_off_half_way_is_taken_up_again(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.write_closed(11, "lease_lost", closed_by="nvrx-watch on login2")
    assert fence(scene).state is ActionState.DONE
    assert scene.alive(11) == ["11_0"], "COMPLETING on its lost node"


def test_a_fence_that_slurm_refused_is_asked_for_and_done_in_a_later_pass(scene: Scene) -> None:
    """From the detectors on: the first pass closes the generation, and that must not hide it from the next ones."""
    lose_task_zero(scene)
    scene.slurm.script("cancel", SlurmAmbiguous("cancel jobs", part="scancel did not end"))
    assert fence(scene).state is not ActionState.DONE
    assert scene.closed(11) is not None
    assert scene.alive(11)
    scene.clock.advance(WatchThresholds().not_leaving + 1)
    lease = scene.lease(11, 700)
    still = Memory(
        seen={
            lease_name(11, 0): Seen(
                value=lease.counter,
                since=format_time(scene.clock.now() - timedelta(seconds=300)),
                looked_at=format_time(scene.clock.now()),
                changes=0,
                looks=9,
            )
        }
    )
    node = scene.slurm.task("11_0").nodelist
    nodes = scene.slurm.nodes([node])
    assert not isinstance(nodes, Unobserved)
    first = scene.generation(11, has_directory=True, closed=scene.closed(11), leases={0: lease})
    rest = tuple(scene.generation(job) for job in scene.jobs[1:])
    seen = scene.snapshot(memory=still, nodes=nodes, generations=(first, *rest))
    found = run_detectors(seen, WatchThresholds(), ())
    assert not found.broken
    (report,) = [one for one in perform(found.findings, seen, scene.desk()) if one.request.kind is ActionKind.FENCE]
    assert report.detector == "closed_generation_stays"
    assert report.state is ActionState.DONE, report
    assert scene.alive(11) == []


def test_a_closed_file_alone_is_no_proof(scene: Scene) -> None:
    scene.write_lease(11)
    scene.write_closed(11, "lease_lost", closed_by="nvrx-watch on login2")
    assert fence(scene).state is ActionState.REFUSED
    assert not scene.slurm.cancelled()


def test_a_damaged_closed_file_stops_the_fence(scene: Scene) -> None:
    lose_task_zero(scene)
    scene.directory(11).closed.write_bytes(b"\xff")
    assert fence(scene).state is ActionState.REFUSED
    assert not scene.slurm.changes()


def test_two_watchers_close_once_and_cancel_the_same(scene: Scene) -> None:
    lose_task_zero(scene)
    others: list[ActionReport] = []
    seen = scene.snapshot()
    scene.slurm.before["cancel"] = [lambda: others.append(fence(scene, snapshot=seen))]
    assert fence(scene, snapshot=seen).state is ActionState.DONE
    assert others[0].state is ActionState.DONE
    assert {spec.partition("_")[0] for spec in scene.slurm.cancelled()} == {"11"}


def test_a_terminal_task_zero_is_dead_without_a_probe(scene: Scene) -> None:
    scene.slurm.finish("11_0", exit_code=1)
    report = fence(scene)
    assert not scene.slurm.asked("nudge")
    assert report.state is ActionState.DONE
    assert scene.closed(11) is not None


def test_a_generation_of_which_nothing_is_left_is_not_closed(scene: Scene) -> None:
    for spec in ("11_0", "11_1", "11_2", "11_3", "11_4", "11_5", "11_6"):
        scene.slurm.finish(spec)
    assert fence(scene).state is ActionState.NOTHING_LEFT
    assert scene.closed(11) is None
    assert not scene.slurm.changes()


def test_a_dry_run_watches_and_touches_nothing(scene: Scene) -> None:
    lose_task_zero(scene)
    dry = scene.desk(rights=scene.rights(dry_run=True))
    report = fence(scene, desk=dry)
    assert report.state is ActionState.DRY_RUN
    assert set(report.asked) == {*SPARES, "11_0"}
    assert not scene.slurm.changes()
    assert scene.closed(11) is None


def test_a_copy_of_the_run_directory_proves_nothing(scene: Scene) -> None:
    lose_task_zero(scene)
    (scene.root / "original").mkdir()
    manifest = scene.manifest(run_directory=str(scene.root / "original"))
    report = fence(scene, snapshot=scene.snapshot(subject=scene.subject(manifest=manifest)))
    assert report.state is ActionState.REFUSED
    assert not scene.slurm.changes()


def test_nothing_is_written_through_a_link(scene: Scene) -> None:
    lose_task_zero(scene)
    control, elsewhere = scene.directory(11).control, scene.root / "elsewhere"
    control.rename(elsewhere)
    control.symlink_to(elsewhere)
    report = fence(scene)
    assert report.state is ActionState.FAILED
    assert not (elsewhere / "closed.json").exists()
    assert not scene.slurm.cancelled()


def test_a_directory_that_is_swapped_for_a_link_between_look_and_write_steers_no_pen(tmp_path: Path) -> None:
    control, elsewhere = tmp_path / "run" / "generations" / "11" / "control", tmp_path / "elsewhere"
    control.mkdir(parents=True)
    elsewhere.mkdir()
    with pinned(tmp_path / "run", ("generations", "11", "control"), os.getuid()) as held:
        control.rename(tmp_path / "moved")
        control.symlink_to(elsewhere)
        assert write_first(held / "closed.json", b"{}")
    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "moved" / "closed.json").read_bytes() == b"{}"


@pytest.mark.parametrize("name", ["run", "run/generations", "run/generations/11", "run/generations/11/control"])
@pytest.mark.skipif(os.getuid() != 0, reason="gives a directory away")
def test_no_directory_of_somebody_else_on_the_way_is_written_below(tmp_path: Path, name: str) -> None:
    (tmp_path / "run" / "generations" / "11" / "control").mkdir(parents=True)
    os.chown(tmp_path / name, 4242, 4242)
    with (
        pytest.raises(RecordError, match="not a directory of the chain's user"),
        pinned(tmp_path / "run", ("generations", "11", "control"), os.getuid()),
    ):
        pass


def test_leases_can_be_handed_in(scene: Scene) -> None:
    lose_task_zero(scene)
    asked: list[tuple[int, int]] = []

    def read_lease(job: int, task: int) -> Lease:
        asked.append((job, task))
        return scene.lease(job, counter=len(asked))

    report = fence(scene, desk=scene.desk(read_lease=read_lease))
    assert report.state is ActionState.REFUSED
    assert set(asked) == {(11, 0)}


def test_a_lease_of_another_job_is_none_of_its(scene: Scene) -> None:
    lose_task_zero(scene)
    desk = scene.desk(read_lease=lambda _job, _task: scene.lease(12))
    assert fence(scene, desk=desk).state is ActionState.FAILED
    assert not scene.slurm.changes()


def test_a_foreign_chain_is_never_fenced(foreign: Scene) -> None:
    foreign.slurm.lose_node("n1")
    assert fence(foreign).state is ActionState.REFUSED
    assert not foreign.slurm.calls


def test_an_operator_who_is_not_root_cannot_write_what_the_tasks_believe(scene: Scene) -> None:
    lose_task_zero(scene)
    desk = scene.desk(rights=scene.rights(user="oscar", uid=4711, as_operator=True))
    assert fence(scene, desk=desk).state is ActionState.REFUSED
    assert not scene.slurm.calls


@pytest.mark.parametrize("source", ["queue", "nodes"])
def test_a_blind_pass_does_nothing(scene: Scene, source: str) -> None:
    lose_task_zero(scene)
    seen = scene.snapshot(**{source: Unobserved("it did not answer")})
    assert fence(scene, snapshot=seen).state is ActionState.FAILED
    assert not scene.slurm.calls


def test_a_job_that_is_not_the_chains_is_refused(scene: Scene) -> None:
    stranger = scene.slurm.submit(["--array=0-2", f"--job-name={NAME}", "x.sh"]).array_job_id
    assert scene.act(ActionKind.FENCE, stranger).state is ActionState.REFUSED
    assert not scene.slurm.calls
