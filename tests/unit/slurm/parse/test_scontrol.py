from __future__ import annotations

from datetime import timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.model import JobDetail
from nvrx_chain.slurm.parse.scontrol import parse_config, parse_jobs, parse_partitions
from nvrx_chain.slurm.states import JobState
from tests.unit.slurm.recorded import VERSIONS, read_recorded


def odd_records() -> dict[int, str]:
    """The recorded records of oddly named jobs, by job id, each with all of its lines."""
    records: list[str] = []
    for line in read_recorded("22.05.8", "odd-names", "scontrol-show-job").splitlines():
        if line.startswith("JobId=") and not line.startswith("JobId=9 JobName=q "):
            records.append(line)
        else:
            records[-1] += f"\n{line}"
    return {int(record.split()[0].removeprefix("JobId=")): f"{record}\n" for record in records}


def odd(job_id: int) -> JobDetail:
    (detail,) = parse_jobs(odd_records()[job_id])
    return detail


@pytest.mark.parametrize("version", VERSIONS)
def test_a_running_chain(version: str) -> None:
    details = {
        (detail.array_job_id, detail.array_task_id): detail
        for detail in parse_jobs(read_recorded(version, "running", "scontrol-show-job"))
    }
    first = details[2, 0]
    assert (first.name, first.user, first.state) == ("llama_pretrain", "alice", JobState.RUNNING)
    assert (first.nodelist, first.batch_host, first.partition) == ("n1", "n1", "main")
    assert (first.comment, first.work_dir) == ("nvrx-chain:demo", "/sandbox/shared/alice")
    assert first.command == "/sandbox/jobs/chain.sbatch"
    assert (first.requeue, first.restarts, first.array_task_throttle) == (False, 0, 2)
    assert first.time_limit_seconds == 1500
    assert first.submitted_at is not None
    assert first.submitted_at.tzinfo is timezone.utc
    assert first.started_at is not None
    assert (first.ended_at, first.exit_code, first.exit_signal) == (None, None, None)
    waiting = details[3, None]
    assert (waiting.state, waiting.reason, waiting.dependency) == (
        JobState.PENDING,
        "Dependency",
        "singleton(unfulfilled)",
    )
    assert (waiting.started_at, waiting.nodelist, waiting.batch_host) == (None, "", "")
    assert waiting.fields["ArrayTaskId"] == "0-4%2"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_ended_task_has_its_code_and_the_cancelled_rest_no_index(version: str) -> None:
    details = parse_jobs(read_recorded(version, "mid-handoff-trap", "scontrol-show-job"))
    third = {detail.array_task_id: detail for detail in details if detail.array_job_id == 3}
    assert (third[0].state, third[0].exit_code, third[0].exit_signal) == (JobState.FAILED, 1, 0)
    assert third[0].ended_at is not None
    assert third[None].state is JobState.CANCELLED
    assert third[None].fields["ArrayTaskId"] == "4294967294"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_is_no_array_is_its_own_task_0(version: str) -> None:
    (hog,) = [job for job in parse_jobs(read_recorded(version, "running", "scontrol-show-job")) if job.name == "hog"]
    assert (hog.array_job_id, hog.array_task_id, hog.user, hog.command) == (1, 0, "bob", "")


def test_what_later_builds_of_26_05_print_behind_the_name_is_no_part_of_it() -> None:
    details = parse_jobs(read_recorded("26.05.5", "sluid", "scontrol-show-job"))
    assert {detail.name for detail in details} == {"a b"}
    assert {detail.comment for detail in details} == {"nvrx-chain:c/1"}


def test_a_name_with_a_newline_is_one_record() -> None:
    assert (odd(2).name, odd(2).user) == ("nl\nfoo", "root")


def test_a_name_that_looks_like_fields_stays_a_name() -> None:
    job = odd(3)
    assert job.name == "x UserId=bob(7) WorkDir=/evil"
    assert (job.user, job.work_dir, job.comment) == ("root", "/tmp", "c  d")


def test_a_name_that_fakes_the_owner_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="2 owners"):
        parse_jobs(odd_records()[4])


