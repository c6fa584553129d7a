"""The directories of a chain that we did not submit, among them those that the real launcher wrote."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from nvrx_chain.errors import Unobserved
from nvrx_watch.layout import NvrxLayout
from nvrx_watch.model import LogActivity
from nvrx_watch.reading.worker import RunReader
from tests.rundirs import FIRST_ID, Size, cycle_record, write_cycle, write_nvrx
from tests.unit.watch.reading.look import cycles, generations, read

RECORDED = Path(__file__).parents[3] / "fixtures" / "watch" / "nvrx-run"


def test_what_the_real_launcher_wrote_is_read(reader: RunReader) -> None:
    layout = NvrxLayout(
        cycle_info_glob=f"{RECORDED}/nvrx/*/cycle_infos/cycle_info.*",
        iteration_file=RECORDED / "checkpoints" / "latest_checkpointed_iteration.txt",
        owner_uid=None,
    )
    reading = read(reader, layout)
    eight, nine, ten = generations(reading)
    assert [each.array_job_id for each in (eight, nine, ten)] == [8, 9, 10]
    assert [each.number for each in cycles(eight)] == [0, 1]
    assert cycles(eight)[0].active_nodes == ("n1", "n3")
    assert cycles(eight)[1].standby_nodes == ("n3",)
    assert cycles(nine)[0].seconds() == pytest.approx(4.646519)
    assert cycles(ten)[0].ended_at is not None
    assert reading.iteration == 600
    assert (reading.manifest, reading.can_write, reading.notes) == (None, None, ())


def test_a_big_chain_in_their_layout_is_read(place: Path, reader: RunReader) -> None:
    reading = read(reader, write_nvrx(place, Size(generations=3, cycles=12, nodes=8)))
    found = generations(reading)
    assert [each.array_job_id for each in found] == [FIRST_ID, FIRST_ID + 1, FIRST_ID + 2]
    assert [len(cycles(each)) for each in found] == [12, 12, 12]
    assert isinstance(found[-1].log, LogActivity)
    assert found[-1].log.iteration == 1199
    assert found[0].log is None
    assert reading.can_write is True


def test_directories_that_are_no_array_job_ids_are_left_out(place: Path, reader: RunReader) -> None:
    layout = write_nvrx(place, Size(generations=1, cycles=1))
    for name in ("old", "007", "12.bak", "9" * 40, "-3"):
        (place / "nvrx" / name / "cycle_infos").mkdir(parents=True)
    assert [each.array_job_id for each in generations(read(reader, layout))] == [FIRST_ID]


def test_the_wildcard_may_be_a_part_of_a_name(place: Path, reader: RunReader) -> None:
    directory = place / "job_31.d" / "infos"
    directory.mkdir(parents=True)
    write_cycle(directory, cycle_record(31, 0, log_file="relative.log"))
    layout = NvrxLayout(cycle_info_glob=f"{place}/job_*.d/infos/cycle_info.*", iteration_file=None, owner_uid=None)
    reading = read(reader, layout)
    (generation,) = generations(reading)
    assert generation.array_job_id == 31
    assert len(cycles(generation)) == 1
    assert isinstance(reading.iteration, Unobserved)


@pytest.mark.parametrize("glob", ["/nowhere/cycle_info.*", "relative", "/a/*/b/*/cycle_info.*"])
def test_a_glob_without_one_place_for_the_job_id_is_said(reader: RunReader, glob: str) -> None:
    layout = NvrxLayout(cycle_info_glob=glob, iteration_file=None, owner_uid=None)
    assert isinstance(read(reader, layout).generations, Unobserved)


def test_no_cycle_records_are_no_generations(place: Path, reader: RunReader) -> None:
    layout = NvrxLayout(cycle_info_glob=None, iteration_file=None, owner_uid=None, work_directory=place)
    assert read(reader, layout).generations == ()


def test_a_log_path_that_leads_nowhere_good_is_not_opened(place: Path, reader: RunReader) -> None:
    layout = write_nvrx(place, Size(generations=1, cycles=1))
    directory = place / "nvrx" / str(FIRST_ID) / "cycle_infos"
    os.mkfifo(place / "fifo.log")
    (place / "link.log").symlink_to("/etc/passwd")
    paths = ["relative.log", str(place / "fifo.log"), str(place / "link.log"), "/" + "x" * 5000, "/a\0b", str(place)]
    for number, path in enumerate(paths):
        write_cycle(directory, cycle_record(FIRST_ID, number, log_file=path))
    generation = generations(read(reader, layout))[0]
    assert len(cycles(generation)) == len(paths)
    assert generation.log is None
    assert {each.last_iteration for each in cycles(generation)} == {None}


def test_both_layouts_can_be_read_in_turn(place: Path, make_reader: Callable[..., RunReader]) -> None:
    reader = make_reader()
    layout = write_nvrx(place, Size(generations=2, cycles=2))
    other = replace(layout, cycle_info_glob=f"{place}/gone/*/cycle_infos/cycle_info.*")
    assert len(generations(read(reader, layout))) == 2
    assert read(reader, other).generations == ()
    assert len(generations(read(reader, layout))) == 2
