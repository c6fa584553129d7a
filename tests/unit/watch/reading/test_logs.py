"""The end of a log tells the iteration; no log and no pattern can harm."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.workloads.events import Event, EventKind
from nvrx_watch.model import LogActivity
from nvrx_watch.reading.logs import TAIL_BYTES, LogReader, PatternTooSlow, Progress, parse_tail
from tests.rundirs import BEGAN_AT

MEGATRON = (
    " [2026-03-01 12:00:00] iteration      100/  500 | consumed samples: 51200 | "
    "elapsed time per iteration (ms): 125.0 | learning rate: 3.0E-04 |"
)


def event_line(kind: EventKind, iteration: int, step_seconds: float | None = None) -> str:
    event = Event(
        event=kind,
        at=format_time(BEGAN_AT),
        unix=BEGAN_AT.timestamp(),
        monotonic=1.0,
        rank=0,
        local_rank=0,
        world_size=2,
        host="n1",
        pid=4,
        array_job_id=1,
        array_task_id=0,
        restart_count=0,
        iteration=iteration,
        step_seconds=step_seconds,
    )
    return msgspec.json.encode(event).decode()


def test_megatron_lines_tell_iteration_and_rate() -> None:
    assert parse_tail(f"3: something\n3: {MEGATRON}\n3: and more\n") == Progress(100, 8.0)


def test_events_of_the_mock_training_tell_iteration_and_rate() -> None:
    lines = [event_line(EventKind.STEP, 41, 0.5), event_line(EventKind.STEP, 42, 0.25)]
    assert parse_tail("".join(f"0: {line}\n" for line in lines)) == Progress(42, 4.0)


def test_a_save_that_ends_late_does_not_turn_the_iteration_back() -> None:
    lines = [event_line(EventKind.STEP, 42, 0.5), event_line(EventKind.SAVE_FINISHED, 30)]
    assert parse_tail("\n".join(lines)) == Progress(42, 2.0)


def test_a_start_alone_is_no_iteration() -> None:
    assert parse_tail(event_line(EventKind.START, 42)) == Progress()


def test_a_pattern_of_the_user_replaces_ours() -> None:
    text = f"{MEGATRON}\nstep=7 loss=1\nstep=8 loss=1\nstep=x\n"
    assert parse_tail(text, re.compile(r"step=(\w+)")) == Progress(8)


def test_a_pattern_that_backtracks_without_end_is_ended() -> None:
    with pytest.raises(PatternTooSlow):
        parse_tail("a" * 60 + "!", re.compile(r"^(a+)+$"))


@pytest.mark.parametrize("time", ["0.0", "0", "1000000000000000", "nan"])
def test_an_absurd_rate_is_none(time: str) -> None:
    assert parse_tail(MEGATRON.replace("125.0", time)) == Progress(100, None)


@given(st.text() | st.builds("{}{}".format, st.just('{"event":"step","iteration":'), st.text(max_size=20)))
def test_no_text_raises(text: str) -> None:
    found = parse_tail(text)
    assert found.iteration is None or 0 <= found.iteration < 10**15


def activity(found: LogActivity | Unobserved | None) -> LogActivity:
    assert isinstance(found, LogActivity)
    return found


def test_a_directory_of_logs_is_summed_up_and_the_training_log_tells_the_iteration(place: Path) -> None:
    (place / "app_cycle0.log").write_text(MEGATRON.replace("  100/", "   50/") + "\n")
    (place / "app_cycle1.log").write_text(MEGATRON + "\n")
    (place / "task_0.log").write_text("12345")
    (place / "other.txt").write_text("1" * 1000)
    for position, name in enumerate(("app_cycle0.log", "app_cycle1.log", "task_0.log")):
        os.utime(place / name, (1000 + position, 1000 + position))
    found = activity(LogReader(None).directory(str(place), os.getuid(), 8))
    assert found.bytes == 2 * (len(MEGATRON) + 1) + 5
    assert found.newest == str(place / "task_0.log")
    assert (found.iteration, found.iterations_per_second) == (100, 8.0)


def test_logs_of_cycles_long_past_are_looked_at_once(place: Path) -> None:
    for number in range(6):
        (place / f"app_cycle{number}.log").write_text("x" * 10)
    logs = LogReader(None)
    assert activity(logs.directory(str(place), os.getuid(), 2)).bytes == 60
    (place / "app_cycle0.log").write_text("x" * 1000)
    (place / "app_cycle5.log").write_text("x" * 20)
    assert activity(logs.directory(str(place), os.getuid(), 2)).bytes == 70


def test_only_the_end_of_a_huge_log_is_read_and_no_cut_line_believed(place: Path) -> None:
    path = place / "app.log"
    line = MEGATRON.replace("     100/", "12345678/")
    padding = TAIL_BYTES - len(line) + line.index("345678/") + 2
    path.write_text(f"{line}\n" + "." * (padding - 1))
    assert LogReader(None).last_iteration(str(path), os.getuid()) is None
    with path.open("a") as stream:
        stream.write(f"\n{MEGATRON}\n")
    assert LogReader(None).last_iteration(str(path), os.getuid()) == 100


def test_a_log_that_did_not_change_is_not_read_again(place: Path) -> None:
    path = place / "app.log"
    path.write_text(MEGATRON)
    logs = LogReader(None)
    assert logs.last_iteration(str(path), os.getuid()) == 100
    before = path.stat()
    path.write_text(MEGATRON.replace("100/", "200/"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert logs.last_iteration(str(path), os.getuid()) == 100
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert logs.last_iteration(str(path), os.getuid()) == 200


def test_what_is_no_regular_file_is_no_log(place: Path) -> None:
    os.mkfifo(place / "app.log")
    (place / "launcher_0.log").symlink_to("/etc/passwd")
    (place / "task_0.log").mkdir()
    assert LogReader(None).directory(str(place), os.getuid(), 8) is None
    assert isinstance(LogReader(None).directory(str(place / "nothing.txt" / "x"), None, 8), Unobserved | None)


def test_a_slow_pattern_is_said_once_and_the_reading_goes_on(place: Path) -> None:
    logs = LogReader(re.compile(r"^(a+)+$"))
    for name in ("one.log", "two.log"):
        (place / name).write_text("a" * 60 + "!")
        assert logs.last_iteration(str(place / name), os.getuid()) is None
    assert len(logs.notes) == 1
