from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.parse.replies import complaints, is_job_gone, is_unreachable, one_line, parse_submitted


@pytest.mark.parametrize(
    ("stdout", "job", "cluster"),
    [
        ("123\n", 123, None),
        ("123", 123, None),
        ("46;sandbox\n", 46, "sandbox"),
        ("Welcome to the site\n--------\n123\n", 123, None),
        ("123\nThank you for submitting.\n", 123, None),
        ("Submitted batch job 123\n", 123, None),
        ("Submitted batch job 123 on cluster clu-1\n", 123, "clu-1"),
        ("*** 99 nodes are free ***\n7;clu\n\n", 7, "clu"),
        ("5\n6\n", 6, None),
        ("123\r\n", 123, None),
    ],
)
def test_the_id_is_found_in_the_last_line_that_is_one(stdout: str, job: int, cluster: str | None) -> None:
    found = parse_submitted(stdout)
    assert found is not None
    assert (found.array_job_id, found.cluster) == (job, cluster)


@pytest.mark.parametrize(
    "stdout", ["", "\n", "job 123", "123 456", "123;", "-5", "12.5", "١٢٣", "Submitted batch job x"]
)
def test_no_id_is_made_up(stdout: str) -> None:
    assert parse_submitted(stdout) is None


@pytest.mark.parametrize(
    "text",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "Transport endpoint is not connected",
        "Connection refused",
    ],
)
def test_a_broken_line_is_known(text: str) -> None:
    assert is_unreachable(text)


@pytest.mark.parametrize(
    "text",
    ["sbatch: error: Batch job submission failed: Invalid job array specification", "Access/permission denied", ""],
)
def test_a_refusal_is_not_a_broken_line(text: str) -> None:
    assert not is_unreachable(text)


def test_jobs_that_are_gone_are_no_complaint() -> None:
    text = (
        "scancel: error: Kill job error on job id 9: Invalid job id specified\n"
        "scancel: error: Kill job error on job id 359_[0-1%1]: Access/permission denied\n"
        "5_0-2: Job has already finished\n"
        "Job 7_3 not found\n\n"
    )
    assert complaints(text) == ("scancel: error: Kill job error on job id 359_[0-1%1]: Access/permission denied",)
    assert is_job_gone(text)


@given(st.text(), st.integers(10, 400))
def test_one_line_is_one_short_line(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert "\n" not in line
    assert len(line) <= limit + 3
