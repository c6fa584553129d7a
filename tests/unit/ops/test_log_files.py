"""Logs are read as bytes from where they were last read, and never from outside the run directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.ops.log_files import Cursor, LogDirectory, LogFile
from tests.unit.ops.conftest import ChainOnDisk, give_away

JOB = 12


@pytest.fixture
def logs(chain: ChainOnDisk) -> LogDirectory:
    return LogDirectory(chain.run, os.getuid())


def labels(files: tuple[LogFile, ...]) -> set[str]:
    return {file.label for file in files}


def only(logs: LogDirectory) -> LogFile:
    (file,) = logs.find(JOB)
    return file


@given(st.lists(st.binary(max_size=12)), st.binary(max_size=60))
def test_lines_do_not_depend_on_how_the_bytes_arrive(cuts: list[bytes], more: bytes) -> None:
    whole, piecewise = Cursor(), Cursor()
    data = b"\r\n".join([*cuts, more])
    at_once = [*whole.feed(data), *whole.finish()]
    by_byte = [line for index in range(len(data)) for line in piecewise.feed(data[index : index + 1])]
    assert [*by_byte, *piecewise.finish()] == at_once


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        (b" 10%\r 20%\r\n", [" 10%", " 20%"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"caf\xc3\xa9 \xff\n", ["caf\u00e9 \\xff"]),
    ],
)
def test_what_ends_a_line(data: bytes, lines: list[str]) -> None:
    cursor = Cursor()
    assert [*cursor.feed(data), *cursor.finish()] == lines


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    cursor = Cursor()
    fed = [line for _ in range(40) for line in cursor.feed(b"x" * (1 << 16))]
    assert fed
    assert len(cursor.partial) <= 1 << 20


def test_the_logs_of_a_generation_by_task(chain: ChainOnDisk, logs: LogDirectory) -> None:
    for name in ("task_0.log", "launcher_0.log", "app_0_cycle1.log", "launcher_1.n2.log", "task_10.log"):
        chain.log(JOB, name, b"x\n")
    chain.log(13, "task_0.log", b"other generation\n")
    assert labels(logs.find(JOB)) == {
        "12/task_0",
        "12/launcher_0",
        "12/app_0_cycle1",
        "12/launcher_1.n2",
        "12/task_10",
    }
    assert labels(logs.find(JOB, 1)) == {"12/launcher_1.n2"}
    assert labels(logs.find(JOB, 0)) == {"12/task_0", "12/launcher_0", "12/app_0_cycle1"}


def test_the_log_that_was_written_to_last_comes_last(chain: ChainOnDisk, logs: LogDirectory) -> None:
    for age, name in ((5, "task_0.log"), (50, "task_1.log"), (20, "launcher_0.log")):
        path = chain.log(JOB, name, b"x\n")
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert [file.name for file in logs.find(JOB)] == ["task_1.log", "launcher_0.log", "task_0.log"]


def test_the_output_of_a_batch_script_stands_in_for_a_missing_log(chain: ChainOnDisk, logs: LogDirectory) -> None:
    chain.log(JOB, "task_0.log", b"x\n")
    for name in ("slurm-12_0.log", "slurm-12_1.log", "slurm-13_0.log", "slurm-x.log"):
        (chain.run.slurm_logs / name).write_bytes(b"x\n")
    assert labels(logs.find(JOB)) == {"12/task_0", "12/slurm-12_1"}


@pytest.mark.parametrize("name", ["notes.txt", ".task_0.log.tmp", "task_0.log\x1b[2J.log", "-n.log", "a b.log"])
def test_other_names_are_no_logs(chain: ChainOnDisk, logs: LogDirectory, name: str) -> None:
    chain.log(JOB, name, b"x\n")
    assert logs.find(JOB) == ()


def test_there_may_be_no_logs_yet(logs: LogDirectory) -> None:
    assert logs.find(JOB) == ()


def test_a_log_that_is_a_link_is_not_read(chain: ChainOnDisk, logs: LogDirectory) -> None:
    secret = chain.world.root / "secret.log"
    secret.write_text("secret\n")
    real = chain.log(JOB, "task_0.log", b"mine\n")
    listed = only(logs)
    real.unlink()
    real.symlink_to(secret)
    assert logs.find(JOB) == ()
    assert logs.read_tail(listed, 10)[0] == []
    assert list(logs.read_new(listed, Cursor())) == []


@pytest.mark.parametrize("part", ["generations", "generations/12", "generations/12/logs"])
def test_a_directory_that_is_a_link_is_not_entered(chain: ChainOnDisk, logs: LogDirectory, part: str) -> None:
    chain.log(JOB, "task_0.log", b"elsewhere\n")
    assert labels(logs.find(JOB)) == {"12/task_0"}
    moved = chain.world.root / "moved"
    (chain.run.path / part).rename(moved)
    (chain.run.path / part).symlink_to(moved)
    assert logs.find(JOB) == ()


def test_a_fifo_does_not_block(chain: ChainOnDisk, logs: LogDirectory) -> None:
    path = chain.log(JOB, "task_0.log", b"x\n")
    listed = only(logs)
    path.unlink()
    os.mkfifo(path)
    assert logs.find(JOB) == ()
    assert logs.read_tail(listed, 10)[0] == []


def test_a_log_of_somebody_else_is_not_read(chain: ChainOnDisk) -> None:
    path = chain.log(JOB, "task_0.log", b"not yours\n")
    logs = LogDirectory(chain.run, give_away(path))
    assert logs.read_tail(only(logs), 10)[0] == []


def test_the_last_lines_of_a_long_log(chain: ChainOnDisk, logs: LogDirectory) -> None:
    lines = [f"{number} {'x' * (number % 300)}" for number in range(5000)]
    chain.log(JOB, "task_0.log", "\n".join(lines).encode() + b"\n")
    for wanted in (0, 1, 20, 700, 4999, 5000, 6000):
        found, cursor = logs.read_tail(only(logs), wanted)
        assert found == (lines[-wanted:] if wanted else [])
        assert cursor.offset == only(logs).size


def test_lines_longer_than_a_block_are_whole(chain: ChainOnDisk, logs: LogDirectory) -> None:
    long = ["a" * 200_000, "b" * 70_000, "c"]
    chain.log(JOB, "task_0.log", "\n".join(long).encode() + b"\n")
    assert logs.read_tail(only(logs), 2)[0] == long[1:]
    assert logs.read_tail(only(logs), 3)[0] == long


def test_an_unfinished_last_line_is_kept_for_later(chain: ChainOnDisk, logs: LogDirectory) -> None:
    path = chain.log(JOB, "task_0.log", b"one\ntwo")
    lines, cursor = logs.read_tail(only(logs), 10)
    assert lines == ["one"]
    with open(path, "ab") as stream:
        stream.write(b" and a half\nthree\n")
    assert list(logs.read_new(only(logs), cursor)) == ["two and a half", "three"]


def test_a_log_that_became_shorter_is_read_from_its_start(chain: ChainOnDisk, logs: LogDirectory) -> None:
    path = chain.log(JOB, "task_0.log", b"one\ntwo\n")
    _, cursor = logs.read_tail(only(logs), 10)
    path.write_bytes(b"new\n")
    assert list(logs.read_new(only(logs), cursor)) == ["new"]


def test_every_descriptor_is_closed(chain: ChainOnDisk, logs: LogDirectory) -> None:
    chain.log(JOB, "task_0.log", b"x\n")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        file = only(logs)
        logs.read_tail(file, 5)
        list(logs.read_new(file, Cursor()))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
