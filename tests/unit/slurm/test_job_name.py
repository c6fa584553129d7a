from __future__ import annotations

import pytest

from nvrx_chain.slurm.job_name import JobName, parse_job_name


@pytest.mark.parametrize(
    ("text", "job", "task"),
    [
        ("123", 123, None),
        ("123_0", 123, 0),
        ("123_17", 123, 17),
        ("123_[2-4]", 123, None),
        ("123_[2-4,7%2]", 123, None),
    ],
)
def test_a_job_id_is_read_in_every_form_of_slurm(text: str, job: int, task: int | None) -> None:
    assert parse_job_name(text) == JobName(job_id=job, array_task_id=task)


@pytest.mark.parametrize("text", ["", "runs/123", "./123", "12a", "123_", "123_[2-4", "123.batch", "１２３", "-123"])
def test_any_other_text_names_no_job(text: str) -> None:
    assert parse_job_name(text) is None
