"""The journal of the log writer: whoever starts after a crash knows what stands in the files, to the frame."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrx_chain.launcher import funnel_journal
from nvrx_chain.launcher.funnel_journal import Journal, Part, Run, new_memory_files
from nvrx_chain.launcher.log_files import Appending, LogFiles
from nvrx_chain.launcher.log_settings import MIB, Kind, LogPlaces


@pytest.fixture
def memory() -> Iterator[tuple[int, int]]:
    found = new_memory_files()
    yield found
    for descriptor in found:
        os.close(descriptor)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[LogFiles]:
    found = LogFiles(LogPlaces(app_log=str(tmp_path / "app.log"), rotate_bytes=MIB))
    yield found
    found.close()


def run_of(files: LogFiles, frames: list[tuple[str, int, bytes]], cycle: int = 0) -> Run:
    file = files.open(Kind.APP, cycle)
    return Run(Kind.APP, cycle, file.inode, file.offset, [Part(who, seq, len(data)) for who, seq, data in frames])


def append(files: LogFiles, data: bytes, cycle: int = 0) -> None:
    Appending(files.open(Kind.APP, cycle).descriptor, [data]).go()


A, B = ("a", 1, b"first of a\n"), ("b", 1, b"first of b\n")


def test_a_new_journal_knows_nothing(memory: tuple[int, int], files: LogFiles) -> None:
    assert Journal(memory, files).written == {}


@pytest.mark.parametrize("written", range(len(A[2] + B[2]) + 1))
def test_a_crash_at_any_byte_leaves_whole_frames_that_are_known(
    memory: tuple[int, int], files: LogFiles, tmp_path: Path, written: int
) -> None:
    append(files, b"before\n")
    Journal(memory, files).intend([run_of(files, [A, B])])
    append(files, (A[2] + B[2])[:written])
    found = Journal(memory, files).written
    whole = b"before\n"
    expected = {}
    for who, seq, data in (A, B):
        if written >= len(whole) - len(b"before\n") + len(data):
            whole += data
            expected[who] = seq
    assert found == expected
    assert (tmp_path / "app_cycle0.log").read_bytes() == whole


def test_frames_behind_a_torn_one_in_another_file_were_not_written(memory: tuple[int, int], files: LogFiles) -> None:
    journal = Journal(memory, files)
    journal.intend([run_of(files, [A], cycle=0), run_of(files, [("a", 2, b"second\n")], cycle=1)])
    append(files, A[2][:3], cycle=0)
    assert Journal(memory, files).written == {}


def test_a_file_that_was_turned_since_holds_all_that_was_meant_for_it(
    memory: tuple[int, int], files: LogFiles, tmp_path: Path
) -> None:
    Journal(memory, files).intend([run_of(files, [A])])
    append(files, A[2])
    os.replace(tmp_path / "app_cycle0.log", tmp_path / "app_cycle0.log.1")
    (tmp_path / "app_cycle0.log").write_bytes(b"")
    assert Journal(memory, LogFiles(LogPlaces(app_log=str(tmp_path / "app.log")))).written == {"a": 1}


def test_two_crashes_in_a_row_change_nothing(memory: tuple[int, int], files: LogFiles) -> None:
    Journal(memory, files).intend([run_of(files, [A, B])])
    append(files, A[2] + B[2][:4])
    assert Journal(memory, files).written == {"a": 1}
    append(files, b"another line\n" * 5)
    assert Journal(memory, files).written == {"a": 1}


def test_a_torn_record_announced_nothing_that_was_begun(memory: tuple[int, int], files: LogFiles) -> None:
    journal = Journal(memory, files)
    journal.intend([run_of(files, [A])])
    append(files, A[2])
    size = max(os.fstat(descriptor).st_size for descriptor in memory)
    journal.intend([run_of(files, [B])])
    for descriptor in memory:
        if os.fstat(descriptor).st_size > size:
            os.ftruncate(descriptor, size + 5)
    assert Journal(memory, files).written == {"a": 1}


@pytest.mark.parametrize("kept", [0, 3, 9])
def test_a_crash_while_the_journal_is_made_anew_loses_nothing(
    memory: tuple[int, int], files: LogFiles, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    journal = Journal(memory, files)
    for seq in range(1, 4):
        journal.intend([run_of(files, [("a", seq, b"x\n")])])
        append(files, b"x\n")
        journal.done([run_of(files, [("a", seq, b"x\n")])])
    newest = journal._descriptors[1]
    journal._snapshot()
    os.ftruncate(newest, kept)
    assert Journal(memory, files).written == {"a": 3}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=60), st.data())
def test_with_crashes_at_random_places_every_frame_is_written_once(counts: list[int], data: st.DataObject) -> None:
    compact = funnel_journal.COMPACT_BYTES
    funnel_journal.COMPACT_BYTES = 300
    directory = Path(os.path.realpath("/dev/shm")) / f"nvrx-chain-journal-test-{os.getpid()}.log"
    memory = new_memory_files()
    path = Path(f"{os.path.splitext(directory)[0]}_cycle0.log")
    path.unlink(missing_ok=True)
    try:
        files = LogFiles(LogPlaces(app_log=str(directory)))
        journal = Journal(memory, files)
        for count in counts:
            seq = journal.written.get("a", 0)
            frames = [("a", seq + number + 1, b"%d\n" % (seq + number + 1)) for number in range(count)]
            content = b"".join(frame[2] for frame in frames)
            run = run_of(files, frames)
            journal.intend([run])
            written = data.draw(st.integers(0, len(content)))
            append(files, content[:written])
            if written == len(content) and data.draw(st.booleans()):
                journal.done([run])
            else:
                journal = Journal(memory, files)
        last = journal.written.get("a", 0)
        assert path.read_bytes() == b"".join(b"%d\n" % number for number in range(1, last + 1))
        files.close()
    finally:
        funnel_journal.COMPACT_BYTES = compact
        path.unlink(missing_ok=True)
        for descriptor in memory:
            os.close(descriptor)
