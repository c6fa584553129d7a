"""Cycle records: closed ones are read once, and nothing that lies in their directory can harm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_watch.reading.cycles import CycleFiles, parse_cycle, unpack_rows
from nvrx_watch.reading.messages import CycleChange
from tests.rundirs import age, cycle_record, write_cycle

JOB = 77


def read(files: CycleFiles, *, always_list: bool = True) -> CycleChange:
    change = files.read(always_list=always_list)
    assert change is not None
    return change


def numbers(packed: bytes) -> list[tuple[int, int]]:
    return [(row.attempt, row.number) for row in unpack_rows(packed)]


@pytest.fixture
def files(place: Path) -> CycleFiles:
    return CycleFiles(str(place), JOB, os.getuid())


def test_a_closed_record_is_told_once(place: Path, files: CycleFiles) -> None:
    write_cycle(place, cycle_record(JOB, 0))
    assert numbers(read(files).closed) == [(0, 0)]
    assert files.read(always_list=True) is None
    write_cycle(place, cycle_record(JOB, 1))
    change = read(files)
    assert (numbers(change.closed), change.reset) == ([(0, 1)], False)


def test_a_closed_record_is_not_read_again(place: Path, files: CycleFiles) -> None:
    path = write_cycle(place, cycle_record(JOB, 0))
    read(files)
    path.write_bytes(b"nonsense")
    assert files.read(always_list=True) is None


def test_an_open_record_is_read_again_until_it_closes(place: Path, files: CycleFiles) -> None:
    write_cycle(place, cycle_record(JOB, 0, ended=False))
    change = read(files)
    assert (numbers(change.closed), numbers(change.open)) == ([], [(0, 0)])
    assert files.read(always_list=True) is None
    write_cycle(place, cycle_record(JOB, 0))
    change = read(files)
    assert (numbers(change.closed), numbers(change.open)) == ([(0, 0)], [])


def test_an_open_record_of_a_generation_that_is_over_is_still_read(place: Path, files: CycleFiles) -> None:
    path = write_cycle(place, cycle_record(JOB, 0, ended=False))
    age(place)
    read(files, always_list=False)
    # Written in place: the directory does not change.
    path.write_text(json.dumps(cycle_record(JOB, 0)))
    assert numbers(read(files, always_list=False).closed) == [(0, 0)]


def test_half_a_record_counts_as_unreadable_until_it_is_whole(place: Path, files: CycleFiles) -> None:
    path = place / f"cycle_info.{JOB}.0.0"
    path.write_text(json.dumps(cycle_record(JOB, 0))[:100])
    change = read(files)
    assert (change.unreadable, numbers(change.closed)) == (1, [])
    path.write_text(json.dumps(cycle_record(JOB, 0)))
    change = read(files)
    assert (change.unreadable, numbers(change.closed)) == (0, [(0, 0)])


def test_a_settled_directory_of_the_past_is_not_listed_again(place: Path, files: CycleFiles) -> None:
    write_cycle(place, cycle_record(JOB, 0))
    age(place)
    read(files, always_list=False)
    before = os.stat(place)
    write_cycle(place, cycle_record(JOB, 1))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files.read(always_list=False) is None
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert numbers(read(files, always_list=False).closed) == [(0, 1)]


def test_a_directory_that_changed_a_moment_ago_is_listed_again(place: Path, files: CycleFiles) -> None:
    write_cycle(place, cycle_record(JOB, 0))
    read(files, always_list=False)
    before = os.stat(place)
    write_cycle(place, cycle_record(JOB, 1))
    # Within the granularity of the file system's clock a change does not show.
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert numbers(read(files, always_list=False).closed) == [(0, 1)]


def test_records_that_are_moved_away_are_forgotten(place: Path, files: CycleFiles) -> None:
    for number in range(3):
        write_cycle(place, cycle_record(JOB, number))
    read(files)
    (place / f"cycle_info.{JOB}.0.1").unlink()
    change = read(files)
    assert (change.reset, numbers(change.closed)) == (True, [(0, 0), (0, 2)])


def test_another_directory_of_the_same_name_begins_anew(place: Path) -> None:
    directory = place / "cycle_infos"
    directory.mkdir()
    files = CycleFiles(str(directory), JOB, os.getuid())
    write_cycle(directory, cycle_record(JOB, 0))
    read(files)
    directory.rename(place / "old")
    directory.mkdir()
    write_cycle(directory, cycle_record(JOB, 0, active="m[1-2]"))
    change = read(files)
    assert change.reset
    assert unpack_rows(change.closed)[0].active_nodes == "m[1-2]"


def test_attempts_are_told_apart(place: Path, files: CycleFiles) -> None:
    write_cycle(place, cycle_record(JOB, 0, attempt=1))
    write_cycle(place, cycle_record(JOB, 0))
    assert numbers(read(files).closed) == [(0, 0), (1, 0)]


def test_a_record_of_another_job_in_the_directory_does_not_replace_ours(place: Path, files: CycleFiles) -> None:
    write_cycle(place, cycle_record(JOB, 0, active="ours"))
    write_cycle(place, cycle_record(5, 0, active="other"))
    write_cycle(place, cycle_record(99, 0, active="other"))
    assert [row.active_nodes for row in unpack_rows(read(files).closed)] == ["ours"]


def test_what_is_no_regular_file_of_ours_is_counted_and_left_alone(place: Path, files: CycleFiles) -> None:
    write_cycle(place, cycle_record(JOB, 9))
    os.mkfifo(place / f"cycle_info.{JOB}.0.0")
    (place / f"cycle_info.{JOB}.0.1").mkdir()
    (place / f"cycle_info.{JOB}.0.2").symlink_to(f"cycle_info.{JOB}.0.9")
    (place / f"cycle_info.{JOB}.0.3").write_bytes(b"")
    (place / f"cycle_info.{JOB}.0.4").write_bytes(b" " * (1 << 18))
    (place / f"cycle_info.{JOB}.0.5").write_bytes(b'{"attempt_index": "\xff\xfe"}')
    change = read(files)
    assert (change.unreadable, numbers(change.closed)) == (6, [(0, 9)])


def test_links_and_temporary_files_are_no_records(place: Path, files: CycleFiles) -> None:
    (place / f"cycle_info.{JOB}.current").symlink_to("/etc/passwd")
    (place / f"cycle_info.{JOB}.0.0.tmp").write_text(json.dumps(cycle_record(JOB, 0)))
    change = read(files)
    assert (change.unreadable, numbers(change.closed)) == (0, [])


def test_a_missing_directory_has_no_records_and_no_problem(place: Path) -> None:
    change = read(CycleFiles(str(place / "none"), JOB, os.getuid()))
    assert (change.problem, change.unreadable, numbers(change.closed)) == (None, 0, [])


def test_a_file_in_place_of_the_directory_is_a_problem(place: Path) -> None:
    (place / "cycle_infos").write_text("")
    assert "Not a directory" in (read(CycleFiles(str(place / "cycle_infos"), JOB, os.getuid())).problem or "")


@pytest.mark.parametrize(
    "fields",
    [
        {"attempt_index": 1},
        {"cycle_number": "0"},
        {"cycle_start_time": "yesterday"},
        {"cycle_end_time": "0001-01-01T00:00:00+14:00"},
        {"cycle_end_time": "9999-12-31T23:59:59Z"},
        {"cycle_end_time": None},
        {"active_nodes": 7},
    ],
)
def test_a_record_that_states_nonsense_is_none(fields: dict[str, Any]) -> None:
    content = cycle_record(JOB, 0)
    assert parse_cycle(json.dumps(content).encode(), (0, 0)) is not None
    assert parse_cycle(json.dumps({**content, **fields}).encode(), (0, 0)) is None


def test_the_write_counter_may_be_a_number_and_fields_may_come_in_any_order() -> None:
    content = dict(reversed({**cycle_record(JOB, 3), "generation": 1}.items()))
    row = parse_cycle(json.dumps(content).encode(), (0, 3))
    assert row is not None
    assert (row.number, row.active_nodes) == (3, "n[001-004]")


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


hostile = st.dictionaries(st.sampled_from(list(cycle_record(JOB, 0))), json_value).map(
    lambda changed: json.dumps({**cycle_record(JOB, 0), **changed}).encode()
)


@given(st.binary(max_size=200) | hostile)
def test_no_content_raises_and_every_time_is_a_sane_one(content: bytes) -> None:
    row = parse_cycle(content, (0, 0))
    for at in (row.started_at, row.ended_at) if row is not None else ():
        assert at is None or 1970 <= at.year <= 2200
