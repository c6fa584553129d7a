"""Any bytes in any file of a run directory: never an error, and never a closed generation that is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvrx_chain.records.control import Closed, NoRestart
from nvrx_watch.layout import OwnLayout
from nvrx_watch.reading.disk import DiskReader
from nvrx_watch.reading.messages import GenerationChange, ReadRequest, ReadSummary
from nvrx_watch.reading.view import RunView
from nvrx_watch.reading_model import RunReading
from tests.rundirs import FIRST_ID, Size, write_own

SIZE = Size(generations=2, cycles=2, nodes=2)
LIVE = FIRST_ID + 1


def read_here(layout: OwnLayout) -> RunReading:
    """A reading without a child: hypothesis would wait for hundreds."""
    disk = DiskReader(cache_directory=None, iteration_pattern=None, log_tails=8)
    view = RunView()
    for message in disk(ReadRequest(layout=layout, seconds=60.0, use_cache=False)):
        if isinstance(message, GenerationChange):
            view.apply(message)
        elif isinstance(message, ReadSummary):
            return view.reading(message)
    raise AssertionError("no summary")


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fuzz") / "run & more"
    write_own(directory, SIZE)
    return directory


def layout_of(directory: Path) -> OwnLayout:
    return OwnLayout(run_directory=directory, chain_id="chain-of-tests", owner_uid=os.getuid())


def assert_nothing_invented(reading: RunReading) -> None:
    for generation in reading.generations if isinstance(reading.generations, tuple) else ():
        assert not isinstance(generation.no_restart, NoRestart)
        if generation.array_job_id == LIVE:
            assert not isinstance(generation.closed, Closed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(which=st.integers(0, 200), content=st.binary(max_size=400), keep=st.none() | st.integers(0, 600))
def test_any_bytes_in_any_file(original: Path, which: int, content: bytes, keep: int | None) -> None:
    files = files_of(original)
    path = files[which % len(files)]
    before = path.read_bytes()
    # Also the good beginning of a record with something else behind it.
    path.write_bytes(content if keep is None else before[:keep] + content)
    try:
        assert_nothing_invented(read_here(layout_of(original)))
    finally:
        path.write_bytes(before)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(which=st.integers(0, 200), names=st.permutations(["closed.json", "no_restart.json", "rendezvous.json"]))
def test_a_file_under_the_name_of_another_closes_nothing(original: Path, which: int, names: list[str]) -> None:
    files = [path for path in files_of(original) if path.parent.name != "control" or path.name != "closed.json"]
    target = original / "generations" / str(LIVE) / "control" / names[0]
    before = target.read_bytes() if target.exists() else None
    target.write_bytes(files[which % len(files)].read_bytes())
    try:
        assert_nothing_invented(read_here(layout_of(original)))
    finally:
        target.unlink()
        if before is not None:
            target.write_bytes(before)


@pytest.mark.parametrize("kind", ["fifo", "directory", "dangling", "loop"])
def test_something_else_in_place_of_each_kind_of_file(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "run"
    write_own(directory, SIZE)
    kept = {"task_0.log": 1}
    for path in files_of(directory):
        before = path.read_bytes()
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to(path if kind == "loop" else "/nowhere/at all")
        assert_nothing_invented(read_here(layout_of(directory)))
        path.rmdir() if kind == "directory" else path.unlink()
        path.write_bytes(before)
        kept[path.name] = 1
    assert len(kept) > 15


@pytest.mark.parametrize("name", ["submissions", "generations", "chain.json"])
def test_a_fifo_in_place_of_what_lies_at_the_top(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "run"
    write_own(directory, SIZE)
    (directory / name).rename(tmp_path / "away")
    os.mkfifo(directory / name)
    reading = read_here(layout_of(directory))
    assert_nothing_invented(reading)
    assert not isinstance(reading.generations, tuple) or name == "chain.json"
