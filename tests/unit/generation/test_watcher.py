"""The picture of the control directory, how it is kept up to date, and that the threads that keep it survive."""

from __future__ import annotations

import dataclasses
import random
import threading
from typing import Any, cast

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import RecordError
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.lease import LeaseWriter, lease_interval_seconds
from nvrx_chain.generation.sight import BLIND_SECONDS
from nvrx_chain.generation.watcher import BoardWatcher, Snapshot
from nvrx_chain.records.control import Lease, Silence
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.outcome import Outcome
from tests.fakes.fake_clock import FakeClock
from tests.fakes.generation_lab import FakeLauncher, Lab, freeze

PATIENCE_SECONDS = 60.0


@pytest.fixture
def context(lab: Lab) -> TaskContext:
    return lab.arrive(1, 0)


def look(context: TaskContext) -> Snapshot:
    return context.watcher.latest()


def test_an_empty_board_says_nothing(lab: Lab) -> None:
    snapshot = look(lab.context(1, 1))
    assert snapshot.closed is snapshot.over is snapshot.rendezvous is snapshot.no_restart is snapshot.inquiry is None
    assert snapshot.joined == snapshot.left == snapshot.launcher_exits == ()
    assert not snapshot.leases


def test_it_sees_who_joined_and_who_left_and_whose_lease_moves(lab: Lab, context: TaskContext) -> None:
    peer = lab.arrive(1, 2)
    look(context)
    lab.clock.advance(20)
    freeze(peer)
    lab.clock.advance(20)
    snapshot = look(context)
    assert snapshot.joined == (0, 2)
    assert snapshot.live_peers() == (2,)
    assert snapshot.leases[0].still_seconds == 0.0
    lab.clock.advance(30)
    assert look(context).leases[2].still_seconds >= 30
    peer.board.leave("done")
    assert look(context).live_peers() == ()


@pytest.mark.parametrize("name", [".closed.json.7.ab.tmp", "lease.x.json", "launcher_exit.json.tmp", "nonsense"])
def test_left_over_and_foreign_names_say_nothing(lab: Lab, context: TaskContext, name: str) -> None:
    (lab.directory(1).control / name).write_text("{")
    snapshot = look(context)
    assert snapshot.joined == (0,)
    assert snapshot.launcher_exits == ()


def test_damaged_files_say_nothing_and_are_looked_at_again(lab: Lab, context: TaskContext) -> None:
    directory = lab.directory(1)
    for path in (directory.closed, directory.no_restart, directory.rendezvous, directory.inquiry, directory.lease(3)):
        path.write_text("{")
    snapshot = look(context)
    assert snapshot.closed is snapshot.no_restart is snapshot.rendezvous is snapshot.inquiry is None
    assert set(snapshot.leases) == {0}
    directory.closed.unlink()
    context.board.close(Outcome.FAILED, exit_code=1, evidence=(), leases={})
    assert look(context).closed is not None


def test_a_file_of_another_generation_says_nothing(lab: Lab, context: TaskContext) -> None:
    lease = Lease(counter=7, interval_seconds=5.0, phase="x", **lab.context(5, 1).identity.stamp())
    write_atomic(lab.directory(1).lease(1), encode_record(lease))
    assert set(look(context).leases) == {0}


def test_a_board_that_cannot_be_listed_for_a_moment_forgets_nobody(lab: Lab, context: TaskContext) -> None:
    lab.arrive(1, 2).board.leave("done")
    assert look(context).left == (2,)
    control = lab.directory(1).control
    control.rename(control.with_name("hidden"))
    control.write_text("")
    assert look(context).left == (2,)
    assert look(context).joined == (0, 2)


def test_a_launcher_exit_is_read_once_however_often_the_board_is(lab: Lab, context: TaskContext) -> None:
    launcher = FakeLauncher(lab.context(1, 2).board, lab.clock)
    launcher.write_exit("n3", 75, lost=True)
    assert look(context).lost_hosts() == (2,)
    path = lab.directory(1).launcher_exit(2, "n3")
    path.write_text("{")
    assert look(context).lost_hosts() == (2,)
    path.unlink()
    assert look(context).launcher_exits == ()


