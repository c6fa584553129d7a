"""Event lines: who, when and what, whole or not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import RecordError, UsageError
from nvrx_chain.workloads.events import EventKind, EventLog, process_age_seconds, read_events
from nvrx_chain.workloads.placement import Placement

PLACEMENT = Placement(
    rank=3, local_rank=1, world_size=4, host="node-7", array_job_id=42, array_task_id=1, restart_count=2
)


def log_to(path: Path) -> EventLog:
    return EventLog(path, PLACEMENT, SystemClock())


def test_a_line_says_who_when_and_what(tmp_path: Path) -> None:
    log_to(tmp_path / "new directory" / "events {rank}.jsonl").emit(
        EventKind.STEP, iteration=7, loss=0.1, loss_hex=(0.1).hex(), step_seconds=0.5, steps=1
    )
    line = json.loads((tmp_path / "new directory" / "events 3.jsonl").read_text())
    assert line.pop("at").endswith("Z")
    assert line.pop("unix") > 1.7e9
    assert line.pop("monotonic") > 0
    assert line == {
        "event": "step",
        "rank": 3,
        "local_rank": 1,
        "world_size": 4,
        "host": "node-7",
        "pid": os.getpid(),
        "array_job_id": 42,
        "array_task_id": 1,
        "restart_count": 2,
        "iteration": 7,
        "loss": 0.1,
        "loss_hex": "0x1.999999999999ap-4",
        "step_seconds": 0.5,
        "steps": 1,
    }


def test_lives_append_to_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "events-{rank}"
    for iteration in (1, 2):
        log_to(path).emit(EventKind.START, iteration=iteration)
    assert [event.iteration for event in read_events(tmp_path / "events-3")] == [1, 2]


def test_a_last_line_that_a_kill_cut_short_is_left_out_and_any_other_is_an_error(tmp_path: Path) -> None:
    log_to(tmp_path / "events-{rank}").emit(EventKind.START, iteration=1)
    path = tmp_path / "events-3"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-1])
    assert len(list(read_events(path))) == 1
    path.write_bytes(whole + whole[:20] + b"\n" + whole)
    with pytest.raises(RecordError, match="line 2 is no event"):
        list(read_events(path))


def test_ranks_may_not_share_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"put \{rank\} into the name"):
        log_to(tmp_path / "events")


def test_a_full_disk_is_an_error_and_not_a_silent_gap(tmp_path: Path) -> None:
    (tmp_path / "events-3").symlink_to("/dev/full")
    with pytest.raises(RecordError, match="No space left"):
        log_to(tmp_path / "events-{rank}").emit(EventKind.START, iteration=0)


def test_the_age_of_a_process_is_that_since_its_start() -> None:
    program = (
        "import time; began = time.monotonic();"
        "from nvrx_chain.workloads.events import process_age_seconds;"
        "print(process_age_seconds() - (time.monotonic() - began))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert -0.02 <= float(printed) < 30
    assert process_age_seconds() > 0
