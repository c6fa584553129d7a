"""The cache file makes a second process fast, and can be anything without harm."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.layout import RunDirectory
from nvrx_watch.layout import OwnLayout
from nvrx_watch.reading.cache import CacheFile, SavedGeneration
from nvrx_watch.reading.cycles import SavedCycles
from nvrx_watch.reading.worker import RunReader
from tests.rundirs import FIRST_ID, Size, age, cycle_record, write_cycle, write_own
from tests.unit.watch.reading.look import cycles, generations, read

SIZE = Size(generations=3, cycles=5, nodes=4)
Make = Callable[..., RunReader]


@pytest.fixture
def layout(place: Path) -> OwnLayout:
    made = write_own(place / "run", SIZE)
    age(place)
    return made


@pytest.fixture
def cache(place: Path) -> Path:
    return place / "cache"


def only_file(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def test_a_second_process_sees_the_same_without_reading_closed_records(
    layout: OwnLayout, cache: Path, make_reader: Make
) -> None:
    before = read(make_reader(cache_directory=cache), layout)
    directory = RunDirectory(layout.run_directory).generation(FIRST_ID)
    # What is never read again may as well be unreadable.
    for path in (*directory.cycle_infos.glob("cycle_info.*.*.*"), directory.closed, directory.lease(0)):
        path.write_bytes(b"")
    after = read(make_reader(cache_directory=cache), layout)
    assert (after.generations, after.notes) == (before.generations, ())


def test_a_second_process_finds_what_is_new(layout: OwnLayout, cache: Path, make_reader: Make) -> None:
    read(make_reader(cache_directory=cache), layout)
    last = RunDirectory(layout.run_directory).generation(FIRST_ID + 2).cycle_infos
    write_cycle(last, cycle_record(FIRST_ID + 2, 4))
    write_cycle(last, cycle_record(FIRST_ID + 2, 5, ended=False))
    found = cycles(generations(read(make_reader(cache_directory=cache), layout))[2])
    assert [each.ended_at is None for each in found] == [False] * 5 + [True]


def test_the_cache_is_written_only_when_something_closed(layout: OwnLayout, cache: Path, make_reader: Make) -> None:
    reader = make_reader(cache_directory=cache)
    read(reader, layout)
    before = only_file(cache).stat().st_mtime_ns, only_file(cache).stat().st_ino
    read(reader, layout)
    assert (only_file(cache).stat().st_mtime_ns, only_file(cache).stat().st_ino) == before
    write_cycle(RunDirectory(layout.run_directory).generation(FIRST_ID + 2).cycle_infos, cycle_record(FIRST_ID + 2, 4))
    read(reader, layout)
    assert only_file(cache).stat().st_ino != before[1]


def test_the_cache_holds_no_secret_and_is_for_its_owner_alone(
    layout: OwnLayout, cache: Path, make_reader: Make
) -> None:
    read(make_reader(cache_directory=cache), layout)
    assert b"s" * 32 not in only_file(cache).read_bytes()
    assert only_file(cache).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "damage", [lambda c: b"", lambda c: c[:-1], lambda c: c[:40] + b"\0" + c[41:], lambda c: c * 2]
)
def test_a_damaged_cache_is_said_ignored_and_replaced(
    layout: OwnLayout, cache: Path, make_reader: Make, damage: Callable[[bytes], bytes]
) -> None:
    before = read(make_reader(cache_directory=cache), layout)
    good = only_file(cache).read_bytes()
    only_file(cache).write_bytes(damage(good))
    after = read(make_reader(cache_directory=cache), layout)
    assert after.generations == before.generations
    assert "ignoring the cache" in after.notes[0]
    assert read(make_reader(cache_directory=cache), layout).notes == ()


@pytest.mark.parametrize(
    "changes",
    [{"count": 4}, {"count": 6}, {"count": 0}, {"count": -1}, {"count": 1 << 40}, {"rows": b"\xc1"}, {"rows": b""}],
    ids=str,
)
def test_rows_that_do_not_add_up_are_read_from_the_records_again(
    layout: OwnLayout, cache: Path, make_reader: Make, changes: dict[str, Any]
) -> None:
    before = read(make_reader(cache_directory=cache), layout)
    file = CacheFile(cache, repr(layout))
    saved = file.load()
    assert isinstance(saved, tuple)
    assert saved[0].cycles is not None
    first = msgspec.structs.replace(saved[0], cycles=msgspec.structs.replace(saved[0].cycles, **changes))
    file.store((first, *saved[1:]))
    reader = make_reader(cache_directory=cache)
    after = read(reader, layout)
    assert after.generations == before.generations
    assert "its rows are damaged" in after.notes[0]
    assert read(reader, layout).notes == ()


def test_the_cache_of_another_chain_is_ignored(layout: OwnLayout, cache: Path, make_reader: Make, place: Path) -> None:
    before = read(make_reader(cache_directory=cache), layout)
    mine = only_file(cache)
    content = mine.read_bytes()
    other = write_own(place / "other", replace(SIZE, cycles=1))
    mine.unlink()
    read(make_reader(cache_directory=cache), other)
    theirs = only_file(cache)
    os.replace(theirs, mine)
    after = read(make_reader(cache_directory=cache), layout)
    assert after.generations == before.generations
    assert "another version or chain" in after.notes[0]
    assert mine.read_bytes()[:17] == content[:17]


def test_a_run_directory_that_was_made_anew_is_read_anew(
    layout: OwnLayout, cache: Path, make_reader: Make, place: Path
) -> None:
    read(make_reader(cache_directory=cache), layout)
    layout.run_directory.rename(place / "old")
    write_own(layout.run_directory, replace(SIZE, cycles=2))
    age(layout.run_directory)
    assert [len(cycles(each)) for each in generations(read(make_reader(cache_directory=cache), layout))[:3]] == [2] * 3


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_a_cache_that_is_no_regular_file_is_ignored(
    layout: OwnLayout, cache: Path, make_reader: Make, kind: str
) -> None:
    read(make_reader(cache_directory=cache), layout)
    path = only_file(cache)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert "ignoring the cache" in read(make_reader(cache_directory=cache), layout).notes[0]


def test_a_cache_directory_that_cannot_be_made_costs_a_note_only(
    layout: OwnLayout, make_reader: Make, place: Path
) -> None:
    (place / "file").write_text("")
    reading = read(make_reader(cache_directory=place / "file" / "cache"), layout)
    assert len(generations(reading)) == 4
    assert any("no cache for the next pass" in note for note in reading.notes)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(content=st.binary(max_size=300), keep=st.integers(0, 400), position=st.integers(0, 400))
def test_no_content_of_a_cache_file_raises(place: Path, content: bytes, keep: int, position: int) -> None:
    file = CacheFile(place / "cache", "key")
    cycles = SavedCycles(inode=1, changed_ns=2, settled=True, count=0, rows=b"", pending=("cycle_info.1.0.0",))
    saved = (SavedGeneration(array_job_id=1, control=None, cycles=cycles),)
    file.store(saved)
    assert file.load() == saved
    good = file.path.read_bytes()
    file.path.write_bytes(good[:keep][:position] + content + good[position:])
    assert isinstance(file.load(), Unobserved | tuple)


def test_a_cache_that_grew_too_large_is_not_written(place: Path) -> None:
    file = CacheFile(place / "cache", "key")
    cycles = SavedCycles(inode=1, changed_ns=2, settled=True, count=0, rows=bytes(1 << 26), pending=())
    with pytest.raises(RecordError):
        file.store((SavedGeneration(array_job_id=1, control=None, cycles=cycles),))
    assert file.load() == ()
