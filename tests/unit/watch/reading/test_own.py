"""A run directory of ours, as the watcher reads it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.records import control
from nvrx_chain.records.files import encode_record
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_watch.layout import OwnLayout
from nvrx_watch.model import LogActivity
from nvrx_watch.reading.worker import RunReader
from nvrx_watch.reading_model import RunReading
from tests.rundirs import (
    CHAIN_ID,
    FIRST_ID,
    Size,
    age,
    cycle_record,
    stamp,
    write_closed,
    write_cycle,
    write_own,
    write_submission,
)
from tests.unit.watch.reading.look import cycles, generations, read

SMALL = Size(generations=2, cycles=3, nodes=4, queued=1)
LAST = FIRST_ID + 1
Make = Callable[..., RunReader]


@pytest.fixture
def layout(place: Path) -> OwnLayout:
    return write_own(place, SMALL)


@pytest.fixture
def run(layout: OwnLayout) -> RunDirectory:
    return RunDirectory(layout.run_directory)


@pytest.mark.parametrize("name", ["silence.1.json", "drained.1.json"])
def test_a_file_that_says_the_watcher_nothing_is_no_problem(
    layout: OwnLayout, run: RunDirectory, reader: RunReader, name: str
) -> None:
    (run.generation(LAST).control / name).write_text("{}")
    reading = read(reader, layout)
    assert [each.array_job_id for each in generations(reading)] == [FIRST_ID, LAST, LAST + 1]
    assert isinstance(generations(reading)[0].closed, control.Closed)


def test_a_chain_is_read_whole(layout: OwnLayout, reader: RunReader) -> None:
    reading = read(reader, layout)
    first, last, queued = generations(reading)
    assert isinstance(reading.manifest, ChainManifest)
    assert [each.array_job_id for each in (first, last, queued)] == [FIRST_ID, LAST, LAST + 1]
    assert [each.has_directory for each in (first, last, queued)] == [True, True, False]
    assert isinstance(first.closed, control.Closed)
    assert isinstance(first.record, control.GenerationRecord)
    assert first.left == frozenset(range(5))
    assert (last.closed, last.no_restart, last.left) == (None, None, frozenset())
    assert last.joined == frozenset(range(5))
    assert last.leases[3].counter == 7
    assert [each.ended_at is None for each in cycles(last)] == [False, False, True]
    assert cycles(first)[0].active_nodes == ("node0002", "node0003", "node0004", "node0005")
    assert cycles(first)[0].standby_nodes == ("node0001",)
    assert (queued.cycles, queued.rendezvous, queued.log) == (None, None, None)
    assert reading.iteration == 600
    assert (reading.verdict, reading.hold, reading.open_stamps) == (None, None, ())
    assert reading.can_write is True
    assert (reading.free_bytes or 0) > 0
    assert reading.file_clock_ahead_seconds is None
    assert reading.notes == ()


def test_the_secret_of_a_rendezvous_never_leaves_the_reading_process(layout: OwnLayout, reader: RunReader) -> None:
    for generation in generations(read(reader, layout))[:2]:
        assert isinstance(generation.rendezvous, control.Rendezvous)
        assert generation.rendezvous.secret == ""


def test_nothing_new_gives_the_very_same_objects(layout: OwnLayout, reader: RunReader) -> None:
    before = generations(read(reader, layout))
    after = generations(read(reader, layout))
    assert all(one is other for one, other in zip(before, after, strict=True) if one.has_directory)


def test_a_new_cycle_leaves_the_other_cycles_as_they_were(layout: OwnLayout, reader: RunReader) -> None:
    before = cycles(generations(read(reader, layout))[1])
    directory = RunDirectory(layout.run_directory).generation(LAST).cycle_infos
    write_cycle(directory, cycle_record(LAST, 2))
    write_cycle(directory, cycle_record(LAST, 3, ended=False))
    after = cycles(generations(read(reader, layout))[1])
    assert [each.ended_at is None for each in after] == [False, False, False, True]
    assert after[0].active_nodes is before[0].active_nodes


def test_the_newest_cycles_tell_where_their_logs_end(layout: OwnLayout, make_reader: Make) -> None:
    first, last, _ = generations(read(make_reader(log_tails=2), layout))
    assert [each.last_iteration for each in cycles(last)] == [None, 199, 299]
    assert {each.last_iteration for each in cycles(first)} == {None}
    assert isinstance(last.log, LogActivity)
    assert last.log.iteration == 299
    assert last.log.iterations_per_second == pytest.approx(1000 / 412.5)
    assert first.log is None


def test_a_generation_that_appears_becomes_the_current_one(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    read(reader, layout)
    write_closed(run.generation(LAST), datetime(2026, 3, 2, tzinfo=timezone.utc), Outcome.WALLTIME)
    fresh = run.generation(LAST + 1)
    fresh.logs.mkdir(parents=True)
    (fresh.logs / "task_0.log").write_text("begins\n")
    _, last, newest = generations(read(reader, layout))
    assert isinstance(last.closed, control.Closed)
    assert last.log is None
    assert (newest.has_directory, newest.rendezvous, newest.cycles) == (True, None, None)
    assert isinstance(newest.log, LogActivity)


def test_a_generation_that_is_closed_late_is_seen(layout: OwnLayout, run: RunDirectory, reader: RunReader) -> None:
    (run.generation(FIRST_ID).closed).unlink()
    age(layout.run_directory)
    assert generations(read(reader, layout))[0].closed is None
    write_closed(run.generation(FIRST_ID), datetime(2026, 3, 2, tzinfo=timezone.utc), Outcome.SUPERSEDED)
    closed = generations(read(reader, layout))[0].closed
    assert isinstance(closed, control.Closed)
    assert closed.outcome is Outcome.SUPERSEDED


def test_control_files_of_another_generation_are_ignored(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    last, first = run.generation(LAST), run.generation(FIRST_ID)
    for name in ("closed.json", "left.0.json", "lease.0.json"):
        os.replace(first.control / name, last.control / name)
    generation = generations(read(reader, layout))[1]
    assert (generation.closed, generation.left) == (None, frozenset())
    assert 0 not in generation.leases


def test_a_lease_under_the_name_of_another_task_is_ignored(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    control_directory = run.generation(LAST).control
    os.replace(control_directory / "lease.1.json", control_directory / "lease.2.json")
    assert sorted(generations(read(reader, layout))[1].leases) == [0, 3, 4]


@pytest.mark.parametrize("name", ["rendezvous.json", "closed.json", "no_restart.json"])
def test_a_fifo_in_place_of_a_control_file_is_unobserved(
    layout: OwnLayout, run: RunDirectory, reader: RunReader, name: str
) -> None:
    path = run.generation(LAST).control / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    generation = generations(read(reader, layout))[1]
    assert isinstance(getattr(generation, name.removesuffix(".json")), Unobserved)
    assert generation.has_directory


def test_files_of_a_stranger_are_not_believed(layout: OwnLayout, run: RunDirectory, make_reader: Make) -> None:
    if os.getuid() == 0:
        # Root's own files are believed.
        for path in (run.manifest, run.submission_id(0), run.intent(0)):
            os.chown(path, 12345, -1)
    stranger = OwnLayout(run_directory=layout.run_directory, chain_id=CHAIN_ID, owner_uid=54321)
    reading = read(make_reader(), stranger)
    assert isinstance(reading.manifest, Unobserved)
    assert isinstance(reading.generations, Unobserved)


def test_only_the_owner_is_told_whether_the_directory_can_be_written_to(place: Path, make_reader: Make) -> None:
    write_own(place, SMALL)
    other = OwnLayout(run_directory=place, chain_id=CHAIN_ID, owner_uid=os.getuid() + 1)
    assert read(make_reader(), other).can_write is None


def test_verdict_and_hold_of_another_chain_are_none_of_ours(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    verdict = control.ChainOutcome(
        chain_id=CHAIN_ID, verdict=Verdict.CANCELLED, array_job_id=None, by="a", why="b", evidence=(), decided_at="c"
    )
    hold = control.Hold(chain_id=CHAIN_ID, by="a", why="b", held_at="c", array_job_ids=())
    run.outcome.write_bytes(encode_record(verdict))
    run.hold.write_bytes(encode_record(hold))
    ending = control.Ending(chain_id=CHAIN_ID, array_job_id=11, by="a", why="b", decided_at="c")
    run.ending.write_bytes(encode_record(ending))
    reading = read(reader, layout)
    assert (reading.verdict, reading.hold, reading.ending) == (verdict, hold, ending)
    run.outcome.write_bytes(encode_record(msgspec.structs.replace(verdict, chain_id="older")))
    run.hold.write_bytes(encode_record(msgspec.structs.replace(hold, chain_id="older")))
    run.ending.write_bytes(encode_record(msgspec.structs.replace(ending, chain_id="older")))
    reading = read(reader, layout)
    assert (reading.verdict, reading.hold, reading.ending) == (None, None, None)
    run.outcome.write_bytes(b"{")
    assert isinstance(read(reader, layout).verdict, Unobserved)


def test_a_submission_without_an_id_is_told_by_its_stamp(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    write_submission(run, 3, None)
    reading = read(reader, layout)
    assert reading.open_stamps == (f"nvrx-chain:{CHAIN_ID}:3",)
    assert len(generations(reading)) == 3
    write_submission(run, 3, 5000)
    reading = read(reader, layout)
    assert reading.open_stamps == ()
    assert generations(reading)[-1].array_job_id == 5000


def test_an_id_that_cannot_be_read_leaves_its_stamp(layout: OwnLayout, run: RunDirectory, reader: RunReader) -> None:
    run.submission_id(2).write_bytes(b"")
    reading = read(reader, layout)
    assert reading.open_stamps == (f"nvrx-chain:{CHAIN_ID}:2",)
    assert len(generations(reading)) == 2
    assert len(reading.notes) == 1


def test_a_submission_of_which_nothing_can_be_read_makes_the_generations_unknown(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    run.submission_id(2).write_bytes(b"")
    run.intent(2).write_bytes(b"")
    assert isinstance(read(reader, layout).generations, Unobserved)


@pytest.mark.parametrize("array_job_id", [0, -4, 1 << 70])
def test_an_absurd_array_job_id_is_no_generation(
    layout: OwnLayout, run: RunDirectory, reader: RunReader, array_job_id: int
) -> None:
    fields = json.loads(run.submission_id(2).read_bytes())
    run.submission_id(2).write_text(json.dumps({**fields, "array_job_id": array_job_id}))
    reading = read(reader, layout)
    assert [each.array_job_id for each in generations(reading)] == [FIRST_ID, LAST]
    assert len(reading.open_stamps) == 1


def test_cycles_of_which_none_can_be_read_are_unobserved(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    for path in run.generation(LAST).cycle_infos.glob("cycle_info.*.*.*"):
        path.write_bytes(b"")
    reading = read(reader, layout)
    last = generations(reading)[1]
    assert isinstance(last.cycles, Unobserved)
    assert last.unreadable_cycles == 3
    assert reading.notes == (f"3 cycle records of job {LAST} are unreadable",)


def test_a_node_list_that_is_none_names_no_node_and_takes_nothing_else_from_its_record(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    write_cycle(run.generation(LAST).cycle_infos, cycle_record(LAST, 3, active="n[1-999999999]"))
    last = generations(read(reader, layout))[1]
    assert len(cycles(last)) == 4
    assert cycles(last)[-1].active_nodes == ()
    assert cycles(last)[-1].standby_nodes
    assert last.unreadable_cycles == 0


@pytest.mark.parametrize(("content", "expected"), [(b" 100 \n", 100), (b"0", 0), (None, None)])
def test_the_iteration_is_read(
    layout: OwnLayout, run: RunDirectory, reader: RunReader, content: bytes | None, expected: int | None
) -> None:
    run.default_iteration_file.unlink()
    if content is not None:
        run.default_iteration_file.write_bytes(content)
    assert read(reader, layout).iteration == expected


@pytest.mark.parametrize("content", [b"", b"released", b"100\n200", b"1e3", b"-5", "٣".encode(), b"9" * 5000])
def test_an_odd_iteration_is_unknown(layout: OwnLayout, run: RunDirectory, reader: RunReader, content: bytes) -> None:
    run.default_iteration_file.write_bytes(content)
    assert isinstance(read(reader, layout).iteration, Unobserved)


def test_weights_that_were_released_are_no_checkpoint_of_this_training(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    run.default_iteration_file.write_bytes(b"release\n")
    assert read(reader, layout).iteration is None


def test_a_missing_run_directory_has_no_manifest(place: Path, reader: RunReader) -> None:
    reading = read(reader, OwnLayout(run_directory=place / "gone", chain_id=CHAIN_ID, owner_uid=os.getuid()))
    assert (reading.manifest, reading.generations) == (None, ())
    assert isinstance(reading.iteration, Unobserved)


def test_a_manifest_of_another_chain_is_handed_on(layout: OwnLayout, run: RunDirectory, reader: RunReader) -> None:
    fields = json.loads(run.manifest.read_bytes())
    run.manifest.write_text(json.dumps({**fields, "chain_id": "newer"}))
    manifest = read(reader, layout).manifest
    assert isinstance(manifest, ChainManifest)
    assert manifest.chain_id == "newer"


def test_control_files_from_the_future_tell_how_far_the_clock_is_ahead(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    at = time.time() + 3600
    os.utime(run.generation(LAST).lease(0), (at, at))
    ahead = read(reader, layout).file_clock_ahead_seconds
    assert ahead is not None
    assert 3600 - 120 < ahead <= 3600


def test_no_restart_is_read_as_it_was_written(layout: OwnLayout, run: RunDirectory, reader: RunReader) -> None:
    said = control.NoRestart(node="n1", exit_code=93, cause="nan", written_at="x", **stamp(LAST))
    run.generation(LAST).no_restart.write_bytes(encode_record(said))
    assert generations(read(reader, layout))[1].no_restart == said


def test_a_number_of_a_hundred_digits_makes_a_record_unreadable_and_nothing_else(
    layout: OwnLayout, run: RunDirectory, make_reader: Make, tmp_path: Path
) -> None:
    path = run.generation(FIRST_ID).closed
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "pid": 10**100}))
    age(layout.run_directory)
    reader = make_reader(cache_directory=tmp_path / "cache")
    first, last, _ = generations(read(reader, layout))
    assert isinstance(first.closed, Unobserved)
    assert len(cycles(first)) == len(cycles(last)) == 3


def test_a_generation_that_the_queue_knows_is_read_until_its_id_is_on_record(
    layout: OwnLayout, run: RunDirectory, reader: RunReader
) -> None:
    record = run.submission_id(1).read_bytes()
    run.submission_id(1).unlink()
    before = [each.array_job_id for each in generations(read(reader, layout))]
    assert before == [FIRST_ID, LAST + 1]
    adopting = reader.read(layout, deadline_seconds=60, adopted=((LAST, 1), (FIRST_ID, 0), (999, 7)))
    assert isinstance(adopting, RunReading)
    found = {each.array_job_id: each for each in generations(adopting)}
    assert list(found) == [FIRST_ID, LAST, LAST + 1]
    assert found[LAST].has_directory
    assert len(cycles(found[LAST])) == 3
    run.submission_id(1).write_bytes(record)
    other = reader.read(layout, deadline_seconds=60, adopted=((4711, 1),))
    assert isinstance(other, RunReading)
    assert 4711 not in [each.array_job_id for each in generations(other)]