def test_an_exit_that_could_not_be_read_is_read_again(lab: Lab, context: TaskContext) -> None:
    path = lab.directory(1).launcher_exit(2, "n3")
    path.write_text("{")
    assert look(context).launcher_exits == ()
    FakeLauncher(lab.context(1, 2).board, lab.clock).write_exit("n3", 1)
    assert len(look(context).launcher_exits) == 1


class SlowBoard:
    """A board whose leases take a while to be read, and that counts how often each was."""

    def __init__(self, context: TaskContext, seconds: float) -> None:
        self._board = context.board
        self._clock = cast(FakeClock, context.clock)
        self._seconds = seconds
        self.reads: list[int] = []
        self.silence_reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._board, name)

    def lease(self, task: int) -> Lease | None:
        self.reads.append(task)
        found = self._board.lease(task)
        self._clock.advance(self._seconds)
        return found

    def silence(self, task: int) -> Silence | None:
        self.silence_reads += 1
        return self._board.silence(task)


def watch(context: TaskContext, board: SlowBoard, *, all_leases: bool = True) -> BoardWatcher:
    return BoardWatcher(cast(Any, board), context.chain, context.clock, 1.0, all_leases=all_leases)


def test_a_read_that_hung_makes_no_lease_look_older_than_it_may_be(lab: Lab, context: TaskContext) -> None:
    freeze(context)
    watcher = watch(context, SlowBoard(context, 3.0))
    assert watcher.read().leases[0].still_seconds == 0.0
    # Asked a second time at 3 s, answered at 6 s: known to stand still from the first answer to the second question.
    assert watcher.read().leases[0].still_seconds == 0.0
    lab.clock.advance(4)
    assert watcher.read().leases[0].still_seconds == pytest.approx(7.0)


def test_leases_of_peers_are_read_as_often_as_they_can_change_and_that_of_task_zero_always(
    lab: Lab, context: TaskContext
) -> None:
    peer = lab.context(1, 1)
    peer.board.write_lease(1, 50.0, "running")
    board = SlowBoard(context, 0.0)
    watcher = watch(context, board)
    for _ in range(100):
        watcher.read()
        lab.clock.advance(1)
    assert board.reads.count(0) == 100
    assert 5 <= board.reads.count(1) <= 12


def test_a_peer_of_a_crowd_reads_the_lease_of_task_zero_only(lab: Lab, context: TaskContext) -> None:
    lab.arrive(1, 1)
    board = SlowBoard(context, 0.0)
    assert set(watch(context, board, all_leases=False).read().leases) == {0}
    assert board.reads == [0]


@pytest.mark.parametrize("doubts", [False, True])
def test_hundreds_of_statements_cost_a_peer_that_is_well_no_read(lab: Lab, context: TaskContext, doubts: bool) -> None:
    for task in range(1, 250):
        lab_board(context, task).join()
        lab_board(context, task).say_silent(False, 25.0)
    for task in range(250, CROWDED):
        lab_board(context, task).join()
    board = SlowBoard(context, 0.0)
    watcher = watch(context, board, all_leases=False)
    # As few as ever said so could not close anything, whatever they say now.
    watcher.read_votes(doubts)
    for _ in range(3):
        assert watcher.read().silenced == ()
    assert board.silence_reads == 0
    if doubts:
        lab_board(context, 499).say_silent(True, 25.0)
        assert watcher.read().silenced == (499,)
        assert board.silence_reads == 250


def lab_board(context: TaskContext, task: int) -> Board:
    return dataclasses.replace(context.board, identity=dataclasses.replace(context.board.identity, array_task_id=task))


# The threads


class Faulty:
    """Stands in for a chain or a board, and fails in the methods named for the first few calls."""

    def __init__(self, real: object, method: str, error: Exception, times: int) -> None:
        self._real, self._method, self._error, self._times = real, method, error, times
        self.worked = threading.Event()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name != self._method:
            return real

        def call(*arguments: Any) -> Any:
            if self._times > 0:
                self._times -= 1
                raise self._error
            result = real(*arguments)
            self.worked.set()
            return result

        return call


