from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.model import AccountedTask
from nvrx_chain.slurm.parse.sacct import ACCOUNTING_COLUMNS, accounting_arguments, parse_accounting
from nvrx_chain.slurm.states import JobState
from tests.unit.slurm import recorded
from tests.unit.slurm.recorded import VERSIONS, read_recorded

COLUMNS = ("id", "state", "exit")


def tasks(version: str, state: str) -> dict[str, AccountedTask]:
    """The rows of a recording, by `array_task`; a rest is `array_None`."""
    parsed = parse_accounting(read_recorded(version, state, "sacct-steps"), "|", recorded.ACCOUNTING_COLUMNS)
    assert parsed.junk == ()
    return {f"{task.array_job_id}_{task.array_task_id}": task for task in parsed.tasks}


@pytest.mark.parametrize(
    ("version", "job", "codes"), [("22.05.8", 24, (0, 0)), ("24.11.5", 26, (1, 0)), ("26.05.5", 24, (1, 0))]
)
def test_a_failed_node_is_told_by_the_state_not_by_the_code(version: str, job: int, codes: tuple[int, int]) -> None:
    task = tasks(version, "node-fail")[f"{job}_0"]
    assert task.state is JobState.NODE_FAIL
    assert (task.exit_code, task.exit_signal) == codes
    assert (task.nodelist, task.user, task.name) == ("n1", "alice", "llama_pretrain")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_code_of_a_step_is_kept_beside_that_of_the_allocation(version: str) -> None:
    task = tasks(version, "node-fail")["4_0"]
    assert (task.state, task.exit_code, task.step_exit_codes) == (JobState.FAILED, 93, (93,))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_running_task_has_no_exit_code_yet(version: str) -> None:
    running = [task for task in tasks(version, "node-fail").values() if task.state is JobState.RUNNING]
    assert len(running) == 2
    for task in running:
        assert (task.exit_code, task.exit_signal, task.ended_at, task.step_exit_codes) == (None, None, None, ())


def test_22_prints_a_cancelled_rest_under_the_first_range_and_it_is_no_task() -> None:
    rest = tasks("22.05.8", "node-fail")["3_None"]
    assert (rest.state, rest.cancelled_by, rest.nodelist) == (JobState.CANCELLED, 1001, "")
    assert (rest.started_at, rest.job_id) == (None, 3)


def test_22_shows_one_row_for_an_array_that_already_runs() -> None:
    shown = tasks("22.05.8", "running")
    assert list(shown) == ["2_None"]
    assert shown["2_None"].state is JobState.PENDING


@pytest.mark.parametrize("version", VERSIONS)
def test_times_are_utc(version: str) -> None:
    task = tasks(version, "node-fail")["2_0"]
    assert task.submitted_at is not None
    assert task.submitted_at.tzinfo is timezone.utc
    assert task.submitted_at.date() == datetime(2026, 11, 30).date()


@pytest.mark.parametrize(
    ("row", "code", "signal"),
    [
        ("5_0|FAILED|93:0", 93, 0),
        ("5_0|OUT_OF_MEMORY|0:125", 0, 125),
        ("5_0|CANCELLED by 1000|0:0", 0, 0),
        ("5_0|NODE_FAIL|", None, None),
        ("5_0|RUNNING|0:0", None, None),
        ("5_0|COMPLETING|7:0", None, None),
        ("5_0|XYZ|7:0", None, None),
    ],
)
def test_a_code_counts_only_when_the_job_has_ended(row: str, code: int | None, signal: int | None) -> None:
    (task,) = parse_accounting(f"{row}\n", "|", COLUMNS).tasks
    assert (task.exit_code, task.exit_signal) == (code, signal)


def test_the_step_knows_what_the_allocation_hides() -> None:
    text = (
        "17_0|FAILED|15:0\n17_0.batch|FAILED|15:0\n17_0.extern|COMPLETED|0:0\n17_0.0|FAILED|93:0\n17_0.1|CANCELLED|\n"
    )
    (task,) = parse_accounting(text, "|", COLUMNS).tasks
    assert (task.exit_code, task.step_exit_codes) == (15, (93,))


@pytest.mark.parametrize(
    ("row", "index"),
    [
        ("16|FAILED|1:0|n1", 0),
        ("16|CANCELLED by 0|0:0|None assigned", None),
        ("16|PENDING|0:0|", None),
        ("16_[2-4%2]|CANCELLED by 0|0:0|None assigned", None),
        ("16_[0,2,4,...|PENDING|0:0|None assigned", None),
        ("16_3|CANCELLED by 0|0:0|None assigned", 3),
        ("16+0|FAILED|1:0|n1", 0),
    ],
)
def test_a_row_is_a_task_only_when_one_ran(row: str, index: int | None) -> None:
    (task,) = parse_accounting(f"{row}\n", "|", (*COLUMNS, "nodelist")).tasks
    assert (task.array_job_id, task.array_task_id) == (16, index)


def test_the_working_directory_and_a_stored_comment_are_read() -> None:
    columns = (*COLUMNS, "work_dir", "comment", "name")
    stored, bare = parse_accounting(
        "5_0|FAILED|1:0|/w d/#1|nvrx-chain:c0ffee/1|a|b\n6_0|FAILED|1:0|/w|(null)|c\n", "|", columns
    ).tasks
    assert (stored.work_dir, stored.comment, stored.name) == ("/w d/#1", "nvrx-chain:c0ffee/1", "a|b")
    assert (bare.work_dir, bare.comment) == ("/w", "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recording_without_these_columns_has_neither(version: str) -> None:
    task = tasks(version, "node-fail")["2_0"]
    assert (task.work_dir, task.comment) == ("", "")


def test_a_line_that_is_no_row_is_reported() -> None:
    parsed = parse_accounting("hello\nJobID|State|ExitCode\n5_0|FAILED|1:0\n", "|", COLUMNS)
    assert len(parsed.tasks) == 1
    assert parsed.junk == ("hello", "JobID|State|ExitCode")


def test_the_arguments_have_no_time_window() -> None:
    arguments = accounting_arguments("\x1f", [7, 12])
    assert "--jobs=7,12" in arguments
    assert not [
        argument for argument in arguments if argument.startswith(("-S", "--start", "-E", "--end", "-X", "--alloc"))
    ]
    assert ACCOUNTING_COLUMNS[-1] == ("name", "JobName")


@given(st.text() | st.text(alphabet="0123456789|\n_.[]-batchFAILED: "))
def test_no_text_breaks_the_parser(text: str) -> None:
    parsed = parse_accounting(text, "|", COLUMNS)
    assert all(task.exit_code is None or task.state.is_terminal for task in parsed.tasks)
