"""PySlurm's job records, as they were recorded from a real one, become the tasks that they are, else unknown ones."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.pyslurm_fields import JOB_FIELDS, text_of
from nvrx_chain.slurm.pyslurm_jobs import NOT_SHOWN, convert_details, convert_queue
from nvrx_chain.slurm.states import JobState, parse_job_state
from tests.fakes.pyslurm_bench import recorded

Row = tuple[int, int | None, str]


def records(scene: str) -> list[dict[str, Any]]:
    return list(recorded(scene)["jobs"].values())


def rows(scene: str) -> list[Row]:
    """(array job, task, state) of every task in a scene, in the order of the array."""
    converted = convert_queue(records(scene))
    assert converted.junk == ()
    found = [(task.array_job_id, task.array_task_id, task.state.value) for task in converted.tasks]
    return sorted(found, key=lambda row: (row[0], row[1] is None, row[1] or 0))


def tasks(job: int, state: str, *indices: int | None) -> list[Row]:
    return [(job, index, state) for index in indices]


def one(**fields: object) -> tuple[QueuedTask, ...]:
    """The rows of a recorded record of task 0, with other values."""
    task_0 = next(record for record in records("running") if record["id"] == 3)
    return convert_queue([{**task_0, **fields}]).tasks


def test_a_queued_array_is_counted_out_into_its_tasks() -> None:
    assert rows("all-pending") == tasks(1, "PENDING", *range(5)) + tasks(2, "PENDING", *range(5))


def test_task_0_is_known_by_its_nodes_and_the_waiting_rest_by_its_range() -> None:
    assert rows("running") == [
        *tasks(1, "RUNNING", 0, 1),
        *tasks(1, "PENDING", 2, 3, 4),
        *tasks(2, "PENDING", 0, 1, 2, 3, 4),
    ]


def test_a_waiting_task_that_was_cancelled_alone_leaves_a_hole() -> None:
    assert rows("one-spare-cancelled")[:4] == [*tasks(1, "RUNNING", 0, 1), *tasks(1, "PENDING", 2, 4)]


def test_the_cancelled_rest_is_never_an_ended_task_0() -> None:
    assert rows("pending-rest-cancelled")[:3] == [*tasks(1, "RUNNING", 0, 1), *tasks(1, "CANCELLED", None)]


def test_the_cancelled_rest_never_started() -> None:
    (rest,) = [task for task in convert_queue(records("pending-rest-cancelled")).tasks if task.array_task_id is None]
    assert (rest.state, rest.started_at, rest.nodelist) == (JobState.CANCELLED, None, "")


def test_a_cancelled_task_0_that_ran_is_told_from_the_cancelled_rest() -> None:
    first = [row for row in rows("array-cancelled-successor-running") if row[0] == 1]
    assert first == tasks(1, "CANCELLED", 0, 1, None)


def test_the_rest_of_an_array_that_was_cancelled_whole_keeps_its_indices() -> None:
    assert [row for row in rows("node-down") if row[0] in (7, 8)] == [
        (7, 0, "FAILED"),
        *tasks(7, "CANCELLED", 1, 2, 3, 4),
        *tasks(8, "CANCELLED", 0, 1, 2, 3, 4),
    ]


def test_task_0_that_failed_within_a_second_is_no_rest() -> None:
    # Its start time is its end time, as of a rest; but it has nodes.
    detail = next(one for one in convert_details(records("task0-exit-93")) if one.job_id == 9)
    assert (detail.array_job_id, detail.array_task_id, detail.state) == (7, 0, JobState.FAILED)
    assert (detail.exit_code, detail.exit_signal) == (93, 0)


def test_a_task_has_its_identity_and_aware_times() -> None:
    (task,) = one()
    assert (task.spec, task.job_id, task.is_array, task.nodelist) == ("1_0", 3, True, "m1")
    assert (task.name, task.user, task.comment) == ("llama_pretrain", "alice", "nvrx-chain:llama-20261130-a1b2")
    assert task.submitted_at == datetime.fromtimestamp(1796006013, timezone.utc)
    assert task.started_at == datetime.fromtimestamp(1796006015, timezone.utc)


def test_the_waiting_rest_is_one_detail_with_its_list_and_its_throttle() -> None:
    waiting = next(one for one in convert_details(records("running")) if one.job_id == 1)
    assert (waiting.array_task_id, waiting.fields["ArrayTaskId"], waiting.array_task_throttle) == (None, "2-4", 2)
    assert (waiting.requeue, waiting.time_limit_seconds, waiting.ended_at) == (False, None, None)


def test_the_planned_end_of_a_running_job_is_no_end() -> None:
    running = next(one for one in convert_details(records("task0-exit-93")) if one.job_id == 10)
    assert (running.ended_at, running.exit_code, running.time_limit_seconds) == (None, None, 525600 * 60)


def test_a_dependency_that_pyslurm_does_not_tell_is_said_to_be_one() -> None:
    by_job = {detail.job_id: detail.dependency for detail in convert_details(records("running"))}
    assert (by_job[2], by_job[1], by_job[3]) == (NOT_SHOWN, "", "")


def test_known_dependencies_are_shown_and_never_taken_for_all_of_them() -> None:
    # A singleton beside them is left out just so.
    shown = {"after": [], "afterany": [12, 13], "afterok": [7], "satisfy": "all", "singleton": False}
    assert one(dependencies=shown)[0].dependency == f"afterany:12,afterany:13,afterok:7,{NOT_SHOWN}"


@pytest.mark.parametrize(
    ("fields", "indices"),
    [
        ({"start_time": None}, [None]),
        ({"allocated_nodes": None}, [None]),
        ({"array_task_id": "0"}, [None]),
        ({"array_task_id": True}, [None]),
        ({"array_task_id": 4294967294}, [None]),
        ({"array_tasks_waiting": 7}, [None]),
        ({"array_tasks_waiting": "2-4"}, [None]),
        ({"state": "PENDING"}, [None]),
        ({"state": "PENDING", "allocated_nodes": None, "array_tasks_waiting": "1,3-4,9..."}, [1, 3, 4, None]),
        ({"state": "PENDING", "allocated_nodes": None, "array_tasks_waiting": "what"}, [None]),
        ({"state": "FAILED", "allocated_nodes": None, "array_tasks_waiting": "2-4"}, [None]),
        ({"array_id": None}, [0]),
        ({"array_id": None, "array_tasks_waiting": "2-4"}, [None]),
    ],
)
def test_what_does_not_fit_together_is_an_unknown_task(fields: dict[str, object], indices: list[int | None]) -> None:
    assert [task.array_task_id for task in one(**fields)] == indices


def test_two_records_that_both_look_like_task_0_are_none() -> None:
    task_0 = next(record for record in records("running") if record["id"] == 3)
    twice = [task_0, {**task_0, "id": 99}]
    assert [task.array_task_id for task in convert_queue(twice).tasks] == [None, None]
    assert [detail.array_task_id for detail in convert_details(twice)] == [None, None]


def test_a_record_whose_job_or_array_is_not_known_is_reported_and_no_task() -> None:
    task_0 = next(record for record in records("running") if record["id"] == 3)
    without = {field: value for field, value in task_0.items() if field != "array_id"}
    converted = convert_queue([{**task_0, "id": None}, {**task_0, "array_id": "1"}, without, "what", task_0])
    assert [task.spec for task in converted.tasks] == ["1_0"]
    assert len(converted.junk) == 4


def test_a_job_that_is_no_array_is_its_own_task_0() -> None:
    (task,) = one(array_id=None, id=12)
    assert (task.spec, task.is_array, task.array_job_id) == ("12", False, 12)


def test_a_user_without_a_name_is_shown_by_number() -> None:
    assert one(user_name=None, user_id=1007)[0].user == "1007"


_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2, 1796006013, 4294967294, 2**64])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["PENDING", "RUNNING", "CANCELLED", "NODE_FAIL", "COMPLETING", "2-4", "0-4", "n[1-3]", "%", "alice"]
    )
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.sampled_from(["afterok", "singleton", "satisfy"]), st.booleans() | st.lists(st.integers()))
)
_RECORDS = st.fixed_dictionaries({}, optional=dict.fromkeys(JOB_FIELDS, _VALUES))
_KNOWN = st.fixed_dictionaries({"id": st.integers(1, 9), "array_id": st.integers(1, 3)})
_JOBS = st.tuples(_RECORDS, _KNOWN).map(lambda parts: {**parts[0], **parts[1]})


@given(_RECORDS | _VALUES)
def test_any_record_is_rows_or_is_reported_and_never_an_error_or_nothing(shown: Any) -> None:
    converted = convert_queue([shown])
    assert bool(converted.tasks) != bool(converted.junk)
    if converted.junk:
        with pytest.raises(ValueError):
            convert_details([shown])
    else:
        (detail,) = convert_details([shown])
        assert {task.array_job_id for task in converted.tasks} == {detail.array_job_id}


@given(st.lists(_JOBS, max_size=2, unique_by=lambda record: record["id"]))
def test_a_record_of_a_known_job_is_always_a_row_and_only_its_own_word_ends_it(shown: list[dict[str, Any]]) -> None:
    converted = convert_queue(shown)
    assert converted.junk == ()
    states = {record["id"]: text_of(record, "state") for record in shown}
    for row in converted.tasks:
        assert row.state is parse_job_state(states[row.job_id]).state
    assert {row.job_id for row in converted.tasks} == set(states)


@given(_JOBS)
def test_an_end_of_task_0_was_told_by_its_index_by_nodes_or_by_a_cancelled_range(record: dict[str, Any]) -> None:
    for row in convert_queue([record]).tasks:
        if row.array_task_id == 0 and row.state.is_terminal and record.get("array_task_id") != 0:
            ran = bool(row.nodelist) and row.started_at is not None
            assert ran or (row.state is JobState.CANCELLED and record.get("array_tasks_waiting"))
