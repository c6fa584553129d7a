from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.array import render_array_spec
from nvrx_chain.slurm.parse.squeue import QUEUE_COLUMNS, parse_queue, queue_arguments
from nvrx_chain.slurm.states import JobState
from tests.unit.slurm import recorded
from tests.unit.slurm.recorded import SEPARATOR_OF_ODD_NAMES, VERSIONS, read_recorded

RECORDED = tuple(name for name, _code in QUEUE_COLUMNS if name != "work_dir")
"""The recording is older than that column."""


def states(version: str, state: str, name: str) -> dict[str, JobState]:
    """The state of each task of a recording by its spec."""
    parsed = parse_queue(read_recorded(version, state, name), "|", recorded.QUEUE_COLUMNS)
    assert parsed.junk == ()
    return {task.spec: task.state for task in parsed.tasks if task.array_task_id is not None}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_running_chain_is_fifteen_tasks_with_or_without_array_expansion(version: str) -> None:
    expanded, compact = states(version, "running", "squeue"), states(version, "running", "squeue-compact")
    assert expanded == compact
    assert Counter(expanded.values()) == {JobState.RUNNING: 2, JobState.PENDING: 13}
    assert {spec for spec, state in expanded.items() if state is JobState.RUNNING} == {"2_0", "2_1"}


@pytest.mark.parametrize("version", VERSIONS)
def test_waiting_arrays_are_counted_out(version: str) -> None:
    shown = states(version, "all-pending", "squeue-compact")
    assert shown == states(version, "all-pending", "squeue-all-states")
    assert {spec for spec in shown if shown[spec] is JobState.PENDING} == {
        f"{job}_{index}" for job in (2, 3, 4) for index in range(5)
    }
    assert shown["1"] is JobState.RUNNING


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_is_no_array_is_its_own_task_0(version: str) -> None:
    parsed = parse_queue(read_recorded(version, "all-pending", "squeue-all-states"), "|", recorded.QUEUE_COLUMNS)
    (hog,) = [task for task in parsed.tasks if task.name == "hog"]
    assert (hog.array_task_id, hog.is_array, hog.spec, hog.nodelist) == (0, False, "1", "n[1-8]")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cancelled_rest_of_an_array_is_no_task_0(version: str) -> None:
    parsed = parse_queue(read_recorded(version, "mid-handoff-trap", "squeue-all-states"), "|", recorded.QUEUE_COLUMNS)
    third = [task for task in parsed.tasks if task.array_job_id == 3]
    assert [(task.array_task_id, task.state) for task in third if task.state.is_terminal] == [
        (None, JobState.CANCELLED),
        (0, JobState.FAILED),
    ]
    assert [task.array_task_id for task in third if not task.state.is_terminal] == [1]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failed_node_is_in_the_state_of_its_task(version: str) -> None:
    shown = states(version, "node-fail", "squeue-all-states")
    assert [state for state in shown.values() if state is JobState.NODE_FAIL]


def test_odd_names_stay_whole_and_damage_no_other_row() -> None:
    parsed = parse_queue(read_recorded("22.05.8", "odd-names", "squeue"), SEPARATOR_OF_ODD_NAMES, RECORDED)
    names = {task.array_job_id: task.name for task in parsed.tasks}
    assert names[1] == "a b|c"
    assert names[2] == "nl\nfoo"
    assert names[5] == "z UserId=bob(7) GroupId=bob(7) MCS_label=N/A Priority=1\nJobId=9 JobName=q"
    assert {task.user for task in parsed.tasks} == {"root"}
    assert len(parsed.junk) == 2


def test_every_column_of_the_real_format_is_read() -> None:
    parsed = parse_queue(read_recorded("22.05.8", "odd-names", "squeue"), SEPARATOR_OF_ODD_NAMES, RECORDED)
    (task,) = [task for task in parsed.tasks if (task.array_job_id, task.array_task_id) == (1, 1)]
    at = datetime(2026, 11, 30, 3, 15, 26, tzinfo=timezone.utc)
    assert (task.job_id, task.is_array, task.state, task.raw_state) == (11, True, JobState.RUNNING, "RUNNING")
    assert (task.reason, task.nodelist, task.partition, task.dependency) == ("None", "n2", "main", "")
    assert (task.submitted_at, task.started_at) == (at, at.replace(second=27))
    assert (task.comment, task.user) == ("nvrx-chain:abc/1", "root")


