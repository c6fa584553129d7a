"""A launcher notes its marks: whole lines, in order, without waiting for the file system."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nvrx_chain.launcher.timeline import Timeline
from nvrx_chain.records.marks import MarkName, marks_path, read_marks
from nvrx_chain.records.recovery import fold_marks


def test_what_is_marked_is_read_back_with_both_clocks(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline", node="n1", agent="0-a")
    before = time.time()
    timeline.mark(1, MarkName.FAILURE_DETECTED, rank=1, detail="SIGKILL")
    timeline.mark(1, "first_step", time.time() + 0.25, rank=0, iteration=71)
    assert timeline.close()
    found = read_marks(tmp_path / "timeline")
    assert found is not None
    (failed, step), problems = found
    assert problems == ()
    assert (failed.node, failed.agent, failed.rank, failed.detail) == ("n1", "0-a", 1, "SIGKILL")
    assert before <= failed.at <= time.time()
    assert step.monotonic - failed.monotonic == pytest.approx(step.at - failed.at, abs=0.01)
    (recovery,) = fold_marks([failed, step])
    assert recovery.seconds[MarkName.FIRST_STEP] == pytest.approx(0.25, abs=0.1)
    assert recovery.iteration == 71


def test_a_name_that_is_none_is_an_error_of_the_caller_and_a_time_that_is_none_is_now(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, node="n1", agent="0-a")
    with pytest.raises(ValueError, match="no_such_mark"):
        timeline.mark(1, "no_such_mark")
    for at in (float("nan"), float("inf"), -1.0, 1e18):
        timeline.mark(1, MarkName.JOINED, at)
    timeline.close()
    found = read_marks(tmp_path)
    assert found is not None
    assert [abs(mark.at - time.time()) < 60 for mark in found[0]] == [True] * 4


def test_without_a_directory_nothing_is_written() -> None:
    timeline = Timeline(None, node="n1", agent="0-a")
    timeline.mark(1, MarkName.JOINED)
    assert timeline.close()


def test_a_directory_that_cannot_be_written_costs_a_line_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    timeline = Timeline(tmp_path / "file", node="n1", agent="0-a")
    timeline.mark(1, MarkName.JOINED)
    assert timeline.close()
    assert "not written" in caplog.text


def test_a_file_that_does_not_take_its_bytes_holds_up_nobody(tmp_path: Path) -> None:
    path = marks_path(tmp_path, "0-a")
    os.mkfifo(path)  # opening it for writing hangs until there is a reader
    timeline = Timeline(tmp_path, node="n1", agent="0-a")
    began = time.monotonic()
    for number in range(100):
        timeline.mark(number, MarkName.JOINED)
    assert not timeline.close(0.1)
    assert time.monotonic() - began < 2
    content: list[bytes] = []
    reader = threading.Thread(target=lambda: content.append(path.read_bytes()))
    reader.start()
    assert timeline.close(10.0)
    reader.join()
    assert content[0].count(b"\n") == 100


_WRITER = """
import sys
from pathlib import Path
from nvrx_chain.launcher.timeline import Timeline
timeline = Timeline(Path(sys.argv[1]), node="n1", agent="0-a")
number = 0
while True:
    timeline.mark(number, "joined", detail="x" * 300)
    number += 1
    if number == 200:
        print("running", flush=True)
    timeline._writer.flush(1.0)
"""


def test_a_launcher_that_is_killed_leaves_whole_lines(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        process.kill()
    content = marks_path(tmp_path, "0-a").read_bytes()
    found = read_marks(tmp_path)
    assert found is not None
    assert len(found[0]) >= 200
    assert content.endswith(b"\n")
    assert content.count(b"\n") == len(found[0])
    assert [mark.cycle for mark in found[0]] == list(range(len(found[0])))
