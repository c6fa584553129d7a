"""The reader of a node's pipes: everything that a worker wrote, under the rank it had, to the end of the pipe."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.log_pipes import LAUNCHER_LINES, PipeReader
from nvrx_chain.launcher.log_settings import Kind
from nvrx_chain.launcher.node_logs import LauncherLogHandler, NodeLogs

PATIENCE_SECONDS = 20.0


class Shelf:
    """A sink that keeps everything; while `gate` is closed it has no room."""

    def __init__(self) -> None:
        self.lines: dict[tuple[Kind, int], bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False
        self.entered = threading.Event()

    def write(self, kind: Kind, cycle: int, lines: bytes) -> None:
        self.entered.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        assert lines.endswith(b"\n")
        self.lines[kind, cycle] = self.lines.get((kind, cycle), b"") + lines

    def app(self, cycle: int = 0) -> bytes:
        return self.lines.get((Kind.APP, cycle), b"")

    def launcher(self) -> bytes:
        return self.lines.get((Kind.LAUNCHER, 0), b"")

    def hurry(self) -> None:
        self.gate.set()

    def close(self, within_seconds: float) -> bool:
        self.closed = True
        return True


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def reader(shelf: Shelf) -> Iterator[PipeReader]:
    found = PipeReader(shelf)
    found.start()
    yield found
    found.close(1.0)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def worker(code: str) -> tuple[subprocess.Popen[bytes], int]:
    reading, writing = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writing, start_new_session=True)
    os.close(writing)
    return process, reading


def test_lines_before_and_after_the_release_are_told_apart_to_the_byte(reader: PipeReader, shelf: Shelf) -> None:
    reading, writing = os.pipe()
    tap = reader.attach(reading)
    os.write(writing, b"warning of an import\nhalf a ")
    tap.assign(3, 1, 16)
    os.write(writing, b"line\nstep 1\n")
    os.close(writing)
    assert tap.wait(PATIENCE_SECONDS)
    assert shelf.launcher() == b"parked worker: warning of an import\nparked worker: half a \n"
    assert shelf.app(3) == b" 1: line\n 1: step 1\n"


def test_a_cold_worker_is_its_rank_from_the_first_byte_on(reader: PipeReader, shelf: Shelf) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"before the reader came\n")
    tap = reader.attach(reading, rank=(2, 0, 1))
    os.close(writing)
    assert tap.wait(PATIENCE_SECONDS)
    assert shelf.lines == {(Kind.APP, 2): b"0: before the reader came\n"}


def test_a_worker_that_was_never_released_is_in_the_launcher_log(reader: PipeReader, shelf: Shelf) -> None:
    reading, writing = os.pipe()
    tap = reader.attach(reading)
    os.write(writing, b"cannot import x")
    os.close(writing)
    assert tap.wait(PATIENCE_SECONDS)
    assert shelf.lines == {(Kind.LAUNCHER, 0): b"parked worker: cannot import x\n"}


def test_a_worker_becomes_a_rank_once(reader: PipeReader) -> None:
    reading, writing = os.pipe()
    tap = reader.attach(reading)
    tap.assign(0, 0, 1)
    with pytest.raises(NvrxError):
        tap.assign(1, 0, 1)
    os.close(writing)


def test_a_worker_that_is_gone_can_still_be_assigned(reader: PipeReader) -> None:
    reading, writing = os.pipe()
    tap = reader.attach(reading)
    os.close(writing)
    assert tap.wait(PATIENCE_SECONDS)
    tap.assign(0, 0, 1)


def test_without_prefix_the_lines_are_the_workers_own(shelf: Shelf) -> None:
    reader = PipeReader(shelf, prefix_ranks=False)
    reader.start()
    reading, writing = os.pipe()
    tap = reader.attach(reading)
    tap.assign(0, 0, 8)
    os.write(writing, b"a\n")
    os.close(writing)
    assert tap.wait(PATIENCE_SECONDS)
    assert shelf.app() == b"a\n"
    reader.close(1.0)


def test_a_worker_killed_in_the_middle_of_a_line_leaves_all_that_it_wrote(reader: PipeReader, shelf: Shelf) -> None:
    code = "import os, signal\nos.write(1, b'x' * 300000 + b'\\nhalf')\nos.kill(os.getpid(), signal.SIGKILL)"
    process, reading = worker(code)
    tap = reader.attach(reading)
    tap.assign(0, 0, 1)
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert tap.wait(PATIENCE_SECONDS)
    assert shelf.app() == b"0: " + b"x" * 300000 + b"\n0: half\n"


def test_a_grandchild_that_keeps_the_pipe_is_read_on_after_the_wait(reader: PipeReader, shelf: Shelf) -> None:
    reading, writing = os.pipe()
    grandchild = os.dup(writing)
    tap = reader.attach(reading)
    tap.assign(0, 0, 1)
    os.write(writing, b"rank\n")
    os.close(writing)
    assert not tap.wait(0.1)
    os.write(grandchild, b"grandchild\n")
    os.close(grandchild)
    assert tap.wait(PATIENCE_SECONDS)
    assert shelf.app() == b"0: rank\n0: grandchild\n"


def test_at_the_end_of_the_launcher_a_pipe_that_is_held_open_costs_no_line_and_no_time(shelf: Shelf) -> None:
    reader = PipeReader(shelf)
    reader.start()
    reading, writing = os.pipe()
    tap = reader.attach(reading)
    tap.assign(0, 0, 1)
    os.write(writing, b"whole\nhalf")
    begin = time.monotonic()
    assert reader.close(0.2) == (tap,)
    assert time.monotonic() - begin < 1.5
    assert shelf.app() == b"0: whole\n0: half\n"
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"later")
    os.close(writing)


def test_a_full_sink_holds_the_worker_up_and_loses_nothing(reader: PipeReader, shelf: Shelf) -> None:
    shelf.gate.clear()
    process, reading = worker("import sys\nfor i in range(40000): print(f'{i:0100d}')")
    tap = reader.attach(reading)
    tap.assign(0, 0, 1)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.7)
    shelf.gate.set()
    assert process.wait(PATIENCE_SECONDS) == 0
    assert tap.wait(PATIENCE_SECONDS)
    assert shelf.app() == b"".join(b"0: %0100d\n" % number for number in range(40000))


def test_the_launcher_never_waits_for_its_own_lines(reader: PipeReader, shelf: Shelf) -> None:
    shelf.gate.clear()
    reader.write_launcher("the one that is held up")
    assert shelf.entered.wait(PATIENCE_SECONDS)
    begin = time.monotonic()
    for number in range(LAUNCHER_LINES + 500):
        reader.write_launcher(f"line {number}")
    assert time.monotonic() - begin < 5.0
    shelf.gate.set()
    until(lambda: b"lines of the launcher were dropped here" in shelf.launcher())
    lines = shelf.launcher().decode().splitlines()
    kept = [int(line.split()[1]) for line in lines if line.startswith("line ")]
    assert kept == sorted(kept)
    dropped = sum(int(line.split()[1]) for line in lines if line.startswith("nvrx-chain: "))
    assert (len(kept), dropped) == (LAUNCHER_LINES, 500)


def test_the_last_line_is_the_last_line(shelf: Shelf) -> None:
    logs = NodeLogs(shelf, prefix_ranks=True)
    reading, writing = os.pipe()
    logs.attach(reading).assign(0, 0, 1)
    os.write(writing, b"trace of the crash")
    logs.write_launcher("before")
    os.close(writing)
    assert logs.close("ended reason=no_progress exit_code=93")
    assert shelf.launcher() == b"before\nended reason=no_progress exit_code=93\n"
    assert shelf.app() == b"0: trace of the crash\n"
    assert shelf.closed


def test_what_is_said_after_the_end_goes_to_standard_error(shelf: Shelf, capfd: pytest.CaptureFixture[str]) -> None:
    logs = NodeLogs(shelf, prefix_ranks=True)
    logs.close()
    logs.write_launcher("too late")
    assert capfd.readouterr().err == "too late\n"


def test_log_records_carry_node_time_and_traceback(shelf: Shelf) -> None:
    logs = NodeLogs(shelf, prefix_ranks=True)
    handler = LauncherLogHandler(logs, "node%d1")
    logger = logging.Logger("launcher.test")
    logger.addHandler(handler)
    try:
        raise ValueError("bad \udcff name")
    except ValueError:
        logger.exception("failed rank=%s", 3)
    logs.close()
    first, *rest = shelf.launcher().decode().splitlines()
    assert first.endswith("Z node%d1 ERROR launcher.test: failed rank=3")
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "ValueError: bad ? name"


def test_a_thousand_workers_leave_no_descriptor_and_no_thread(reader: PipeReader, shelf: Shelf) -> None:
    before = (0, 0)
    for cycle in range(1000):
        if cycle == 10:
            before = (len(os.listdir("/proc/self/fd")), threading.active_count())
        reading, writing = os.pipe()
        tap = reader.attach(reading)
        tap.assign(cycle, 0, 1)
        os.write(writing, b"x\n")
        os.close(writing)
        assert tap.wait(PATIENCE_SECONDS)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert all(shelf.app(cycle) == b"0: x\n" for cycle in range(1000))
