"""The judge of overlapping generations, by made-up lives of ranks: it must be able to find one guilty."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nvrx_chain.workloads.events import Event, EventKind
from tests.integration.timeline import Life, assert_no_overlap, last_iteration, lives, read_timeline


def _event(
    job: int, unix: float, kind: EventKind = EventKind.STEP, *, age: float | None = None, rank: int = 0
) -> Event:
    return Event(
        event=kind,
        at="2031-01-01T00:00:00Z",
        unix=unix,
        monotonic=unix,
        rank=rank,
        local_rank=0,
        world_size=2,
        host=f"n{rank + 1}",
        pid=1,
        array_job_id=job,
        array_task_id=rank,
        restart_count=0,
        iteration=int(unix),
        since_process_start_seconds=age,
    )


def _start(job: int, unix: float, age: float, rank: int = 0) -> Event:
    return _event(job, unix, EventKind.START, age=age, rank=rank)


def test_a_life_begins_with_the_process_not_with_its_first_line() -> None:
    assert lives([_start(7, 100.0, age=6.0), _event(7, 130.0)]) == (Life(job=7, first=94.0, last=130.0),)


def test_generations_that_follow_each_other_are_fine() -> None:
    assert_no_overlap([_start(7, 100.0, 6.0), _event(7, 130.0), _start(8, 140.0, 6.0), _event(8, 150.0)])


def test_a_rank_that_lives_on_beside_the_next_generation_is_found() -> None:
    events = [_start(7, 100.0, 6.0), _start(8, 140.0, 6.0), _event(8, 150.0), _event(7, 141.0, rank=1)]
    with pytest.raises(AssertionError, match=r"generation 7 lived 7\.0 s into generation 8"):
        assert_no_overlap(events)


def test_a_process_that_starts_while_the_last_one_still_lives_is_found() -> None:
    # Its first line comes later, but it was there.
    with pytest.raises(AssertionError, match="into generation 8"):
        assert_no_overlap([_start(7, 100.0, 6.0), _event(7, 135.0), _start(8, 140.0, 6.0)])


def test_events_of_all_ranks_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    ranks = {0: [_event(7, 2.0), _event(7, 4.0)], 1: [_event(7, 3.0, rank=1)]}
    for rank, events in ranks.items():
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        (tmp_path / f"rank{rank}.jsonl").write_bytes(lines + b'{"event":"st')
    assert [event.unix for event in read_timeline(tmp_path)] == [2.0, 3.0, 4.0]
    assert last_iteration(read_timeline(tmp_path)) == 4
    assert read_timeline(tmp_path / "absent") == ()