def test_an_estimated_start_of_a_waiting_job_is_no_start() -> None:
    text = read_recorded("22.05.8", "odd-names", "squeue")
    assert "2027-11-30T03:15:27" in text
    (task,) = [task for task in parse_queue(text, SEPARATOR_OF_ODD_NAMES, RECORDED).tasks if task.array_job_id == 2]
    assert (task.state, task.started_at) == (JobState.PENDING, None)


def test_a_list_with_a_step_keeps_its_last_task() -> None:
    parsed = parse_queue(read_recorded("22.05.8", "odd-names", "squeue"), SEPARATOR_OF_ODD_NAMES, RECORDED)
    assert [task.array_task_id for task in parsed.tasks if task.array_job_id == 7] == list(range(0, 39, 2))
    assert "--array" not in queue_arguments("|", None)


def test_a_list_that_squeue_cut_short_says_that_there_are_more() -> None:
    columns = ("spec", "array_job_id", "array_task", "state", "reason", "nodelist", "user", "name")
    parsed = parse_queue(read_recorded("22.05.8", "odd-names", "squeue-cut"), "|", columns)
    indices = [task.array_task_id for task in parsed.tasks]
    assert indices[-1] is None
    assert indices[:5] == [0, 2, 3, 5, 7]
    assert parsed.tasks[-1].spec == "21"


def test_a_header_line_is_skipped() -> None:
    columns = ("job_id", "array_job_id", "array_task", "state", "name")
    text = "JOBID|ARRAY_JOB_ID|ARRAY_TASK_ID|STATE|NAME\n5|5|N/A|RUNNING|x\n"
    parsed = parse_queue(text, "|", columns)
    assert ([task.job_id for task in parsed.tasks], parsed.junk) == ([5], ())


def test_a_row_without_a_job_id_is_reported() -> None:
    parsed = parse_queue(
        "x|5|N/A|RUNNING|a\n5|5|N/A|RUNNING|b\n", "|", ("job_id", "array_job_id", "array_task", "state", "name")
    )
    assert [task.name for task in parsed.tasks] == ["b"]
    assert parsed.junk == ("x|5|N/A|RUNNING|a",)


def test_an_unreadable_index_is_one_task_that_cannot_be_told() -> None:
    parsed = parse_queue("5|5|?!|RUNNING|a\n", "|", ("job_id", "array_job_id", "array_task", "state", "name"))
    assert [(task.array_task_id, task.spec) for task in parsed.tasks] == [(None, "5")]


def test_the_arguments_ask_for_everything_and_filter_by_nothing_but_the_user() -> None:
    everybody, alice = queue_arguments("|", None), queue_arguments("|", "alice")
    assert {"--all", "--states=all", "--noheader"} <= set(everybody)
    assert alice == (*everybody, "--user=alice")
    assert not [argument for argument in alice if argument.startswith(("--name", "--partition", "--job"))]
    assert QUEUE_COLUMNS[-1] == ("name", "%j")
    assert QUEUE_COLUMNS[-2] == ("comment", "%k")


def test_the_working_directory_is_read_whole() -> None:
    row = "|".join(["5", "5", "0", "RUNNING", *[""] * 7, "/scratch/a b & #1", "nvrx-chain:c/1", "x|y"])
    (task,) = parse_queue(f"{row}\n", "|").tasks
    assert (task.work_dir, task.comment, task.name) == ("/scratch/a b & #1", "nvrx-chain:c/1", "x|y")


@given(st.text() | st.text(alphabet="0123456789|\nN/A[]-,%.RPD "))
def test_no_text_breaks_the_parser(text: str) -> None:
    parsed = parse_queue(text, "|")
    assert all(task.array_job_id >= 0 for task in parsed.tasks)


@given(st.sets(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 9))
def test_waiting_tasks_round_trip(indices: set[int], throttle: int) -> None:
    text = f"9|9|{render_array_spec(indices, throttle)}|PENDING|x\n"
    parsed = parse_queue(text, "|", ("job_id", "array_job_id", "array_task", "state", "name"))
    assert [task.array_task_id for task in parsed.tasks] == sorted(indices)
