"""What a node keeps for the writer: in order, within its limits, in memory and in a file that nobody else can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nvrx_chain.launcher.funnel_backlog import OVERHEAD_BYTES, Backlog
from nvrx_chain.launcher.funnel_wire import LINES_BYTES, Frame
from nvrx_chain.launcher.log_settings import Kind, LogLimits


def limits(tmp_path: Path, memory: int = 4 * LINES_BYTES, spill: int = 100 * LINES_BYTES) -> LogLimits:
    return LogLimits(memory_bytes=memory, spill_bytes=spill, spill_directory=str(tmp_path))


def take_all(backlog: Backlog) -> list[Frame]:
    """Send and acknowledge everything."""
    found = []
    while (frame := backlog.next_unsent()) is not None:
        found.append(frame)
        backlog.acknowledge(frame.seq)
    return found


def test_small_lines_leave_in_one_frame_and_kinds_and_cycles_in_their_own(tmp_path: Path) -> None:
    backlog = Backlog(limits(tmp_path))
    for kind, cycle in ((Kind.APP, 0), (Kind.APP, 0), (Kind.APP, 1), (Kind.LAUNCHER, 0), (Kind.APP, 1)):
        backlog.add(kind, cycle, b"x\n")
    assert backlog.gathered_bytes == 2
    backlog.gather()
    found = take_all(backlog)
    assert [(frame.word, frame.cycle, frame.content) for frame in found] == [
        (Kind.APP, 0, b"x\nx\n"),
        (Kind.APP, 1, b"x\n"),
        (Kind.LAUNCHER, 0, b"x\n"),
        (Kind.APP, 1, b"x\n"),
    ]
    assert [frame.seq for frame in found] == [1, 2, 3, 4]
    assert backlog.is_empty


def test_a_new_connection_sends_again_what_was_not_acknowledged(tmp_path: Path) -> None:
    backlog = Backlog(limits(tmp_path))
    for cycle in range(4):
        backlog.add(Kind.APP, cycle, b"x\n")
    backlog.gather()
    for _ in range(4):
        assert backlog.next_unsent() is not None
    backlog.acknowledge(1)
    backlog.restart(2)
    assert [frame.seq for frame in take_all(backlog)] == [3, 4]


def test_an_acknowledgement_of_what_was_never_sent_is_not_believed(tmp_path: Path) -> None:
    backlog = Backlog(limits(tmp_path))
    backlog.add(Kind.APP, 0, b"x\n")
    backlog.acknowledge(1 << 60)
    backlog.gather()
    assert backlog.next_unsent() is not None
    assert not backlog.is_empty


def test_what_memory_does_not_hold_goes_through_a_private_nameless_file_and_back_in_order(tmp_path: Path) -> None:
    backlog = Backlog(limits(tmp_path))
    lines = [b"%06d" % number + b"x" * 100_000 + b"\n" for number in range(60)]
    for line in lines:
        assert backlog.has_room(len(line))
        backlog.add(Kind.APP, 0, line)
    backlog.gather()
    status = os.fstat(backlog._spill._descriptor)
    assert status.st_size > 4_000_000
    assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 0)
    assert os.listdir(tmp_path) == []
    assert backlog._memory <= 4 * LINES_BYTES + OVERHEAD_BYTES * 10
    assert b"".join(frame.content for frame in take_all(backlog)) == b"".join(lines)
    assert os.fstat(backlog._spill._descriptor).st_size == 0
    assert backlog.is_empty
    backlog.close()


def test_beyond_both_limits_there_is_no_room_until_the_writer_has_taken_some(tmp_path: Path) -> None:
    backlog = Backlog(limits(tmp_path, spill=4 * LINES_BYTES))
    line = b"x" * (LINES_BYTES - 1) + b"\n"
    count = 0
    while backlog.has_room(len(line)):
        backlog.add(Kind.APP, 0, line)
        count += 1
    assert 6 <= count <= 8
    assert len(take_all(backlog)) == count - 1  # the newest lines are still being gathered
    assert backlog.has_room(len(line))


def test_without_a_file_the_memory_is_the_limit(tmp_path: Path) -> None:
    backlog = Backlog(limits(tmp_path, spill=0))
    line = b"x" * (LINES_BYTES - 1) + b"\n"
    count = 0
    while backlog.has_room(len(line)):
        backlog.add(Kind.APP, 0, line)
        count += 1
    assert 3 <= count <= 4


def test_lines_larger_than_every_limit_pass_when_nothing_is_in_the_way(tmp_path: Path) -> None:
    assert Backlog(limits(tmp_path, memory=10, spill=0)).has_room(1 << 21)


def test_a_directory_that_cannot_be_written_to_costs_memory_and_neither_lines_nor_order(tmp_path: Path) -> None:
    backlog = Backlog(limits(tmp_path / "gone"))
    lines = [b"%06d" % number + b"x" * 100_000 + b"\n" for number in range(30)]
    for line in lines:
        backlog.add(Kind.APP, 0, line)
    assert not backlog.has_room(1)
    backlog.gather()
    assert b"".join(frame.content for frame in take_all(backlog)) == b"".join(lines)


def test_a_file_that_cannot_be_read_any_more_costs_its_lines_and_none_of_the_later_ones(tmp_path: Path) -> None:
    backlog = Backlog(limits(tmp_path, memory=LINES_BYTES))
    for number in range(20):
        backlog.add(Kind.APP, 0, b"%06d" % number + b"x" * 100_000 + b"\n")
    backlog.gather()
    os.ftruncate(backlog._spill._descriptor, 10)
    early = take_all(backlog)
    backlog.add(Kind.APP, 0, b"later\n")
    backlog.gather()
    late = take_all(backlog)
    assert 1 <= len(early) <= 4
    assert [frame.content for frame in late] == [b"later\n"]
    backlog.close()


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(["add", "send", "acknowledge", "restart"]), max_size=120), st.integers(0, 2**32))
def test_whatever_happens_every_line_arrives_once_and_in_order(steps: list[str], salt: int) -> None:
    backlog = Backlog(LogLimits(memory_bytes=2000, spill_bytes=10**9))
    written: list[bytes] = []
    arrived: list[Frame] = []
    for number, step in enumerate(steps):
        if step == "add":
            line = b"%d " % number + b"x" * ((salt * (number + 7)) % 900) + b"\n"
            written.append(line)
            backlog.add(Kind.APP, number // 10, line)
            backlog.gather()
        elif step == "send" and (frame := backlog.next_unsent()) is not None:
            if frame.seq > len(arrived):
                assert frame.seq == len(arrived) + 1
                arrived.append(frame)
        elif step == "acknowledge":
            backlog.acknowledge(len(arrived))
        elif step == "restart":
            backlog.restart(max(backlog.acknowledged, len(arrived) - salt % 3))
    backlog.acknowledge(len(arrived))
    arrived += [frame for frame in take_all(backlog) if frame.seq > len(arrived)]
    assert [frame.content for frame in arrived] == written
    backlog.close()