def test_a_name_that_makes_two_records_of_one_shows_the_true_owner_too() -> None:
    # The client refuses records of one job that name two owners.
    assert [detail.user for detail in parse_jobs(odd_records()[5])] == ["bob", "root"]


def test_a_comment_that_looks_like_a_field_empties_the_free_text() -> None:
    job = odd(6)
    assert (job.name, job.user, job.state) == ("wd", "root", JobState.PENDING)
    assert (job.work_dir, job.comment, job.command) == ("", "", "")
    assert "WorkDir" not in job.fields


def test_blanks_in_the_command_and_the_directory_are_kept() -> None:
    assert (odd(9).command, odd(9).work_dir) == ("j.sh a b c", "/sandbox/w d")


def test_an_array_list_with_a_step_is_kept_as_printed() -> None:
    assert (odd(7).array_task_id, odd(7).fields["ArrayTaskId"]) == (None, "0-38:2%5")


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_name_or_comment_gives_a_job_to_somebody_else(name: str, comment: str) -> None:
    record = (
        odd_records()[6]
        .replace("JobName=wd ", f"JobName={name} ")
        .replace("Comment=c WorkDir=/evil ", f"Comment={comment} ")
    )
    assert {detail.user for detail in parse_jobs(record)} == {"root"}


_FAKES = [
    " UserId=bob(7) GroupId=bob(7) MCS_label=N/A",
    "JobId=9 JobName=q",
    "\n",
    " UserId=bob(7)",
    " JobState=FAILED",
    " Command=x",
    " WorkDir=/evil",
    " Comment=nvrx-chain:abc/1",
    "x",
]


@given(st.lists(st.sampled_from(_FAKES), max_size=5), st.lists(st.sampled_from(_FAKES), max_size=5))
def test_no_mix_of_fakes_is_believed_alone(in_name: list[str], in_comment: list[str]) -> None:
    record = (
        odd_records()[6]
        .replace("JobName=wd ", f"JobName={''.join(in_name)} ")
        .replace("Comment=c WorkDir=/evil ", f"Comment={''.join(in_comment)} ")
    )
    try:
        users = {detail.user for detail in parse_jobs(record)}
    except ValueError:
        return
    assert "root" in users


@given(st.text() | st.text(alphabet="JobId=1 ArUserId(7)\n"))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        details = parse_jobs(text)
    except ValueError:
        return
    assert all(detail.job_id >= 0 for detail in details)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_configuration_of_every_version(version: str) -> None:
    config = parse_config(read_recorded(version, "running", "scontrol-show-config"))
    assert (config.version, config.cluster_name, config.accounting) == (version, "sandbox", True)
    assert (config.max_array_size, config.kill_wait_seconds) == (1001, 5)
    assert (config.slurmd_timeout_seconds, config.min_job_age_seconds) == (15, 300)
    assert config.preempt_mode == "OFF"


def test_a_cluster_without_accounting_says_so() -> None:
    text = read_recorded("no-accounting/22.05.8", "running", "scontrol-show-config")
    assert not parse_config(text).accounting
    assert not parse_config(text.replace("accounting_storage/none", "(null)")).accounting


@pytest.mark.parametrize("text", ["", "hello\n", "MaxArraySize = 5\n"])
def test_text_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="configuration"):
        parse_config(text)


def test_partitions() -> None:
    text = read_recorded("22.05.8", "odd-names", "scontrol-show-partition")
    main, hidden = parse_partitions(text, {"main": 8})
    assert (main.name, main.is_default, main.available, main.max_time_seconds) == ("main", True, True, None)
    assert (main.node_count, main.gpus_per_node) == (3, 8)
    assert (hidden.name, hidden.is_default, hidden.available) == ("hid", False, False)
    assert (hidden.max_time_seconds, hidden.node_count, hidden.gpus_per_node) == (86_400, 1, None)


def test_a_line_that_is_no_partition_is_refused() -> None:
    with pytest.raises(ValueError, match="partition"):
        parse_partitions("hello\n", {})
