from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import IdentityError
from nvrx_chain.slurm.identity import ChainIdentity, format_comment, parse_comment, verify_array, verify_task
from nvrx_chain.slurm.model import QueuedTask, QueueReading
from nvrx_chain.slurm.states import JobState

AT = datetime(2026, 11, 30, 1, 2, 3, tzinfo=timezone.utc)
CHAIN = ChainIdentity(chain_id="c0ffee", job_name="llama", user="alice", submitted_at={7: AT, 8: None})
TASK = QueuedTask(
    job_id=9,
    array_job_id=7,
    array_task_id=0,
    is_array=True,
    state=JobState.RUNNING,
    raw_state="RUNNING",
    reason="None",
    nodelist="n1",
    partition="main",
    dependency="",
    user="alice",
    submitted_at=AT,
    started_at=AT,
    comment="nvrx-chain:c0ffee/1",
    name="llama",
)


def reading(*tasks: QueuedTask) -> QueueReading:
    return QueueReading(tasks=tasks, read_at=AT)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"comment": "nvrx-chain:c0ffee"},
        {"comment": "nvrx-chain:c0ffee/12"},
        {"array_task_id": None},
        {"submitted_at": AT + timedelta(seconds=2)},
        {"submitted_at": AT - timedelta(seconds=2)},
        {"array_job_id": 8, "submitted_at": AT + timedelta(days=9)},
        {"array_job_id": 8, "submitted_at": None},
    ],
)
def test_a_task_of_the_chain_is_accepted(changes: dict[str, object]) -> None:
    assert verify_task(dataclasses.replace(TASK, **changes), CHAIN) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"array_job_id": 6}, "manifest"),
        ({"name": "Llama"}, "name"),
        ({"name": "llama "}, "name"),
        ({"name": "llama\nx"}, "name"),
        ({"user": "bob"}, "belongs to"),
        ({"user": ""}, "belongs to"),
        ({"comment": ""}, "comment"),
        ({"comment": "nvrx-chain:c0ffe"}, "comment"),
        ({"comment": "nvrx-chain:c0ffee2/1"}, "comment"),
        ({"comment": "nvrx-chain:c0ffee/"}, "comment"),
        ({"comment": "nvrx-chain:c0ffee/x"}, "comment"),
        ({"comment": "nvrx-chain:c0ffee/1 and more"}, "comment"),
        ({"comment": "nvrx-chain:c0ffee/1\n"}, "comment"),
        ({"comment": "x nvrx-chain:c0ffee/1"}, "comment"),
        ({"submitted_at": AT + timedelta(seconds=3)}, "given out again"),
        ({"submitted_at": AT - timedelta(days=300)}, "given out again"),
        ({"submitted_at": None}, "no submit time"),
    ],
)
def test_a_task_that_differs_in_one_thing_is_refused(changes: dict[str, object], because: str) -> None:
    reason = verify_task(dataclasses.replace(TASK, **changes), CHAIN)  # type: ignore[arg-type]
    assert reason is not None
    assert because in reason


def test_an_array_is_its_tasks_and_nothing_else() -> None:
    other = dataclasses.replace(TASK, array_job_id=99, name="other", user="bob")
    second = dataclasses.replace(TASK, array_task_id=1)
    assert verify_array(reading(second, other, TASK), 7, CHAIN) == (TASK, second)


def test_one_strange_row_spares_the_whole_array() -> None:
    strange = dataclasses.replace(TASK, array_task_id=1, comment="")
    with pytest.raises(IdentityError, match="comment"):
        verify_array(reading(TASK, strange), 7, CHAIN)


def test_an_array_that_the_queue_does_not_show_has_no_tasks() -> None:
    assert verify_array(reading(), 7, CHAIN) == ()


def test_an_id_that_is_not_in_the_manifest_is_refused_even_when_absent() -> None:
    with pytest.raises(IdentityError, match="manifest"):
        verify_array(reading(), 6, CHAIN)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True), st.none() | st.integers(0, 999_999_999))
def test_a_comment_is_read_back(chain_id: str, sequence: int | None) -> None:
    assert parse_comment(format_comment(chain_id, sequence)) == (chain_id, sequence)


@given(st.text())
def test_no_comment_breaks_the_parser(text: str) -> None:
    parsed = parse_comment(text)
    assert parsed is None or parsed[0] in text


@pytest.mark.parametrize(
    ("chain_id", "sequence"), [("", 1), ("a/b", 1), ("a b", None), ("a\n", 1), ("x" * 65, 1), ("a", -1)]
)
def test_a_bad_chain_id_is_not_written(chain_id: str, sequence: int | None) -> None:
    with pytest.raises(ValueError, match="job comment"):
        format_comment(chain_id, sequence)
