"""Task 0 from its start to its exit: what it refuses, what it closes, in which order, and what it exits with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from nvrx_chain.clock import format_time
from nvrx_chain.errors import ExitCode, NvrxError, Unobserved
from nvrx_chain.generation import rendezvous
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.task_zero import TaskZero
from nvrx_chain.records.control import ChainOutcome, Ending, GenerationRecord, Hold, Left, NoRestart, Rendezvous
from nvrx_chain.records.files import encode_record, write_first
from nvrx_chain.records.manifest import Completion, CompletionKind, LauncherKind, Thresholds
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.fakes.fake_slurm import Outcome as CallOutcome
from tests.fakes.generation_lab import FakeLauncher, HeldWork, Lab, freeze, read, terminate


@pytest.fixture
def context(lab: Lab) -> TaskContext:
    """Task 0 of the first generation; peers 1 and 2 are at the gate."""
    context = lab.arrive(1, 0)
    for task in (1, 2):
        lab.arrive(1, task)
    return context


@pytest.fixture
def launcher(lab: Lab, context: TaskContext) -> FakeLauncher:
    return lab.launcher(context)


def outcome(lab: Lab, job: int = 1) -> Outcome | None:
    closed = lab.closed(job)
    return closed.outcome if closed else None


def record(lab: Lab, job: int = 1) -> GenerationRecord:
    return read(lab.directory(job).record, GenerationRecord)


def has_left(lab: Lab, job: int = 1) -> bool:
    return lab.directory(job).left(0).exists()


def pending(lab: Lab) -> list[str]:
    return [row for job in (1, 5, 6) for row in lab.states_of(job) if row == "PENDING"]


def end_chain(lab: Lab, verdict: Verdict = Verdict.COMPLETED) -> None:
    lab.chain.decide(
        ChainOutcome(
            chain_id="train-1",
            verdict=verdict,
            array_job_id=1,
            by="1_0",
            why="done",
            evidence=(),
            decided_at=format_time(lab.clock.now()),
        )
    )


# The usual life


def test_a_finished_training_ends_the_chain_and_frees_everything(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    lab.checkpoint(100)
    lab.clock.after(50, lambda: (lab.checkpoint(200), launcher.exit(0)))
    assert TaskZero(context).run() is ExitCode.DONE
    assert outcome(lab) is Outcome.COMPLETED
    verdict = lab.chain.outcome()
    assert verdict is not None
    assert verdict.verdict is Verdict.COMPLETED
    assert pending(lab) == []
    assert has_left(lab)
    written = record(lab)
    assert (written.outcome, written.exit_code) == (Outcome.COMPLETED, 0)
    assert (written.iteration_at_start, written.iteration_at_end) == (100, 200)
    assert written.run_seconds == pytest.approx(50, abs=1)
    assert not written.signalled


def test_a_failure_frees_this_generation_and_leaves_the_next_ones(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(30, lambda: launcher.exit(1))
    assert TaskZero(context).run() is ExitCode.FAILED
    assert outcome(lab) is Outcome.FAILED
    assert lab.chain.outcome() is None
    assert "PENDING" not in lab.states_of(1)
    assert set(lab.states_of(5)) == {"PENDING"}


def test_a_no_restart_code_ends_the_chain(lab: Lab, context: TaskContext, launcher: FakeLauncher) -> None:
    lab.clock.after(10, lambda: launcher.exit(93))
    assert TaskZero(context).run() is ExitCode.NO_RESTART
    assert outcome(lab) is Outcome.NO_RESTART
    assert pending(lab) == []


def test_the_launch_is_recorded_before_the_launcher_starts(lab: Lab, context: TaskContext) -> None:
    lab.checkpoint(7)
    seen: list[GenerationRecord] = []

    def start() -> FakeLauncher:
        seen.append(record(lab))
        launcher = lab.launcher(context)
        lab.clock.after(5, lambda: launcher.exit(1))
        return launcher

    TaskZero(dataclasses.replace(context, start_launcher=start)).run()
    assert seen[0].launched_at is not None
    assert (seen[0].iteration_at_start, seen[0].outcome, seen[0].ended_at) == (7, None, None)


def test_it_waits_for_the_training_tasks_however_late_they_come(lab: Lab) -> None:
    context = lab.arrive(1, 0)
    launcher = lab.launcher(context)
    assert read_rendezvous(lab) is None
    lab.clock.after(100, lambda: lab.arrive(1, 2))
    lab.clock.after(150, lambda: launcher.exit(0))
    TaskZero(context).run()
    written = record(lab)
    assert written.run_seconds == pytest.approx(50, abs=2)
    published = read_rendezvous(lab)
    assert published is not None
    assert published.present == (0, 2)
    assert published.members == (0, 1, 2, 3, 4)


def read_rendezvous(lab: Lab) -> Rendezvous | None:
    path = lab.directory(1).rendezvous
    return read(path, Rendezvous) if path.exists() else None


def test_with_fixed_seats_exactly_the_training_tasks_get_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path, launcher=LauncherKind.TORCHRUN)
    lab.submit(1)
    context = lab.arrive(1, 0)
    for task in (1, 2):
        lab.arrive(1, task)
    launcher = lab.launcher(context)
    lab.clock.after(5, lambda: launcher.exit(0))
    TaskZero(context).run()
    published = read_rendezvous(lab)
    assert published is not None
    assert published.members == (0, 1)


def test_a_peer_that_dies_while_the_generation_assembles_is_replaced(lab: Lab) -> None:
    context, peer = lab.arrive(1, 0), lab.arrive(1, 1)
    lab.arrive(1, 2).board.leave("terminated")
    lab.slurm.finish("1_2", 1)
    launcher = lab.launcher(context)
    context.watcher.latest()
    freeze(peer)
    lab.slurm.lose_node("n2")
    lab.clock.advance(31)
    lab.clock.after(100, lambda: (lab.arrive(1, 4), lab.clock.after(10, lambda: launcher.exit(0))))
    TaskZero(context).run()
    assert lab.states(1)[1] == "COMPLETING"
    published = read_rendezvous(lab)
    assert published is not None
    assert published.present == (0, 4)


# Refusing


def test_a_chain_that_is_over_is_not_brought_back_and_its_rest_is_cancelled(lab: Lab, context: TaskContext) -> None:
    end_chain(lab)
    assert TaskZero(context).run() is ExitCode.DONE
    assert outcome(lab) is Outcome.REFUSED
    assert (1, 0) not in lab.launchers
    assert pending(lab) == []


def test_a_verdict_that_cannot_be_read_is_no_leave_to_run(lab: Lab, context: TaskContext) -> None:
    lab.run.outcome.write_text("{")
    assert TaskZero(context).run() is ExitCode.REFUSED
    assert (1, 0) not in lab.launchers


def test_the_verdict_on_an_older_chain_in_this_directory_stops_nobody(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    text = '{"chain_id":"old","verdict":"completed","array_job_id":1,"by":"","why":"","evidence":[],"decided_at":""}'
    lab.run.outcome.write_text(text)
    lab.clock.after(5, lambda: launcher.exit(1))
    assert TaskZero(context).run() is ExitCode.FAILED


@pytest.mark.parametrize(
    ("word", "verdict"), [(Outcome.COMPLETED, Verdict.COMPLETED), (Outcome.NO_RESTART, Verdict.NO_RESTART)]
)
def test_a_predecessor_that_died_between_its_word_and_the_verdict_is_finished_for_it(
    lab: Lab, context: TaskContext, word: Outcome, verdict: Verdict
) -> None:
    context.board.close(word, exit_code=0, evidence=("by the predecessor",), leases={})
    context.board.leave("done")
    successor = lab.context(5, 0)
    assert TaskZero(successor).run() is ExitCode.DONE
    decided = lab.chain.outcome()
    assert decided is not None
    assert decided.verdict is verdict
    assert pending(lab) == []


def test_a_restarted_task_refuses_and_says_nothing_about_the_ranks_of_its_first_start(lab: Lab) -> None:
    context = lab.context(1, 0, restart_count=1)
    assert TaskZero(context).run() is ExitCode.REFUSED
    assert outcome(lab) is Outcome.REFUSED
    assert not has_left(lab)
    assert (1, 0) not in lab.launchers


def test_an_old_generation_leaves_the_field_to_a_later_one(lab: Lab, context: TaskContext) -> None:
    rendezvous.publish(lab.context(5, 0), started=False, members=(), present=())
    assert TaskZero(context).run() is ExitCode.REFUSED
    assert (1, 0) not in lab.launchers


def test_a_generation_that_was_closed_before_it_started_stays_closed(lab: Lab, context: TaskContext) -> None:
    lab.context(1, 1).board.close(Outcome.SUPERSEDED, exit_code=None, evidence=(), leases={})
    assert TaskZero(context).run() is ExitCode.REFUSED
    assert outcome(lab) is Outcome.SUPERSEDED
    assert (1, 0) not in lab.launchers


def test_a_predecessor_that_never_ends_is_refused_by_name(tmp_path: Path) -> None:
    lab = Lab(tmp_path, thresholds=Thresholds(fence_timeout=60.0))
    lab.submit(3)
    lab.arrive(1, 2)
    successor = lab.arrive(5, 0)
    assert TaskZero(successor).run() is ExitCode.REFUSED
    closed = lab.closed(5)
    assert closed is not None
    assert "task 2 on n3" in closed.evidence[0]
    assert 60 <= lab.clock.monotonic() <= 70


def test_a_generation_without_enough_tasks_is_not_assembled(tmp_path: Path) -> None:
    lab = Lab(tmp_path, thresholds=Thresholds(assemble_timeout=60.0))
    lab.submit(2)
    assert TaskZero(lab.arrive(1, 0)).run() is ExitCode.NOT_ASSEMBLED
    assert outcome(lab) is Outcome.NOT_ASSEMBLED


def hold(lab: Lab, released_at: str | None = None) -> None:
    lab.chain.write_hold(
        Hold(
            chain_id="train-1",
            by="alice",
            why="maintenance",
            held_at=format_time(lab.clock.now()),
            array_job_ids=(),
            released_at=released_at,
        )
    )


def test_a_held_chain_waits_for_the_operator_and_then_leaves(tmp_path: Path) -> None:
    lab = Lab(tmp_path, thresholds=Thresholds(held_wait=60.0))
    lab.submit(2)
    context = lab.arrive(1, 0)
    hold(lab)
    assert TaskZero(context).run() is ExitCode.HELD
    assert outcome(lab) is Outcome.HELD
    assert 60 <= lab.clock.monotonic() <= 62


def test_a_release_in_time_lets_it_go_on(lab: Lab) -> None:
    context = lab.arrive(1, 0)
    launcher = lab.launcher(context)
    lab.arrive(1, 1)
    hold(lab)
    lab.clock.after(30, lambda: hold(lab, released_at=format_time(lab.clock.now())))
    lab.clock.after(40, lambda: launcher.exit(0))
    assert TaskZero(context).run() is ExitCode.DONE
    assert outcome(lab) is Outcome.COMPLETED


@pytest.mark.parametrize("phase", ["held", "fencing", "assembling"])
def test_a_term_before_the_launch_closes_within_a_moment(lab: Lab, phase: str) -> None:
    job = 5 if phase == "fencing" else 1
    if phase == "held":
        hold(lab)
    if phase == "fencing":
        lab.arrive(1, 0)
    context = lab.arrive(job, 0)
    lab.clock.after(20, lambda: terminate(context))
    assert TaskZero(context).run() is ExitCode.TERMINATED
    closed = lab.closed(job)
    assert closed is not None
    assert closed.outcome is Outcome.TERMINATED
    assert closed.closed_at <= "2026-01-01T00:00:22Z"


# Being stopped


def test_after_a_term_the_peers_are_told_before_the_ranks_have_ended(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    launcher.takes_seconds = 9.0
    lab.clock.after(50, lambda: terminate(context))
    told: list[Outcome | None] = []
    lab.clock.after(52, lambda: told.append(outcome(lab)))
    assert TaskZero(context).run() is ExitCode.TERMINATED
    assert told == [Outcome.TERMINATED]
    assert launcher.said == ["stop"]
    assert has_left(lab)
    assert lab.chain.outcome() is None
    assert set(lab.states_of(5)) == {"PENDING"}


def test_a_preempted_generation_says_so(lab: Lab, context: TaskContext, launcher: FakeLauncher) -> None:
    def preempt() -> None:
        lab.slurm.force_state("1_0", JobState.PREEMPTED)
        terminate(context)

    lab.clock.after(25, preempt)
    assert TaskZero(context).run() is ExitCode.TERMINATED
    assert outcome(lab) is Outcome.PREEMPTED


def test_a_slurm_that_hangs_delays_the_closed_file_by_two_seconds_at_most(lab: Lab) -> None:
    context = lab.arrive(1, 0, spawn=HeldWork())
    lab.arrive(1, 1)
    lab.clock.after(25, lambda: terminate(context))
    TaskZero(context).run()
    closed = lab.closed(1)
    assert closed is not None
    assert closed.closed_at <= "2026-01-01T00:00:28Z"


def test_the_warning_of_the_time_limit_ends_the_generation_after_a_save(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    def warn() -> None:
        context.signals.walltime_warned = True
        context.signals.wake.set()

    lab.clock.after(20, warn)
    lab.clock.after(60, lambda: launcher.exit(0))
    assert TaskZero(context).run() is ExitCode.DONE
    assert launcher.said == ["save"]
    assert outcome(lab) is Outcome.WALLTIME
    assert lab.chain.outcome() is None
    assert record(lab).signalled


def test_a_no_restart_word_of_a_peer_s_node_ends_the_chain(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    stamp = lab.context(1, 1).identity.stamp()

    def say() -> None:
        said = NoRestart(node="n2", exit_code=93, cause="exited with 93", written_at="", **stamp)
        write_first(lab.directory(1).no_restart, encode_record(said))

    lab.clock.after(20, say)
    assert TaskZero(context).run() is ExitCode.NO_RESTART
    assert launcher.said == ["stop"]
    assert pending(lab) == []


@pytest.mark.parametrize("word", [Outcome.RENDEZVOUS_LOST, Outcome.LEASE_LOST, Outcome.STUCK, Outcome.SUPERSEDED])
def test_closed_over_its_head_it_stops_its_ranks_and_leaves_without_waiting_for_itself(
    lab: Lab, context: TaskContext, launcher: FakeLauncher, word: Outcome
) -> None:
    peer = lab.context(1, 1)
    lab.clock.after(20, lambda: peer.board.close(word, exit_code=None, evidence=("by a peer",), leases={}))
    TaskZero(context).run()
    assert launcher.said == ["stop"]
    assert outcome(lab) is word
    assert record(lab).outcome is word
    assert has_left(lab)
    assert lab.clock.monotonic() <= 30
    assert lab.states(1)[1] == "RUNNING"


# Every way out


def test_a_crash_in_the_loop_closes_the_generation_and_calls_no_rank_gone(lab: Lab, context: TaskContext) -> None:
    def crash() -> FakeLauncher:
        raise ZeroDivisionError("a fault of ours")

    assert TaskZero(dataclasses.replace(context, start_launcher=crash)).run() is ExitCode.FAILED
    closed = lab.closed(1)
    assert closed is not None
    assert closed.outcome is Outcome.FAILED
    assert "a fault of ours" in closed.evidence[0]
    assert not has_left(lab)
    assert "PENDING" not in lab.states_of(1)


def test_a_launcher_that_cannot_be_started_closes_the_generation_at_once(lab: Lab, context: TaskContext) -> None:
    def refuse() -> FakeLauncher:
        raise NvrxError("starting srun: no such file")

    assert TaskZero(dataclasses.replace(context, start_launcher=refuse)).run() is ExitCode.FAILED
    closed = lab.closed(1)
    assert closed is not None
    assert "starting srun" in " ".join(closed.evidence)
    assert has_left(lab)


def test_a_closed_file_that_cannot_be_written_still_frees_the_spares(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    control = lab.directory(1).control

    def break_board() -> None:
        launcher.exit(1)
        control.rename(control.with_name("hidden"))
        control.write_text("")

    lab.clock.after(10, break_board)
    TaskZero(context).run()
    assert "PENDING" not in lab.states_of(1)


def test_ranks_that_cannot_be_shown_to_be_gone_are_not_called_gone(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: launcher.vanish(137))
    TaskZero(context).run()
    assert outcome(lab) is Outcome.FAILED
    assert not has_left(lab)


def test_an_srun_that_returns_zero_because_a_node_died_finishes_no_training(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: launcher.vanish(0))
    TaskZero(context).run()
    assert outcome(lab) is Outcome.FAILED
    assert lab.chain.outcome() is None


class OrderedSlurm(FakeSlurm):
    """Notes at every call whether the generation was closed, decided and recorded by then."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, user="alice")
        self.look: Callable[[], object] | None = None
        self.seen: list[tuple[str, object]] = []

    def _outcome(self, operation: str, arguments: tuple[object, ...]) -> CallOutcome:
        if self.look is not None:
            self.seen.append((operation, self.look()))
        return super()._outcome(operation, arguments)


