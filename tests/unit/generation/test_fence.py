"""No rank of a generation starts while one of an earlier generation may still live."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.fence import EarlierTask, Fence, judge_fence
from nvrx_chain.generation.hooks import VARIABLE
from nvrx_chain.records.control import Closed, GenerationRecord, LeaseSeen
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.states import JobState, NodeState
from tests.fakes.generation_lab import HeldWork, Lab, freeze, read, replace_struct

THRESHOLDS = Thresholds()
NEEDED = 20.0 + 10.0 + 15.0


def row(state: JobState, nodelist: str = "n1") -> QueuedTask:
    return QueuedTask(
        job_id=11,
        array_job_id=10,
        array_task_id=1,
        is_array=True,
        state=state,
        raw_state=state.value,
        reason="None",
        nodelist=nodelist,
        partition="main",
        dependency="",
        user="alice",
        submitted_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
        started_at=None,
        comment="",
        name="train",
    )


def node(*, responding: bool = True, state: NodeState = NodeState.IDLE) -> Node:
    return Node(name="n1", state=state, raw_state=state.value, responding=responding, reason="")


def judge(
    *,
    left: bool = False,
    task: QueuedTask | None = None,
    nodes: tuple[Node, ...] = (),
    still: float | None = 0.0,
    interval: float | None = 5.0,
) -> str | None:
    return judge_fence(
        EarlierTask(array_task_id=1, left=left, row=task, nodes=nodes, still_seconds=still, interval_seconds=interval),
        THRESHOLDS,
    )


def test_a_task_that_left_has_no_ranks_whatever_slurm_shows() -> None:
    assert judge(left=True, task=row(JobState.RUNNING), nodes=(node(),)) is None


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.COMPLETED, JobState.CANCELLED, JobState.TIMEOUT])
def test_an_end_on_a_node_that_answers_is_proof(state: JobState) -> None:
    assert judge(task=row(state), nodes=(node(),)) is None


@pytest.mark.parametrize(
    "state",
    [JobState.COMPLETING, JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPED, JobState.UNKNOWN],
)
def test_completing_and_every_living_state_is_no_proof(state: JobState) -> None:
    why = judge(task=row(state), nodes=(node(),), still=NEEDED - 0.1)
    assert why is not None
    assert state.value in why
    assert "on n1" in why


@pytest.mark.parametrize("where", [node(responding=False), node(state=NodeState.DOWN)])
def test_an_end_on_a_node_that_does_not_answer_is_no_proof(where: Node) -> None:
    why = judge(task=row(JobState.CANCELLED), nodes=(where,))
    assert why is not None
    assert "does not answer" in why


def test_an_end_on_nodes_that_slurm_says_nothing_about_is_no_proof() -> None:
    assert judge(task=row(JobState.CANCELLED), nodes=()) is not None


def test_a_node_that_failed_and_came_back_is_no_proof_because_its_processes_live_on_for_a_while() -> None:
    assert judge(task=row(JobState.NODE_FAIL), nodes=(node(),)) is not None
    assert judge(task=row(JobState.NODE_FAIL), nodes=(node(),), still=NEEDED) is None


def test_an_end_that_never_had_a_node_is_proof() -> None:
    assert judge(task=row(JobState.CANCELLED, nodelist=""), nodes=()) is None


@pytest.mark.parametrize("task", [None, row(JobState.RUNNING), row(JobState.COMPLETING), row(JobState.CANCELLED)])
def test_a_lease_that_stood_still_longer_than_its_own_fence_and_drain_is_proof(task: QueuedTask | None) -> None:
    assert judge(task=task, still=NEEDED) is None
    assert judge(task=task, still=NEEDED - 0.1) is not None


def test_a_task_that_writes_slowly_must_stand_still_longer() -> None:
    assert judge(still=NEEDED, interval=50.0) is not None
    assert judge(still=200.0 + 10.0 + 15.0, interval=50.0) is None


def test_a_lease_that_was_never_seen_is_no_proof() -> None:
    why = judge(still=None, interval=None)
    assert why is not None
    assert "never seen" in why
    assert "not listed" in why


# On a real board


@pytest.fixture
def successor(lab: Lab) -> TaskContext:
    """Generation 5 while generation 1 is still about."""
    return lab.context(5, 0)


def wait(lab: Lab, fence: Fence, seconds: float) -> float | None:
    """Seconds until nothing blocks any more, None when that does not come."""
    began = lab.clock.monotonic()
    while lab.clock.monotonic() - began <= seconds:
        if not fence.blockers():
            return lab.clock.monotonic() - began
        lab.clock.advance(1.0)
    return None


def test_the_first_generation_of_a_chain_waits_for_nobody(lab: Lab) -> None:
    context = lab.context(1, 0)
    assert Fence(context).blockers() == ()
    assert lab.slurm.asked("queue") == []


def test_the_predecessor_is_told_that_it_is_over(lab: Lab, successor: TaskContext) -> None:
    lab.arrive(1, 0)
    assert Fence(successor).close_earlier() == ()
    closed = lab.closed(1)
    assert closed is not None
    assert closed.outcome is Outcome.SUPERSEDED
    assert closed.array_job_id == 1
    assert "5_0" in closed.closed_by


def test_a_predecessor_that_closed_itself_keeps_its_own_word(lab: Lab, successor: TaskContext) -> None:
    lab.arrive(1, 0).board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={})
    Fence(successor).close_earlier()
    closed = lab.closed(1)
    assert closed is not None
    assert closed.outcome is Outcome.FAILED


def test_tasks_that_left_are_not_asked_about(lab: Lab, successor: TaskContext) -> None:
    for task in range(3):
        lab.arrive(1, task).board.leave("done")
    assert Fence(successor).blockers() == ()
    assert lab.slurm.asked("queue") == []


def test_each_task_that_has_not_left_blocks_and_is_named_with_its_node(lab: Lab, successor: TaskContext) -> None:
    for task in range(3):
        lab.arrive(1, task)
    lab.context(1, 1).board.leave("done")
    blockers = Fence(successor).blockers()
    assert len(blockers) == 2
    assert "generation 1: task 0 on n1 is RUNNING" in blockers[0]
    assert "generation 1: task 2 on n3 is RUNNING" in blockers[1]


def test_completing_tasks_block_until_they_have_left(lab: Lab, successor: TaskContext) -> None:
    zero = lab.arrive(1, 0)
    lab.slurm.ignore_term("1_0")
    lab.slurm.cancel(["1"])
    fence = Fence(successor)
    assert "COMPLETING" in fence.blockers()[0]
    lab.clock.after(8, lambda: zero.board.leave("drained"))
    waited = wait(lab, fence, 100)
    assert waited is not None
    assert 8 <= waited <= 10


def test_a_task_whose_shell_was_killed_blocks_only_until_slurm_shows_its_end(lab: Lab, successor: TaskContext) -> None:
    lab.arrive(1, 0)
    lab.slurm.finish("1_0", signal=9)
    waited = wait(lab, Fence(successor), 100)
    assert waited is not None
    assert waited <= 6


def test_a_task_on_a_lost_node_blocks_until_its_own_fence_has_certainly_worked(
    lab: Lab, successor: TaskContext
) -> None:
    zero = lab.arrive(1, 0)
    lab.slurm.lose_node("n1")
    freeze(zero)
    lab.slurm.cancel(["1"])
    waited = wait(lab, Fence(successor), 200)
    assert waited is not None
    assert NEEDED <= waited <= NEEDED + 6


def test_a_task_that_trains_on_beyond_reach_blocks_for_ever(lab: Lab, successor: TaskContext) -> None:
    lab.arrive(1, 0)
    lab.slurm.lose_node("n1")
    lab.slurm.cancel(["1"])
    assert wait(lab, Fence(successor), 200) is None


def close_with_credit(lab: Lab, counter: int, still_seconds: float) -> None:
    closer = lab.context(1, 1)
    seen = LeaseSeen(counter=counter, still_seconds=still_seconds, interval_seconds=5.0)
    closer.board.close(Outcome.LEASE_LOST, exit_code=None, evidence=("dead",), leases={0: seen})


def test_the_time_that_the_closer_saw_a_lease_stand_still_counts(lab: Lab, successor: TaskContext) -> None:
    zero = lab.arrive(1, 0)
    lab.slurm.lose_node("n1")
    freeze(zero)
    close_with_credit(lab, counter=1, still_seconds=40.0)
    waited = wait(lab, Fence(successor), 200)
    assert waited is not None
    assert NEEDED - 40 <= waited <= NEEDED - 40 + 6


def test_what_a_watcher_outside_saw_does_not_count(lab: Lab, successor: TaskContext) -> None:
    # For it the directory may have gone on while it stalled for every task, whose lease was then excused.
    zero = lab.arrive(1, 0)
    lab.slurm.lose_node("n1")
    freeze(zero)
    close_with_credit(lab, counter=1, still_seconds=40.0)
    path = lab.directory(1).closed
    closed = replace_struct(read(path, Closed), array_task_id=-1)
    path.write_bytes(encode_record(closed))
    waited = wait(lab, Fence(successor), 200)
    assert waited is not None
    assert waited >= NEEDED - 1


def test_the_time_until_the_clearing_was_done_counts_as_well(lab: Lab, successor: TaskContext) -> None:
    zero = lab.arrive(1, 0)
    lab.slurm.lose_node("n1")
    freeze(zero)
    close_with_credit(lab, counter=1, still_seconds=20.0)
    seen = LeaseSeen(counter=1, still_seconds=44.0, interval_seconds=5.0)
    lab.context(1, 1).board.clear("nothing is left", {0: seen})
    waited = wait(lab, Fence(successor), 200)
    assert waited is not None
    assert waited <= NEEDED - 44 + 6


def test_a_lease_that_moved_since_the_clearing_gets_no_credit_from_it(lab: Lab, successor: TaskContext) -> None:
    zero = lab.arrive(1, 0)
    lab.slurm.lose_node("n1")
    close_with_credit(lab, counter=1, still_seconds=20.0)
    seen = LeaseSeen(counter=1, still_seconds=1000.0, interval_seconds=5.0)
    lab.context(1, 1).board.clear("nothing is left", {0: seen})
    lab.clock.advance(6)
    freeze(zero)
    waited = wait(lab, Fence(successor), 200)
    assert waited is not None
    assert waited >= NEEDED


def test_a_lease_that_moved_since_the_closer_looked_gets_no_credit(lab: Lab, successor: TaskContext) -> None:
    zero = lab.arrive(1, 0)
    lab.slurm.lose_node("n1")
    close_with_credit(lab, counter=1, still_seconds=1000.0)
    lab.clock.advance(6)
    freeze(zero)
    waited = wait(lab, Fence(successor), 200)
    assert waited is not None
    assert waited >= NEEDED


def test_a_slurm_that_does_not_answer_leaves_only_the_leases(lab: Lab, successor: TaskContext) -> None:
    zero = lab.arrive(1, 0)
    lab.slurm.finish("1_0", 1)
    freeze(zero)
    lab.slurm.always("queue", Unobserved("away"))
    waited = wait(lab, Fence(successor), 200)
    assert waited is not None
    assert waited >= NEEDED


def test_a_sinfo_that_does_not_answer_makes_no_node_answer(lab: Lab, successor: TaskContext) -> None:
    lab.arrive(1, 0)
    lab.slurm.finish("1_0", 1)
    lab.slurm.always("nodes", Unobserved("away"))
    assert Fence(successor).blockers() != ()


def test_slurm_is_asked_at_most_every_five_seconds_for_any_number_of_tasks(lab: Lab, successor: TaskContext) -> None:
    for task in range(3):
        lab.arrive(1, task)
    wait(lab, Fence(successor), 60)
    assert len(lab.slurm.asked("queue")) <= 14
    assert len(lab.slurm.asked("nodes")) <= 14


def test_a_slurm_that_hangs_holds_up_nobody_and_is_asked_once(lab: Lab) -> None:
    hanging = HeldWork()
    successor = lab.context(5, 0, spawn=hanging)
    lab.arrive(1, 0)
    fence = Fence(successor)
    assert wait(lab, fence, 30) is None
    assert hanging.names == ["question about the predecessor"]
    lab.slurm.finish("1_0", 1)
    hanging.release()
    assert fence.blockers() == ()


def test_the_end_of_a_job_that_only_has_the_same_id_is_no_proof(lab: Lab, successor: TaskContext) -> None:
    lab.arrive(1, 0)
    lab.slurm.finish("1_0", 1)
    lab.record(1, 1, submitted_at="2025-06-01T00:00:00Z")
    blockers = Fence(successor).blockers()
    assert len(blockers) == 1
    assert "not listed" in blockers[0]


def launched(lab: Lab, job: int) -> None:
    identity = lab.context(job, 0).identity
    record = GenerationRecord(
        chain_id="train-1",
        started_at=format_time(lab.clock.now()),
        launched_at=format_time(lab.clock.now()),
        ended_at=None,
        outcome=None,
        exit_code=None,
        signalled=False,
        near_wall=False,
        iteration_at_start=None,
        iteration_at_end=None,
        cycles=None,
        run_seconds=None,
        **identity.stamp(),
    )
    write_atomic(lab.directory(job).record, encode_record(record))


def test_a_generation_that_refused_hides_nobody_before_it(lab: Lab) -> None:
    lab.arrive(1, 0)
    lab.context(5, 0)
    blockers = Fence(lab.context(6, 0)).blockers()
    assert [text.partition(":")[0] for text in blockers] == ["generation 1"]


def test_what_a_generation_that_launched_has_fenced_is_not_fenced_again(lab: Lab) -> None:
    lab.arrive(1, 0)
    launched(lab, 5)
    assert Fence(lab.context(6, 0)).blockers() == ()


def test_a_generation_whose_id_was_never_recorded_is_fenced(lab: Lab, successor: TaskContext) -> None:
    lab.arrive(1, 0)
    lab.run.submission_id(1).unlink()
    assert "generation 1: task 0" in Fence(successor).blockers()[0]
    assert lab.closed(1) is not None


@pytest.mark.parametrize("name", ["generations", "submissions"])
def test_generations_that_cannot_be_listed_block_until_they_can(lab: Lab, successor: TaskContext, name: str) -> None:
    for task in range(3):
        lab.arrive(1, task).board.leave("done")
    path = lab.run.path / name
    hidden = path.rename(path.with_name("hidden"))
    path.write_text("")
    fence = Fence(successor)
    assert "the earlier generations" in fence.blockers()[0]
    path.unlink()
    hidden.rename(path)
    assert fence.blockers() == ()
    assert read(lab.directory(1).closed, Closed).outcome is Outcome.SUPERSEDED


def test_a_board_that_cannot_be_listed_blocks(lab: Lab, successor: TaskContext) -> None:
    for task in range(3):
        lab.arrive(1, task).board.leave("done")
    lab.context(1, 0).board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={})
    control = lab.directory(1).control
    control.rename(control.with_name("hidden"))
    control.write_text("")
    assert Fence(successor).blockers() != ()


def test_a_predecessor_that_cannot_be_told_blocks_until_it_can(lab: Lab, successor: TaskContext) -> None:
    control = lab.directory(1).control
    lab.arrive(1, 0).board.leave("done")
    control.rename(control.with_name("hidden"))
    control.write_text("")
    fence = Fence(successor)
    assert "could not be told" in fence.close_earlier()[0]
    control.unlink()
    Path(control.with_name("hidden")).rename(control)
    assert fence.blockers() == ()
    assert lab.closed(1) is not None


def test_a_predecessor_whose_directory_is_a_link_blocks_and_nothing_is_written_through_it(
    lab: Lab, successor: TaskContext, tmp_path: Path
) -> None:
    victim = tmp_path / "another chain's generation"
    (victim / "control").mkdir(parents=True)
    lab.arrive(1, 0)
    own = lab.run.generations / "1"
    own.rename(own.with_name("moved"))
    own.symlink_to(victim)
    assert "it could not be told that it is over" in Fence(successor).blockers()[0]
    assert [path.name for path in victim.rglob("*")] == ["control"]


def test_the_hook_switches_the_fence_off(lab: Lab, successor: TaskContext, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.arrive(1, 0)
    monkeypatch.setenv(VARIABLE, "no-fence")
    assert Fence(successor).blockers() == ()
