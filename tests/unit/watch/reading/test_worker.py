"""A reading process that hangs, dies or fails costs one reading, and never the watcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from nvrx_chain.errors import Unobserved
from nvrx_watch.layout import OwnLayout
from nvrx_watch.reading.child import ReadingChild, Serve
from nvrx_watch.reading.disk import DiskReader
from nvrx_watch.reading.messages import Entering, Message, NotRead, ReadRequest, ReadSummary, Request
from nvrx_watch.reading.worker import RunReader
from tests.rundirs import Size, write_own
from tests.unit.watch.reading.look import DEADLINE, cycles, generations, read

Make = Callable[..., RunReader]
SHORT = 0.2


@pytest.fixture
def layout(place: Path) -> OwnLayout:
    return write_own(place / "run", Size())


def reason(reader: RunReader, layout: OwnLayout, deadline_seconds: float = DEADLINE) -> str:
    answer = reader.read(layout, deadline_seconds=deadline_seconds)
    assert isinstance(answer, Unobserved), answer
    return answer.reason


def hanging_for(directory: Path, fifo: Path, *, is_cache: bool = False) -> Callable[[], Serve]:
    """A disk of which one run directory hangs: whoever opens a FIFO without a writer sleeps."""
    os.mkfifo(fifo)

    def make() -> Serve:
        disk = DiskReader(cache_directory=None, iteration_pattern=None, log_tails=8)

        def serve(request: ReadRequest) -> Iterator[Message]:
            hangs = isinstance(request.layout, OwnLayout) and request.layout.run_directory == directory
            if hangs and (request.use_cache or not is_cache):
                yield Entering(f"{directory}/deep inside", is_cache)
                fifo.read_bytes()
            yield from disk(request)

        return serve

    return make


class InTheKernel(ReadingChild):
    """A child that no signal ends, until the test lets it go."""

    released = False
    made: ClassVar[list[InTheKernel]]

    def __init__(self, serve: Serve) -> None:
        super().__init__(serve)
        self.made.append(self)

    def kill(self) -> None:
        if self.released:
            super().kill()

    def is_gone(self) -> bool:
        return self.released and super().is_gone()


@pytest.fixture
def in_the_kernel() -> Iterator[type[InTheKernel]]:
    class Fresh(InTheKernel):
        made: ClassVar[list[InTheKernel]] = []

    yield Fresh
    for child in Fresh.made:
        child.released = True
        child.end()


def test_a_child_that_hangs_is_killed_and_the_next_reading_works(
    layout: OwnLayout, place: Path, make_reader: Make
) -> None:
    reader = make_reader(serve=hanging_for(layout.run_directory, place / "fifo"))
    other = write_own(place / "other", Size())
    assert "run/deep inside gave no answer within 0.2 s" in reason(reader, layout, SHORT)
    assert reader.child_pid is None
    assert len(generations(read(reader, other))) == 4


def test_while_an_abandoned_child_lives_its_chain_is_not_read_and_others_are(
    layout: OwnLayout, place: Path, make_reader: Make, in_the_kernel: type[InTheKernel]
) -> None:
    reader = make_reader(serve=hanging_for(layout.run_directory, place / "fifo"), child=in_the_kernel)
    other = write_own(place / "other", Size())
    reason(reader, layout, SHORT)
    assert "still waiting for" in reason(reader, layout)
    assert "run/deep inside" in reason(reader, layout)
    assert len(in_the_kernel.made) == 1
    assert len(generations(read(reader, other))) == 4
    assert len(in_the_kernel.made) == 2
    in_the_kernel.made[0].released = True
    in_the_kernel.made[0].end()
    assert "gave no answer" in reason(reader, layout, SHORT)


def test_children_never_pile_up(place: Path, make_reader: Make, in_the_kernel: type[InTheKernel]) -> None:
    fifo = place / "fifo"
    os.mkfifo(fifo)

    def make() -> Serve:
        def serve(request: ReadRequest) -> Iterator[Message]:
            fifo.read_bytes()
            yield NotRead("never")

        return serve

    reader = make_reader(serve=make, child=in_the_kernel)
    layouts = [OwnLayout(run_directory=place / str(number), chain_id="c", owner_uid=0) for number in range(10)]
    reasons = [reason(reader, layout, 0.01) for layout in layouts]
    assert len(in_the_kernel.made) == 8
    assert all("still waiting for" in each for each in reasons[8:])


def test_a_cache_that_hangs_is_left_out_from_then_on(
    layout: OwnLayout, place: Path, make_reader: Make, in_the_kernel: type[InTheKernel]
) -> None:
    serve = hanging_for(layout.run_directory, place / "fifo", is_cache=True)
    reader = make_reader(serve=serve, child=in_the_kernel)
    reason(reader, layout, SHORT)
    assert len(generations(read(reader, layout))) == 4


def test_a_child_that_died_between_two_readings_is_replaced(layout: OwnLayout, reader: RunReader) -> None:
    before = read(reader, layout)
    assert reader.child_pid is not None
    os.kill(reader.child_pid, signal.SIGKILL)
    assert read(reader, layout).generations == before.generations


def test_a_child_that_dies_each_time_is_said(layout: OwnLayout, make_reader: Make) -> None:
    def make() -> Serve:
        def serve(request: ReadRequest) -> Iterator[Message]:
            os.kill(os.getpid(), signal.SIGKILL)
            yield NotRead("never")

        return serve

    reader = make_reader(serve=make)
    assert "died" in reason(reader, layout)
    assert "died" in reason(reader, layout)


def test_a_fault_in_the_reading_process_is_told_and_the_process_replaced(layout: OwnLayout, make_reader: Make) -> None:
    def make() -> Serve:
        def serve(request: ReadRequest) -> Iterator[Message]:
            raise ZeroDivisionError("a fault of ours")

        return serve

    reader = make_reader(serve=make)
    assert "a fault of ours" in reason(reader, layout)
    assert "a fault of ours" in reason(reader, layout)


def test_a_reading_without_enough_time_goes_on_where_it_stopped(
    layout: OwnLayout, place: Path, make_reader: Make
) -> None:
    big = write_own(place / "big", Size(generations=3, cycles=70, live=False))
    reader = make_reader()
    disk = DiskReader(cache_directory=None, iteration_pattern=None, log_tails=8)
    (last,) = [
        each for each in disk(ReadRequest(layout=big, seconds=-1.0, use_cache=False)) if isinstance(each, NotRead)
    ]
    assert "takes longer" in last.reason
    messages = list(disk(ReadRequest(layout=big, seconds=DEADLINE, use_cache=False)))
    assert isinstance(messages[-1], ReadSummary)
    assert [len(cycles(each)) for each in generations(read(reader, big))[:3]] == [70] * 3


def test_the_child_holds_nothing_that_the_watcher_has_open(layout: OwnLayout, reader: RunReader, place: Path) -> None:
    with (place / "lock").open("w") as lock:
        read(reader, layout)
        fds = Path(f"/proc/{reader.child_pid}/fd")
        targets = sorted(os.readlink(fds / name) for name in os.listdir(fds))
        assert not lock.closed
    assert targets[:3] == [os.devnull] * 3
    assert len(targets) == 5
    assert all(target.startswith("pipe:") for target in targets[3:])


def test_closing_ends_the_child_and_frees_its_pipes(layout: OwnLayout, make_reader: Make) -> None:
    before = len(os.listdir("/proc/self/fd"))
    reader = make_reader()
    read(reader, layout)
    pid = reader.child_pid
    assert pid is not None
    reader.close()
    reader.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_chains_have_one_child(layout: OwnLayout, reader: RunReader, place: Path) -> None:
    others = [write_own(place / str(number), Size(generations=1)) for number in range(5)]
    read(reader, layout)
    pid = reader.child_pid
    assert [len(generations(read(reader, each))) for each in others] == [2] * 5
    assert reader.child_pid == pid


def test_a_pattern_that_is_none_is_said(layout: OwnLayout, make_reader: Make) -> None:
    for pattern in ("(", "step"):
        assert "iteration pattern" in read(make_reader(iteration_pattern=pattern), layout).notes[0]


def test_the_same_directory_under_another_chain_is_another_chain(layout: OwnLayout, reader: RunReader) -> None:
    assert len(generations(read(reader, layout))) == 4
    assert generations(read(reader, replace(layout, chain_id="another"))) == ()


def test_a_chain_that_is_forgotten_costs_no_memory_here_or_in_the_child(
    layout: OwnLayout, place: Path, make_reader: Make
) -> None:
    told = place / "told"

    def make() -> Serve:
        disk = DiskReader(cache_directory=None, iteration_pattern=None, log_tails=8)

        def serve(request: Request) -> Iterator[Message]:
            messages = list(disk(request))
            # Before the last message: nobody waits for what comes after it.
            told.write_text(str(len(disk._runs)))
            yield from messages

        return serve

    reader = make_reader(serve=make)
    other = write_own(place / "other", Size())
    read(reader, layout)
    read(reader, other)
    reader.forget(layout)
    assert list(reader._views) == [other]
    read(reader, other)
    # The child serves one request after the other: it has forgotten before it answered.
    assert told.read_text() == "1"
    assert len(generations(read(reader, layout))) == 4


def test_a_child_that_is_gone_cannot_be_told_to_forget_and_nothing_breaks(layout: OwnLayout, reader: RunReader) -> None:
    read(reader, layout)
    assert reader.child_pid is not None
    os.kill(reader.child_pid, signal.SIGKILL)
    reader.forget(layout)
    assert len(generations(read(reader, layout))) == 4