@pytest.mark.parametrize("code", [0, 1, 93, 143])
def test_the_closed_file_comes_before_any_call_to_slurm_and_the_verdict_before_any_cancel(
    tmp_path: Path, code: int
) -> None:
    slurm: list[OrderedSlurm] = []

    def make(clock: FakeClock) -> FakeSlurm:
        slurm.append(OrderedSlurm(clock))
        return slurm[0]

    lab = Lab(tmp_path, slurm=make)
    lab.submit(3)
    context = lab.arrive(1, 0)
    lab.arrive(1, 1)

    def end() -> None:
        slurm[0].look = lambda: (outcome(lab), lab.chain.outcome() is not None, has_left(lab))
        lab.launcher(context).exit(code)

    lab.clock.after(20, end)
    TaskZero(context).run()
    assert slurm[0].seen
    is_verdict = code in (0, 93)
    for _, (word, decided, left) in slurm[0].seen:  # type: ignore[misc]
        assert word is not None
        assert decided is is_verdict
        assert left


def test_a_slurm_that_stays_away_does_not_keep_the_generation_open(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    lab.slurm.always("queue", Unobserved("away"))
    lab.clock.after(10, lambda: launcher.exit(0))
    assert TaskZero(context).run() is ExitCode.DONE
    closed = lab.closed(1)
    assert closed is not None
    assert closed.closed_at <= "2026-01-01T00:00:12Z"
    assert lab.chain.outcome() is not None
    assert lab.clock.monotonic() <= 10 + 125


# The brake, and the end of a chain


def fail(lab: Lab, job: int) -> ExitCode:
    context = lab.arrive(job, 0)
    lab.arrive(job, 1)
    lab.clock.after(20, lambda: lab.launcher(context).exit(1))
    code = TaskZero(context).run()
    for task in range(3):
        if not lab.slurm.task(f"{job}_{task}").state.is_terminal:
            lab.slurm.finish(f"{job}_{task}", int(code))
    lab.context(job, 1).board.leave("closed")
    return code


def test_two_generations_that_fail_at_once_hold_the_chain_before_the_third_can_start(lab: Lab) -> None:
    assert fail(lab, 1) is ExitCode.FAILED
    assert lab.chain.hold() is None
    assert lab.states(5)[0] == "RUNNING"
    assert fail(lab, 5) is ExitCode.FAILED
    assert lab.chain.hold() is not None
    assert set(lab.states_of(6)) == {"PENDING"}
    assert lab.slurm.task("6_0").reason == "JobHeldUser"


def test_the_last_generation_that_does_not_finish_says_that_the_chain_ran_dry(lab: Lab) -> None:
    lab.slurm.cancel(["1", "5"])
    assert lab.states(6)[0] == "RUNNING"
    fail(lab, 6)
    verdict = lab.chain.outcome()
    assert verdict is not None
    assert verdict.verdict is Verdict.EXHAUSTED


def order_the_end(lab: Lab, job: int) -> None:
    """What `cancel --after-current` writes."""
    lab.chain.end_after(
        Ending(
            chain_id=lab.chain.chain_id,
            array_job_id=job,
            by="alice on login",
            why="the budget is spent",
            decided_at=format_time(lab.clock.now()),
        )
    )


def cancelled_by_alice(lab: Lab) -> bool:
    verdict = lab.chain.outcome()
    return (
        verdict is not None
        and (verdict.verdict, verdict.by) == (Verdict.CANCELLED, "alice on login")
        and verdict.why == "the budget is spent"
    )


def test_a_generation_that_is_to_be_the_last_trains_on_and_hands_nothing_off(lab: Lab, context: TaskContext) -> None:
    lab.clock.after(5, lambda: order_the_end(lab, 1))
    lab.clock.after(60, lambda: lab.launcher(context).exit(1))
    assert TaskZero(context).run() is ExitCode.FAILED
    assert lab.clock.monotonic() >= 60, "it was to train to its end"
    assert outcome(lab) is Outcome.FAILED
    assert cancelled_by_alice(lab)
    assert not pending(lab), "a queued generation was left behind"


def test_a_generation_that_finishes_training_after_the_order_says_completed(lab: Lab, context: TaskContext) -> None:
    lab.clock.after(5, lambda: order_the_end(lab, 1))
    lab.clock.after(60, lambda: lab.launcher(context).exit(0))
    TaskZero(context).run()
    verdict = lab.chain.outcome()
    assert verdict is not None
    assert verdict.verdict is Verdict.COMPLETED


def test_a_queued_generation_that_starts_after_the_order_refuses_and_writes_the_verdict(lab: Lab) -> None:
    order_the_end(lab, 1)
    lab.slurm.cancel(["1"])
    assert TaskZero(lab.arrive(5, 0)).run() is ExitCode.DONE
    assert outcome(lab, 5) is Outcome.REFUSED
    assert cancelled_by_alice(lab)
    assert lab.states_of(6)
    assert "PENDING" not in lab.states_of(6), "the third would start next"


def test_the_last_generation_by_order_sets_no_brake(lab: Lab) -> None:
    fail(lab, 1)
    order_the_end(lab, 5)
    fail(lab, 5)
    assert lab.chain.hold() is None
    assert cancelled_by_alice(lab)


def test_an_order_about_another_chain_changes_nothing(lab: Lab, context: TaskContext) -> None:
    order = Ending(chain_id="older", array_job_id=9, by="x", why="y", decided_at="2026-01-01T00:00:00Z")
    write_first(lab.run.ending, encode_record(order))
    lab.clock.after(60, lambda: lab.launcher(context).exit(1))
    assert TaskZero(context).run() is ExitCode.FAILED
    assert lab.chain.outcome() is None
    assert "PENDING" in lab.states_of(6)


def test_an_order_that_cannot_be_read_lets_nothing_start(lab: Lab, context: TaskContext) -> None:
    lab.run.ending.write_text("{")
    assert TaskZero(context).run() is ExitCode.REFUSED
    closed = lab.closed(1)
    assert closed is not None
    assert "whether the chain is to end cannot be read" in closed.evidence[0]


def test_an_id_that_cannot_be_read_may_be_a_later_generation(lab: Lab) -> None:
    lab.run.submission_id(3).write_text("{")
    lab.slurm.cancel(["1"])
    fail(lab, 5)
    assert lab.chain.outcome() is None


def test_a_done_file_that_appears_with_the_end_is_seen(tmp_path: Path) -> None:
    done = tmp_path / "done & dusted"
    lab = Lab(tmp_path, completion=Completion(kind=CompletionKind.DONE_FILE, done_file=str(done)))
    lab.submit(2)
    context = lab.arrive(1, 0)
    lab.arrive(1, 1)
    lab.clock.after(10, lambda: (done.touch(), lab.launcher(context).exit(0)))
    TaskZero(context).run()
    assert outcome(lab) is Outcome.COMPLETED


def test_what_task_zero_says_when_it_leaves_is_about_its_own_ranks(
    lab: Lab, context: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: launcher.exit(1))
    TaskZero(context).run()
    said = read(lab.directory(1).left(0), Left)
    assert said.array_task_id == 0
    assert "failed" in said.evidence