ERRORS: list[Exception] = [RecordError("reading"), OSError(116, "Stale file handle"), ZeroDivisionError("a fault")]


@pytest.mark.parametrize("error", ERRORS)
def test_no_error_ends_the_thread_that_watches_the_board(lab: Lab, context: TaskContext, error: Exception) -> None:
    chain = Faulty(context.chain, "outcome", error, times=0)
    watcher = BoardWatcher(context.board, cast(Any, chain), SystemClock(), 0.01, all_leases=True)
    watcher.start()
    try:
        chain.worked.clear()
        chain._times = 3
        assert chain.worked.wait(PATIENCE_SECONDS)
        assert chain._times == 0
    finally:
        watcher.stop()


@pytest.mark.parametrize("error", ERRORS)
def test_no_error_ends_the_thread_that_writes_the_lease(lab: Lab, context: TaskContext, error: Exception) -> None:
    board = Faulty(context.board, "write_lease", error, times=0)
    writer = LeaseWriter(cast(Any, board), SystemClock(), 0.01)
    writer.start()
    try:
        board.worked.clear()
        board._times = 3
        assert board.worked.wait(PATIENCE_SECONDS)
        assert board._times == 0
        assert writer.seconds_since_written() < PATIENCE_SECONDS
    finally:
        writer.stop()


def test_a_lease_that_cannot_be_written_at_the_start_is_an_error_at_once(lab: Lab, context: TaskContext) -> None:
    board = Faulty(context.board, "write_lease", RecordError("writing"), times=1)
    with pytest.raises(RecordError):
        LeaseWriter(cast(Any, board), SystemClock(), 0.01).start()


def test_time_since_the_lease_was_written_grows_while_writing_fails(lab: Lab, context: TaskContext) -> None:
    writer = LeaseWriter(context.board, context.clock, 5.0)
    lab.clock.advance(3)
    assert writer.seconds_since_written() == 3.0


def test_a_lease_is_as_old_as_the_begin_of_its_write(lab: Lab, context: TaskContext) -> None:
    class Slow:
        """The name moves at once, and then the server takes its time."""

        def write_lease(self, counter: int, interval: float, phase: str) -> None:
            context.board.write_lease(counter, interval, phase)
            lab.clock.advance(12)

    writer = LeaseWriter(cast(Any, Slow()), context.clock, 5.0)
    writer._write()
    assert writer.seconds_since_written() == 12.0


def test_a_reader_that_was_blind_suspects_nobody_before_it_has_watched_anew(lab: Lab, context: TaskContext) -> None:
    peer = lab.arrive(1, 2)
    watcher = BoardWatcher(context.board, context.chain, lab.clock, 1.0, all_leases=True)
    freeze(peer)
    for _ in range(20):
        lab.clock.advance(1)
        view = watcher.read().leases[2]
    assert view.still_seconds >= 15
    lab.clock.advance(90)
    view = watcher.read().leases[2]
    # Its ranks may have been excused all the while: no later generation may count on this time either.
    assert view.still_seconds == 0.0
    for _ in range(31):
        lab.clock.advance(1)
        view = watcher.read().leases[2]
    assert 30 <= view.still_seconds <= 32


CROWDED = 500


def test_a_pass_over_five_hundred_files_is_slow_and_not_blind(lab: Lab, context: TaskContext) -> None:
    for task in range(1, CROWDED):
        lab_board(context, task).write_lease(1, 25.0, "running")
    board = SlowBoard(context, 0.02)
    watcher, began, shown = watch(context, board), lab.clock.monotonic(), 0.0
    for _ in range(15):
        shown = watcher.read().leases[250].still_seconds
        lab.clock.advance(1)
    assert lab.clock.monotonic() - began > 15 * 5, "a pass takes long"
    assert shown > 0.8 * (lab.clock.monotonic() - began) - 15


