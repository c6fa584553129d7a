"""The names of files: each is found again by the parser that belongs to it, and no other name is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.records.layout import RunDirectory, parse_indexed_name, parse_segment_health_name, parse_submission_name

RUN = RunDirectory(Path("/scratch/a b&c#'100%\""))
indices = st.integers(min_value=0, max_value=999_999_999)


@given(job=st.integers(min_value=1, max_value=2**31), task=indices)
def test_a_file_of_a_task_is_read_back_as_its_kind_and_index(job: int, task: int) -> None:
    generation = RUN.generation(job)
    for kind, path in (
        ("lease", generation.lease(task)),
        ("joined", generation.joined(task)),
        ("left", generation.left(task)),
        ("drained", generation.drained(task)),
    ):
        assert path.parent == generation.control
        assert parse_indexed_name(path.name) == (kind, task)
        assert parse_submission_name(path.name) is None


@given(job=st.integers(min_value=1, max_value=2**31), task=indices)
def test_the_file_of_nvrx_s_segment_health_check_names_array_job_and_task(job: int, task: int) -> None:
    path = RUN.generation(job).segment_health(task)
    assert path.name == f"segment_health_check.{job}.{task}"
    assert parse_segment_health_name(path.name) == (job, task)
    assert parse_segment_health_name(f"{path.name}.inactive") is None
    assert parse_indexed_name(path.name) is None


@given(sequence=indices)
def test_a_submission_is_read_back_as_its_sequence(sequence: int) -> None:
    assert parse_submission_name(RUN.intent(sequence).name) == (sequence, False)
    assert parse_submission_name(RUN.submission_id(sequence).name) == (sequence, True)
    assert parse_indexed_name(RUN.intent(sequence).name) is None


@pytest.mark.parametrize(
    "name",
    [
        ".lease.0.json.77.ab12cd34.tmp",
        "lease.0.json.tmp",
        "lease.٣.json",
        "lease.-1.json",
        "lease..json",
        "lease.0.json\n",
        "xlease.0.json",
        "lease.1234567890.json",
        "launcher_exit.0.n1.json",
        "closed.json",
    ],
)
def test_no_other_name_is_taken_for_a_file_of_a_task(name: str) -> None:
    assert parse_indexed_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "1.json",
        "٠٠٠٣.json",
        "0001.json.tmp",
        ".0001.json.77.ab12cd34.tmp",
        "0001.id.json\n",
        "0001.ID.json",
        "-001.json",
    ],
)
def test_no_other_name_is_taken_for_a_submission(name: str) -> None:
    assert parse_submission_name(name) is None


def test_all_files_of_a_generation_have_different_paths() -> None:
    generation = RUN.generation(7)
    paths = [
        generation.rendezvous,
        generation.no_restart,
        generation.closed,
        generation.walltime,
        generation.inquiry,
        generation.cleared,
        generation.record,
        generation.lease(0),
        generation.lease(1),
        generation.joined(0),
        generation.left(0),
        generation.launcher_exit(0, "n1"),
        generation.launcher_exit(0, "n2"),
        generation.launcher_exit(1, "n1"),
        generation.task_log(0),
        generation.launcher_log(0),
        generation.application_log,
    ]
    assert len(set(paths)) == len(paths)
    assert all(path.is_relative_to(RUN.generations / "7") for path in paths)
