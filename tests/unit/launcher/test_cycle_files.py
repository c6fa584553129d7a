"""Cycle records as NVRx's readers expect them, whole at every moment, and never over those of another run."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import RecordError, UsageError
from nvrx_chain.launcher.cycle_files import CycleFiles, fold_names, fold_ranks, identify_job
from nvrx_chain.records.cycle_info import CycleFacts, CycleInfo, open_cycle_directory
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_watch.reading.cycles import parse_cycle
from tests.unit.launcher.nvrx_record import RECORDED

AT = datetime(2026, 11, 30, 0, 47, 45, 727842, tzinfo=timezone.utc)
PATIENCE_SECONDS = 10.0


def make(path: Path, job: str = "8", attempt: int = 0) -> CycleFiles:
    files = CycleFiles(open_cycle_directory(path, job, attempt))
    files.prepare(PATIENCE_SECONDS)
    return files


def start(files: CycleFiles, cycle: int, active: tuple[str, ...] = ("n1", "n3"), standby: tuple[str, ...] = ()) -> None:
    begun = files.start(cycle, AT, active=active, standby=standby, log_file="/logs/app_cycle.log")
    assert begun.wait(PATIENCE_SECONDS), begun.error


def test_a_record_has_the_ten_fields_and_types_of_a_recorded_one(tmp_path: Path) -> None:
    files = make(tmp_path / "new")
    start(files, 0)
    assert files.close(AT + timedelta(seconds=49, microseconds=35435))
    content = (tmp_path / "new" / "cycle_info.8.0.0").read_text()
    ours = json.loads(content)
    assert {name: type(value) for name, value in ours.items()} == {
        name: type(value) for name, value in RECORDED.items()
    }
    same = {name: ours[name] for name in ours if name != "cycle_log_file"}
    assert same == {name: value for name, value in RECORDED.items() if name != "cycle_log_file"}
    assert content.startswith('{\n  "')
    assert not content.endswith("\n")


def test_the_watcher_reads_what_is_written(tmp_path: Path) -> None:
    files = make(tmp_path, job="")
    start(files, 3, standby=("n2",))
    row = parse_cycle((tmp_path / "cycle_info..0.3").read_bytes(), (0, 3))
    assert row is not None
    assert (row.started_at, row.ended_at, row.active_nodes, row.standby_nodes) == (AT, None, "n[1,3]", "n2")
    files.close(AT)
    row = parse_cycle((tmp_path / "cycle_info..0.3").read_bytes(), (0, 3))
    assert row is not None
    assert row.ended_at == AT


def test_a_new_cycle_ends_the_one_before_and_the_link_moves_on(tmp_path: Path) -> None:
    files = make(tmp_path)
    start(files, 0)
    assert os.readlink(tmp_path / "cycle_info.8.current") == "cycle_info.8.0.0"
    start(files, 1)
    first = json.loads((tmp_path / "cycle_info.8.0.0").read_text())
    assert (first["cycle_end_time"], first["generation"]) == (first["cycle_start_time"], "1")
    assert os.readlink(tmp_path / "cycle_info.8.current") == "cycle_info.8.0.1"
    second = json.loads((tmp_path / "cycle_info.8.current").read_text())
    assert (second["cycle_number"], second["cycle_end_time"], second["generation"]) == (1, "", "0")


def test_a_cycle_never_ends_before_it_began_when_the_clock_was_set_back(tmp_path: Path) -> None:
    files = make(tmp_path)
    start(files, 0)
    files.close(AT - timedelta(hours=1))
    record = json.loads((tmp_path / "cycle_info.8.0.0").read_text())
    assert record["cycle_end_time"] == record["cycle_start_time"]


@pytest.mark.parametrize("name", ["cycle_info.8.0.0", "cycle_info.8.0.12", "outcome.8.0.json"])
def test_a_directory_with_records_of_the_same_job_and_attempt_is_refused_with_the_way_out(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RecordError, match="name another one, or move the old records away") as caught:
        make(tmp_path)
    assert name in str(caught.value)
    make(tmp_path, attempt=1)
    make(tmp_path, job="9")


def test_a_record_that_another_run_writes_meanwhile_is_never_overwritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = make(tmp_path)
    foreign = tmp_path / "cycle_info.8.0.0"
    foreign.write_text("foreign")
    assert not files.start(0, AT, active=("n1",), standby=()).wait(PATIENCE_SECONDS)
    files.close(AT)
    assert foreign.read_text() == "foreign"
    assert "another run has written it" in caplog.text


def test_nothing_but_records_and_the_link_look_like_records(tmp_path: Path) -> None:
    files = make(tmp_path)
    start(files, 0)
    files.keep_facts(CycleFacts(job_id="8", attempt_index=0, cycle_number=0, started_at="", active=("0-a",)))
    files.close(AT)
    assert sorted(found.name for found in tmp_path.glob("cycle_info.*")) == ["cycle_info.8.0.0", "cycle_info.8.current"]
    assert (tmp_path / "cycle_facts.8.0.0.json").exists()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_reader_never_sees_half_a_record_nor_none_in_200_cycles(tmp_path: Path) -> None:
    files = make(tmp_path)
    start(files, 0)
    stop, seen, wrong = threading.Event(), set(), []

    def read() -> None:
        link = tmp_path / "cycle_info.8.current"
        while not stop.is_set():
            try:
                seen.add(json.loads(link.read_bytes())["cycle_number"])
            except (ValueError, OSError) as error:
                wrong.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    for cycle in range(1, 201):
        files.start(cycle, AT, active=[f"node{number}" for number in range(cycle)], standby=())
    assert files.close(AT, 60.0)
    stop.set()
    reader.join()
    assert wrong == []
    assert len(seen) > 1
    assert len(list(tmp_path.glob("cycle_info.8.0.*"))) == 201
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_a_file_system_that_hangs_delays_nobody_and_what_waited_is_written_in_order_when_it_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = make(tmp_path)
    answers = threading.Event()
    files.do("a write that hangs", lambda: answers.wait(PATIENCE_SECONDS) and None)
    began = time.monotonic()
    begun = files.start(0, AT, active=("n1",), standby=())
    files.start(1, AT, active=("n1",), standby=())
    assert not begun.wait(0.05)
    assert time.monotonic() - began < 1
    answers.set()
    assert begun.wait(PATIENCE_SECONDS)
    assert files.close(AT, PATIENCE_SECONDS)
    assert json.loads((tmp_path / "cycle_info.8.current").read_text())["cycle_number"] == 1


def test_at_the_end_a_file_system_that_hangs_is_given_up_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = make(tmp_path)
    start(files, 0)
    answers = threading.Event()
    files.do("a write that hangs", lambda: answers.wait(PATIENCE_SECONDS) and None)
    with caplog.at_level(logging.ERROR):
        assert not files.close(AT, 0.05)
    assert "given up" in caplog.text
    answers.set()


def test_a_directory_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="preparing the cycle records"):
        make(tmp_path / "file" / "below")


@pytest.mark.parametrize("job", ["../x", "a.b", "a/b", "x" * 65, "a b", "a\n"])
def test_a_job_id_that_cannot_be_part_of_a_name_is_refused(tmp_path: Path, job: str) -> None:
    with pytest.raises(UsageError):
        open_cycle_directory(tmp_path, job, 0)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "2"}, ("7", 2)),
        ({"SLURM_JOB_ID": "9"}, ("9", 0)),
        ({"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "x"}, ("9", 0)),
        ({"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "-1"}, ("9", 0)),
        ({}, ("", 0)),
    ],
)
def test_job_and_attempt_are_those_that_nvrx_takes(environ: dict[str, str], found: tuple[str, int]) -> None:
    assert identify_job(environ) == found


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (("node9", "node10", "node010"), "node[9-10,010]"),
        (("gpu-01", "gpu-1"), "gpu-[1,01]"),
        (("10.1.2.3", "10.1.2.4"), "10.1.2.[3-4]"),
        (("a.b.example", "a.c.example"), "a.b.example,a.c.example"),
        (("n1", "n1"), "n1"),
        (("n1", "fe80::1"), "n1,fe80::1"),
        ((), ""),
    ],
)
def test_node_names_are_folded_as_slurm_writes_them_and_expand_to_the_same(names: tuple[str, ...], folded: str) -> None:
    assert fold_names(names) == folded
    if "fe80::1" not in names:
        assert sorted(expand_nodes(folded)) == sorted(set(names))


@pytest.mark.parametrize(
    ("active", "ranks"),
    [
        (("n1", "n2", "n3"), "0-2"),
        (("n1", "n3", "n2"), "0,2,1"),
        (("n1", "n1"), "0-1"),
        (("n1", "n2", "n1"), "0,2,1"),
        (("n10", "n9"), "1,0"),
        (("fe80::1", "n1"), "1,0"),
        ((), ""),
    ],
)
def test_every_launcher_keeps_its_rank_also_two_of_one_node(active: tuple[str, ...], ranks: str) -> None:
    assert fold_ranks(active) == ranks


_NAMES = st.sampled_from(["n1", "n01", "n9", "n10", "n010", "gpu-1", "gpu-01", "a.b", "10.0.0.1", "10.0.0.10", "::1"])


@given(st.lists(_NAMES, max_size=12))
def test_the_ranks_are_complete_and_stand_in_the_order_of_the_nodes(active: list[str]) -> None:
    runs = [part.split("-") for part in fold_ranks(active).split(",") if part]
    ranks = list(itertools.chain.from_iterable(range(int(run[0]), int(run[-1]) + 1) for run in runs))
    assert sorted(ranks) == list(range(len(active)))
    good = [name for name in active if name != "::1"]
    order = [*expand_nodes(fold_names(good)), "::1"]
    places = [order.index(active[rank]) for rank in ranks]
    assert places == sorted(places)


def test_the_write_counter_is_text() -> None:
    assert CycleInfo.__struct_encode_fields__.count("generation") == 1