@pytest.mark.parametrize("blocked", [8.1, 30.0])
def test_one_read_that_blocks_is_blindness_also_in_the_middle_of_a_pass(
    lab: Lab, context: TaskContext, blocked: float
) -> None:
    for task in range(1, 4):
        lab_board(context, task).write_lease(1, 5.0, "running")
    board = SlowBoard(context, 0.0)
    watcher = watch(context, board)
    for _ in range(20):
        lab.clock.advance(1)
        assert watcher.unread_seconds() == 0.0
        view = watcher.read().leases[1]
    assert view.still_seconds >= 15
    board._seconds = blocked
    watcher.read()
    board._seconds = 0.0
    lab.clock.advance(1)
    assert watcher.read().leases[1].still_seconds <= 1.0


def test_a_directory_that_fails_at_once_shows_no_more_than_one_that_hangs(lab: Lab, context: TaskContext) -> None:
    lab_board(context, 1).write_lease(1, 5.0, "running")
    watcher = watch(context, SlowBoard(context, 0.0))
    for _ in range(20):
        lab.clock.advance(1)
        watcher.read()
    freeze(context)
    control = lab.directory(1).control
    away = control.with_name("away")
    control.rename(away)
    control.write_text("")
    for _ in range(12):
        lab.clock.advance(1)
        watcher.read()
    control.unlink()
    away.rename(control)
    lab.clock.advance(1)
    assert watcher.read().leases[1].still_seconds == 0.0


class FaultyBoard(SlowBoard):
    """Each read of a lease takes its time or finds nothing; keeps when the directory showed anything."""

    fails = False

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context, 0.0)
        self.sights = [self._clock.monotonic()]

    def lease(self, task: int) -> Lease | None:
        found = super().lease(task)
        if self.fails:
            return None
        self.sights.append(self._clock.monotonic())
        return found

    def blind_until(self) -> float:
        pairs = zip(self.sights, self.sights[1:], strict=False)
        return max((after for before, after in pairs if after - before > BLIND_SECONDS + 1.0), default=0.0)


@pytest.mark.parametrize("seed", range(30))
def test_no_stillness_counts_that_was_not_seen(lab: Lab, context: TaskContext, seed: int) -> None:
    """Whatever takes how long and fails: each counter really stood still for as long, and after the last blindness."""
    dice, board, peer = random.Random(seed), FaultyBoard(context), lab_board(context, 1)
    watcher = watch(context, board)
    stood = {1: [lab.clock.monotonic(), float("inf")]}
    peer.write_lease(1, 1.0, "running")
    for _ in range(60):
        lab.clock.advance(dice.choice([1.0, 1.0, 1.0, 5.0, 20.0]))
        if dice.random() < 0.1:
            now, counter = lab.clock.monotonic(), len(stood) + 1
            stood[counter - 1][1], stood[counter] = now, [now, float("inf")]
            peer.write_lease(counter, 1.0, "running")
        board._seconds = dice.choice([0.0, 0.0, 0.02, 1.0, 7.0, 9.0, 30.0])
        board.fails = dice.random() < 0.2
        board.sights.append(lab.clock.monotonic())
        view = watcher.read().leases.get(1)
        if view is not None:
            began, ended = stood[view.counter]
            now = lab.clock.monotonic()
            assert view.still_seconds <= min(ended, now) - began
            assert view.still_seconds <= now - board.blind_until()


@pytest.mark.parametrize(
    ("task", "total", "seconds"), [(0, 1000, 5.0), (1, 5, 5.0), (1, 100, 5.0), (1, 200, 10.0), (999, 1000, 50.0)]
)
def test_all_peers_together_write_at_most_twenty_leases_a_second(task: int, total: int, seconds: float) -> None:
    assert lease_interval_seconds(5.0, task, total) == seconds
    assert total / lease_interval_seconds(5.0, 1, total) <= 20.0


def test_stopping_waits_for_no_read_that_hangs(lab: Lab, context: TaskContext) -> None:
    entered, release = threading.Event(), threading.Event()
    board = SlowBoard(context, 0.0)

    def lease(_task: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            release.wait(PATIENCE_SECONDS)

    board.lease = lease  # type: ignore[method-assign]
    watcher = BoardWatcher(cast(Any, board), context.chain, SystemClock(), 0.01, all_leases=True)
    watcher.start()
    try:
        assert entered.wait(PATIENCE_SECONDS)
        watcher.stop()
        assert watcher.latest().leases == {}
    finally:
        release.set()
