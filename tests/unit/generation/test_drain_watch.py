"""Task 0's look at drained nodes: what it asks, publishes, and keeps when Slurm or the disk gives no answer."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.generation import board as board_module
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.drain_watch import DrainWatch
from nvrx_chain.records.control import Drained
from nvrx_chain.records.drained import STALE_POLLS
from nvrx_chain.records.files import list_names
from nvrx_chain.records.manifest import OnDrain, Thresholds
from tests.fakes.fake_slurm import Act
from tests.fakes.generation_lab import HeldWork, Lab, freeze, read, replace_struct, shape, thaw

POLL = 60.0


@pytest.fixture
def peers(lab: Lab) -> dict[int, TaskContext]:
    return {task: lab.arrive(1, task) for task in (1, 2)}


@pytest.fixture
def task_zero(lab: Lab, peers: dict[int, TaskContext]) -> TaskContext:
    """T=2 and H=1: tasks 0, 1 and 2 run on n1, n2 and n3."""
    return lab.arrive(1, 0)


def watch_for(context: TaskContext, watch: DrainWatch, seconds: float, step: float = 1.0) -> None:
    """Let it look once a second."""
    end = context.clock.monotonic() + seconds
    while context.clock.monotonic() < end:
        watch.tick(context.watcher.latest())
        context.clock.wait(context.signals.wake, step)
    watch.tick(context.watcher.latest())


def marker(lab: Lab, task: int) -> Drained | None:
    path = lab.directory(1).drained(task)
    return read(path, Drained) if path.exists() else None


def kept_out(lab: Lab, task: int) -> bytes:
    """What ft_launcher reads: nothing lets the task in."""
    path = lab.directory(1).segment_health(task)
    return path.read_bytes() if path.exists() else b""


def test_a_drained_task_is_published_within_a_poll_with_its_nodes_and_what_slurm_says(
    lab: Lab, task_zero: TaskContext
) -> None:
    lab.slurm.drain("n2", "xid 79", "alice")
    watch_for(task_zero, DrainWatch(task_zero), POLL + 2)
    found = marker(lab, 1)
    assert found is not None
    assert (found.task, found.task_nodes, found.is_active, found.excluded) == (1, ("n2",), True, True)
    (node,) = found.drained_nodes
    assert (node.node, node.state, node.reason, node.by) == ("n2", "draining", "xid 79", "alice")
    assert node.since is not None
    assert (found.array_job_id, found.array_task_id) == (1, 0)
    assert kept_out(lab, 1) == b"n2"
    assert marker(lab, 0) is marker(lab, 2) is None


def test_a_poll_is_one_question_about_the_nodes_of_this_array_alone(lab: Lab, task_zero: TaskContext) -> None:
    watch_for(task_zero, DrainWatch(task_zero), 10 * POLL)
    asked = [call.arguments for call in lab.slurm.asked("nodes")]
    assert set(asked) == {(("n1", "n2", "n3"),)}
    assert 8 <= len(asked) <= 13
    assert {call.operation for call in lab.slurm.calls} == {"submit", "nodes"}
    assert not [name for name in list_names(lab.directory(1).control) or () if "drained" in name or "segment" in name]


def test_polls_are_spread_in_time(lab: Lab, task_zero: TaskContext) -> None:
    firsts = set()
    for _ in range(12):
        began, before = lab.clock.monotonic(), len(lab.slurm.asked("nodes"))
        watch = DrainWatch(task_zero)
        while len(lab.slurm.asked("nodes")) == before:
            watch.tick(task_zero.watcher.latest())
            lab.clock.wait(task_zero.signals.wake, 1.0)
        firsts.add(round(lab.clock.monotonic() - began))
    assert len(firsts) > 3
    assert min(firsts) >= 12
    assert max(firsts) <= POLL + 2


def test_with_zero_slurm_is_never_asked(tmp_path: Path) -> None:
    lab = Lab(tmp_path, thresholds=Thresholds(drain_poll=0.0))
    lab.submit()
    context = lab.arrive(1, 0)
    watch_for(context, DrainWatch(context), 1000)
    assert lab.slurm.asked("nodes") == []


def test_a_drain_that_is_only_reported_excludes_nobody(lab: Lab, task_zero: TaskContext) -> None:
    lab.manifest = replace_struct(lab.manifest, on_drain=OnDrain.REPORT)
    context = lab.context(1, 0)
    lab.slurm.drain("n2")
    watch_for(context, DrainWatch(context), POLL + 2)
    found = marker(lab, 1)
    assert found is not None
    assert (found.is_active, found.excluded) == (True, False)
    assert kept_out(lab, 1) == b""


def test_a_failed_poll_keeps_the_last_answer_with_its_age_and_says_so_once(
    lab: Lab, task_zero: TaskContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    watch_for(task_zero, watch, POLL + 2)
    first = marker(lab, 1)
    assert first is not None
    assert first.answer_age_seconds == 0.0
    lab.slurm.always("nodes", Unobserved("Socket timed out"))
    watch_for(task_zero, watch, 4 * POLL)
    kept = marker(lab, 1)
    assert kept is not None
    assert (kept.is_active, kept.excluded) == (True, True)
    assert kept.poll > first.poll + 1
    assert 2 * POLL < kept.answer_age_seconds < 5 * POLL
    assert kept_out(lab, 1) == b"n2"
    assert sum("the last answer is kept" in record.getMessage() for record in caplog.records) == 1
    lab.slurm.always("nodes", Act.NORMAL)
    watch_for(task_zero, watch, 2 * POLL)
    assert "known again after failed_polls=" in caplog.text
    fresh = marker(lab, 1)
    assert fresh is not None
    assert fresh.answer_age_seconds == 0.0
    assert fresh.seen_at == first.seen_at


def test_an_answer_that_is_too_old_is_withdrawn(lab: Lab, task_zero: TaskContext) -> None:
    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    watch_for(task_zero, watch, POLL + 2)
    lab.slurm.always("nodes", Unobserved("Socket timed out"))
    watch_for(task_zero, watch, (STALE_POLLS - 2) * POLL)
    assert kept_out(lab, 1) == b"n2"
    watch_for(task_zero, watch, 4 * POLL)
    found = marker(lab, 1)
    assert found is not None
    assert (found.is_active, found.excluded) == (False, False)
    assert kept_out(lab, 1) == b""


def test_a_node_that_returns_lets_its_task_in_again_and_the_marker_stays_as_evidence(
    lab: Lab, task_zero: TaskContext
) -> None:
    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    watch_for(task_zero, watch, POLL + 2)
    lab.slurm.restore_node("n2")
    watch_for(task_zero, watch, 2 * POLL)
    found = marker(lab, 1)
    assert found is not None
    assert (found.is_active, found.excluded) == (False, False)
    assert found.returned_at is not None
    assert found.drained_nodes[0].reason == "bad disk"
    assert kept_out(lab, 1) == b""
    written = lab.directory(1).drained(1).stat().st_mtime_ns
    watch_for(task_zero, watch, 3 * POLL)
    assert lab.directory(1).drained(1).stat().st_mtime_ns == written, "an inactive marker is written once"
    lab.slurm.drain("n2", "again")
    watch_for(task_zero, watch, 2 * POLL)
    again = marker(lab, 1)
    assert again is not None
    assert (again.is_active, again.excluded, again.returned_at) == (True, True, None)
    assert again.seen_at > found.seen_at
    assert kept_out(lab, 1) == b"n2"


def test_a_spare_that_goes_takes_the_exclusion_with_it_before_the_next_poll(
    lab: Lab, task_zero: TaskContext, peers: dict[int, TaskContext]
) -> None:
    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    watch_for(task_zero, watch, POLL + 2)
    assert kept_out(lab, 1) == b"n2"
    asked = len(lab.slurm.asked("nodes"))
    peers[2].board.leave("gone")
    watch.tick(task_zero.watcher.latest())
    watch.tick(task_zero.watcher.latest())
    assert len(lab.slurm.asked("nodes")) == asked
    found = marker(lab, 1)
    assert found is not None
    assert (found.is_active, found.excluded) == (True, False)
    assert kept_out(lab, 1) == b""


def test_a_spare_whose_launcher_has_ended_is_no_spare(
    lab: Lab, task_zero: TaskContext, peers: dict[int, TaskContext]
) -> None:
    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    watch_for(task_zero, watch, POLL + 2)
    assert kept_out(lab, 1) == b"n2"
    lab.launcher(peers[2]).exit(1)
    watch_for(task_zero, watch, 1)
    assert kept_out(lab, 1) == b""


def test_a_spare_that_has_gone_silent_is_no_spare_until_it_moves_again(
    lab: Lab, task_zero: TaskContext, peers: dict[int, TaskContext]
) -> None:
    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    watch_for(task_zero, watch, POLL + 2)
    freeze(peers[2])
    watch_for(task_zero, watch, 20)
    assert kept_out(lab, 1) == b"n2"
    watch_for(task_zero, watch, 20)
    assert kept_out(lab, 1) == b""
    thaw(peers[2])
    watch_for(task_zero, watch, 2)
    assert kept_out(lab, 1) == b"n2"


def test_task_0_and_tasks_without_a_spare_stay(lab: Lab, task_zero: TaskContext) -> None:
    for name in ("n1", "n2", "n3"):
        lab.slurm.drain(name)
    watch_for(task_zero, DrainWatch(task_zero), POLL + 2)
    found = {task: marker(lab, task) for task in (0, 1, 2)}
    assert {task: each is not None and each.excluded for task, each in found.items()} == {0: False, 1: False, 2: True}
    assert [kept_out(lab, task) for task in (0, 1, 2)] == [b"", b"", b"n3"]


def test_the_marker_of_a_task_that_left_stays_as_it_was(
    lab: Lab, task_zero: TaskContext, peers: dict[int, TaskContext]
) -> None:
    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    watch_for(task_zero, watch, POLL + 2)
    lab.launcher(peers[1]).exit(1)
    watch_for(task_zero, watch, 2)
    peers[1].board.leave("its node is drained")
    lab.slurm.finish("1_1")
    lab.slurm.restore_node("n2")
    watch_for(task_zero, watch, 3 * POLL)
    found = marker(lab, 1)
    assert found is not None
    assert (found.is_active, found.excluded) == (True, True)
    assert lab.slurm.asked("nodes")[-1].arguments == (("n1", "n3"),), "its node is somebody else's now"


def test_a_task_of_several_nodes_is_asked_about_as_a_whole(tmp_path: Path) -> None:
    lab = Lab(tmp_path, shape=shape(train=2, hot=1, cold=0, nodes=2))
    lab.submit()
    context = lab.arrive(1, 0)
    for task in (1, 2):
        lab.arrive(1, task)
    lab.slurm.drain("n4")
    watch_for(context, DrainWatch(context), POLL + 2)
    found = marker(lab, 1)
    assert found is not None
    assert set(found.task_nodes) == {"n3", "n4"}
    assert [node.node for node in found.drained_nodes] == ["n4"]
    assert kept_out(lab, 1) == b"n4"
    assert lab.slurm.asked("nodes")[0].arguments == (tuple(f"n{i}" for i in range(1, 7)),)


def test_a_slurm_that_hangs_holds_up_no_tick_and_is_asked_once(lab: Lab, task_zero: TaskContext) -> None:
    hanging = HeldWork()
    context = lab.context(1, 0, spawn=hanging)
    watch_for(context, DrainWatch(context), 10 * POLL)
    assert hanging.names == ["drain poll"]


def test_a_marker_that_cannot_be_written_is_tried_again_at_the_next_poll(
    lab: Lab, task_zero: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    real = board_module.write_atomic

    def full(path: Path, content: bytes, **options: int) -> None:
        if path.name.startswith("drained."):
            tried.append(path)
            raise RecordError(f"writing {path}: No space left on device", part=path.name)
        real(path, content, **options)

    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    with monkeypatch.context() as patched:
        patched.setattr(board_module, "write_atomic", full)
        while not tried:
            watch.tick(task_zero.watcher.latest())
            lab.clock.advance(1.0)
        for _ in range(30):
            watch.tick(task_zero.watcher.latest())
            lab.clock.advance(1.0)
        assert len(tried) == 1, "not at every tick"
    watch_for(task_zero, watch, 2 * POLL)
    assert kept_out(lab, 1) == b"n2"


def test_what_an_earlier_job_of_the_same_id_left_is_emptied_and_other_files_are_left_alone(
    lab: Lab, task_zero: TaskContext
) -> None:
    control = lab.directory(1).control
    lab.directory(1).segment_health(1).write_text("n7")
    other = control / "segment_health_check.99.1"
    other.write_text("n7")
    notes = control / "segment_health_check.1.1.inactive"
    notes.write_text("n7")
    DrainWatch(task_zero).clear_leftovers()
    assert kept_out(lab, 1) == b""
    assert other.read_text() == notes.read_text() == "n7"


def test_what_is_withdrawn_is_withdrawn_where_the_launcher_looks_even_if_the_marker_cannot_be_written(
    lab: Lab, task_zero: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    watch_for(task_zero, watch, POLL + 2)
    real = board_module.write_atomic

    def no_markers(path: Path, content: bytes, **options: int) -> None:
        if path.name.startswith("drained."):
            raise RecordError(f"writing {path}: No space left on device", part=path.name)
        real(path, content, **options)

    monkeypatch.setattr(board_module, "write_atomic", no_markers)
    lab.slurm.restore_node("n2")
    watch_for(task_zero, watch, 2 * POLL)
    assert kept_out(lab, 1) == b""


def test_the_record_of_a_marker_survives_a_round_trip(lab: Lab, task_zero: TaskContext) -> None:
    lab.slurm.drain("n2", 'bad "disk"\n & \u2603')
    watch_for(task_zero, DrainWatch(task_zero), POLL + 2)
    found = marker(lab, 1)
    assert found is not None
    assert msgspec.json.decode(msgspec.json.encode(found), type=Drained) == found
    assert found.drained_nodes[0].reason == 'bad "disk"\n & \u2603'


def test_an_exclusion_of_which_only_the_answer_was_lost_is_withdrawn_all_the_same(
    lab: Lab, task_zero: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = board_module.write_atomic

    def answer_lost(path: Path, content: bytes, **options: int) -> None:
        real(path, content, **options)
        if path.name.startswith("segment_health_check") and content:
            raise RecordError(f"writing {path}: Input/output error", part=path.name)

    lab.slurm.drain("n2")
    watch = DrainWatch(task_zero)
    with monkeypatch.context() as patched:
        patched.setattr(board_module, "write_atomic", answer_lost)
        watch_for(task_zero, watch, POLL + 2)
    assert kept_out(lab, 1) == b"n2"
    lab.slurm.restore_node("n2")
    watch_for(task_zero, watch, 3 * POLL)
    assert kept_out(lab, 1) == b""
    found = marker(lab, 1)
    assert found is not None
    assert not found.is_active


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("drain"), st.integers(0, 3)),
        st.tuples(st.just("return"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(1, 3)),
        st.tuples(st.just("exit"), st.integers(1, 3)),
        st.tuples(st.just("blind"), st.just(0)),
        st.tuples(st.just("see"), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, pauses=st.lists(st.sampled_from([1.0, 6.0, 14.0, 130.0]), min_size=12, max_size=12))
def test_whatever_happens_enough_tasks_are_let_in_and_what_is_published_agrees(
    tmp_path: Path, events: list[tuple[str, int]], pauses: list[float]
) -> None:
    """T=2, H=2: four tasks run. Nodes are drained and return, tasks go, Slurm falls silent, in any order."""
    quick = Thresholds(drain_poll=10.0, lease_interval=15.0)
    lab = Lab(Path(tempfile.mkdtemp(dir=tmp_path)), shape=shape(train=2, hot=2, cold=0), thresholds=quick)
    lab.submit()
    tasks = {task: lab.arrive(1, task) for task in range(4)}
    watch, gone = DrainWatch(tasks[0]), set()
    for (event, which), pause in zip(events, pauses, strict=False):
        if event == "drain":
            lab.slurm.drain(f"n{which + 1}")
        elif event == "return":
            lab.slurm.restore_node(f"n{which + 1}")
        elif event == "leave" and which not in gone:
            tasks[which].board.leave("gone")
            gone.add(which)
        elif event == "exit" and which not in gone:
            lab.launcher(tasks[which]).exit(1)
            gone.add(which)
        elif event == "blind":
            lab.slurm.always("nodes", Unobserved("Socket timed out"))
        elif event == "see":
            lab.slurm.always("nodes", Act.NORMAL)
        watch_for(tasks[0], watch, pause, step=2.0)
        watch.tick(tasks[0].watcher.latest())
        out = {task for task in range(4) if kept_out(lab, task)}
        live = set(range(4)) - gone
        assert 0 not in out
        assert len(live - out) >= min(2, len(live)), (out, live)
        for task in live:
            found = marker(lab, task)
            assert (found is not None and found.is_active and found.excluded) == (task in out)
