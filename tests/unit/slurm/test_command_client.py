from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from nvrx_chain.errors import SlurmAmbiguous, SlurmError, SlurmUnavailable, Unobserved
from nvrx_chain.slurm.command_client import CommandLineClient
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_clock import FakeClock
from tests.unit.slurm.programs import FakePrograms
from tests.unit.slurm.recorded import read_recorded

NEVER = datetime(2020, 1, 1, tzinfo=timezone.utc)
HANG = "sleep 600"
QUICK_SECONDS = 3.0

# Prints a row in the format that was asked for: each `%A` and the like is replaced by a value.
ROW = """\
for argument; do case $argument in --format=*) format=${argument#--format=};; esac; done
row() { printf '%s\\n' "$format" | sed -e "s#%A#$1#;s#%F#$2#;s#%K#$3#;s#%T#$4#;s#%r#None#;s#%N#n1#;s#%P#main#" \\
  -e "s#%E#(null)#;s#%u#$5#;s#%V#2026-11-30T01:02:03#;s#%S#2026-11-30T01:02:04#;s#%k#nvrx-chain:c/1#;s#%j#$6#"; }
"""


@pytest.fixture
def programs(tmp_path: Path) -> FakePrograms:
    return FakePrograms(tmp_path / "bin dir & #1")


def client(programs: FakePrograms, **environ: str) -> CommandLineClient:
    return CommandLineClient(clock=FakeClock(), environ=programs.environ | environ)


def impatient(programs: FakePrograms) -> CommandLineClient:
    return CommandLineClient(clock=FakeClock(), environ=programs.environ, timeout_seconds=QUICK_SECONDS)


def test_rows_are_read_with_a_separator_that_no_name_knows(programs: FakePrograms) -> None:
    programs.put("squeue", f"{ROW} row 11 9 2 RUNNING alice 'a|b,c d'; row 12 12 N/A PENDING bob x")
    reading = client(programs).queue("alice")
    assert not isinstance(reading, Unobserved)
    first, second = reading.tasks
    assert (first.spec, first.state, first.user, first.name) == ("9_2", JobState.RUNNING, "alice", "a|b,c d")
    assert (first.comment, first.nodelist) == ("nvrx-chain:c/1", "n1")
    assert (second.spec, second.started_at) == ("12", None)
    assert reading.read_at == FakeClock().now()
    arguments, _environ = programs.calls("squeue")[0]
    assert "--user=alice" in arguments


def test_everybodys_queue_is_asked_for_without_a_user(programs: FakePrograms) -> None:
    programs.put("squeue", "true")
    reading = client(programs).queue()
    assert not isinstance(reading, Unobserved)
    assert reading.tasks == ()
    arguments, _environ = programs.calls("squeue")[0]
    assert not [argument for argument in arguments if argument.startswith(("-u", "--user"))]


@pytest.mark.parametrize(
    ("body", "because"),
    [
        ("echo 'slurm_load_jobs error: Socket timed out' >&2", "printed nothing but an error: slurm_load_jobs"),
        ("echo 'squeue: error: Invalid user: x' >&2; echo", "Invalid user"),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "squeue failed with 1: Unable to contact"),
        ("exit 1", "squeue failed with 1"),
        ("kill -9 $$", "squeue failed with -9"),
        (f"{ROW} row 1 1 0 RUNNING a b; printf '2'", "cut off in the middle of a line"),
        ("echo 'this site has a new squeue'", "none as it was asked to"),
    ],
)
def test_a_squeue_that_did_not_see_slurm_is_unobserved_and_never_empty(
    programs: FakePrograms, body: str, because: str
) -> None:
    programs.put("squeue", body)
    reading = client(programs).queue("alice")
    assert isinstance(reading, Unobserved)
    assert because in reading.reason


def test_no_read_raises_for_a_slurm_that_is_not_there(programs: FakePrograms) -> None:
    there = client(programs)
    answers = [
        there.queue(),
        there.accounting([1], NEVER),
        there.show_job(1),
        there.nodes([]),
        there.config(),
        there.partitions(),
    ]
    for answer in answers:
        assert isinstance(answer, Unobserved)
        assert "no such program on PATH" in answer.reason


def test_a_missing_configuration_file_is_the_reason(programs: FakePrograms, tmp_path: Path) -> None:
    programs.put("squeue", "true")
    reading = client(programs, SLURM_CONF=str(tmp_path / "gone")).queue()
    assert isinstance(reading, Unobserved)
    assert "SLURM_CONF" in reading.reason


def test_a_read_that_hangs_is_unobserved(programs: FakePrograms) -> None:
    for name in ("squeue", "scontrol"):
        programs.put(name, HANG)
    reading = impatient(programs).queue()
    assert reading == Unobserved("squeue did not answer in 3 s")
    assert isinstance(impatient(programs).show_job(1), Unobserved)


def test_lines_that_are_no_row_are_reported_beside_the_rows(
    programs: FakePrograms, caplog: pytest.LogCaptureFixture
) -> None:
    programs.put("squeue", f"echo 'CLUSTER: x'; echo; {ROW} row 9 9 0 RUNNING alice x; echo 'a banner'")
    with caplog.at_level(logging.WARNING):
        reading = client(programs).queue()
    assert not isinstance(reading, Unobserved)
    assert [task.spec for task in reading.tasks] == ["9_0"]
    assert reading.unparsed == ("a banner",)
    assert "lines that are no record" in caplog.text


def test_a_made_up_row_in_a_name_is_no_task(programs: FakePrograms) -> None:
    made_up = "x\\n99|99|0|RUNNING|None|n1|main||root|||nvrx-chain:c/1|x"
    programs.put("squeue", f"{ROW} row 9 9 0 RUNNING mallory NAME | sed 's#NAME#{made_up}#'")
    reading = client(programs).queue()
    assert not isinstance(reading, Unobserved)
    assert [(task.spec, task.user) for task in reading.tasks] == [("9_0", "mallory")]
    assert reading.tasks[0].name.startswith("x\n99|")


def test_reading_programs_see_a_clean_environment(programs: FakePrograms) -> None:
    programs.put("squeue", "true")
    client(programs, SQUEUE_STATES="RUNNING", SLURM_TIME_FORMAT="%s", TZ="Asia/Tokyo", LC_ALL="fr_FR").queue()
    _arguments, environ = programs.calls("squeue")[0]
    assert "SQUEUE_STATES" not in environ
    assert (environ["SLURM_TIME_FORMAT"], environ["TZ"], environ["LC_ALL"]) == ("standard", "UTC", "C")
    assert environ["SLURM_BITSTR_LEN"] == "0"


def test_sbatch_sees_the_users_environment_without_slurms_variables(programs: FakePrograms) -> None:
    programs.put("sbatch", "echo 5")
    client(
        programs,
        SBATCH_REQUEUE="1",
        SLURM_CPU_BIND="x",
        PMIX_RANK="0",
        TZ="Asia/Tokyo",
        LC_ALL="fr_FR",
        NCCL_DEBUG="INFO",
    ).submit(["--parsable"])
    _arguments, environ = programs.calls("sbatch")[0]
    assert not [name for name in environ if name.startswith(("SBATCH_", "SLURM_", "PMI"))]
    assert (environ["TZ"], environ["LC_ALL"], environ["NCCL_DEBUG"]) == ("Asia/Tokyo", "fr_FR", "INFO")


def test_sbatch_gets_no_zone_and_no_language_that_the_user_did_not_set(programs: FakePrograms) -> None:
    programs.put("sbatch", "echo 5")
    client(programs).submit(["--parsable", "/work dir/job.sbatch"])
    arguments, environ = programs.calls("sbatch")[0]
    assert arguments == ["--parsable", "/work dir/job.sbatch"]
    assert not {"TZ", "LC_ALL", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN"} & set(environ)


@pytest.mark.parametrize(
    ("body", "job", "cluster", "warnings"),
    [
        ("echo 123", 123, None, ""),
        ("echo '46;sandbox'", 46, "sandbox", ""),
        ("echo Welcome; echo; echo 123", 123, None, ""),
        ("echo 'Submitted batch job 123 on cluster clu'", 123, "clu", ""),
        ("echo 7; echo 'sbatch: you have 3 GPU hours left' >&2", 7, None, "sbatch: you have 3 GPU hours left"),
        ("echo 99 >&2; echo 7", 7, None, "99"),
    ],
)
def test_the_job_id_is_found_in_standard_output(
    programs: FakePrograms, body: str, job: int, cluster: str | None, warnings: str
) -> None:
    programs.put("sbatch", body)
    submitted = client(programs).submit(["--parsable"])
    assert (submitted.array_job_id, submitted.cluster, submitted.warnings) == (job, cluster, warnings)


@pytest.mark.parametrize(
    "body",
    [
        "true",
        "echo 'job submitted, have a nice day'",
        "echo 123 >&2",
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
        "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
        "echo 123; echo 'post-submit hook failed' >&2; exit 1",
        "exit 1",
        "echo 'sbatch: error: oh' >&2; kill -9 $$",
    ],
)
def test_a_submit_that_may_have_worked_is_ambiguous(programs: FakePrograms, body: str) -> None:
    programs.put("sbatch", body)
    with pytest.raises(SlurmAmbiguous, match="submit a job"):
        client(programs).submit(["--parsable"])


def test_a_submit_that_hangs_is_ambiguous(programs: FakePrograms) -> None:
    programs.put("sbatch", HANG)
    with pytest.raises(SlurmAmbiguous, match="did not end in 3 s"):
        impatient(programs).submit(["--parsable"])


def test_a_refused_submit_says_what_sbatch_said(programs: FakePrograms) -> None:
    programs.put(
        "sbatch",
        "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; echo 'sbatch: error: Batch job submission failed:"
        " Job violates accounting/QOS policy' >&2; exit 1",
    )
    with pytest.raises(SlurmError, match=r"AssocMaxSubmitJobLimit; .*violates") as caught:
        client(programs).submit(["--parsable"])
    assert not isinstance(caught.value, SlurmAmbiguous)


def test_writes_say_when_a_program_is_not_there(programs: FakePrograms) -> None:
    there = client(programs)
    for write in (lambda: there.submit([]), lambda: there.cancel(["1"]), lambda: there.hold(["1"])):
        with pytest.raises(SlurmUnavailable):
            write()


def test_ids_are_cancelled_in_one_call_and_long_lists_in_several(programs: FakePrograms) -> None:
    programs.put("scancel", "true")
    specs = [f"7_{index}" for index in range(450)]
    client(programs).cancel(["1", "2_3"])
    client(programs).cancel(specs, pending_only=True)
    calls = [arguments for arguments, _environ in programs.calls("scancel")]
    assert calls[0] == ["1", "2_3"]
    assert [len(call) for call in calls[1:]] == [201, 201, 51]
    assert [call[0] for call in calls[1:]] == ["--state=PENDING"] * 3
    assert [spec for call in calls[1:] for spec in call[1:]] == specs


def test_nothing_to_cancel_calls_nothing(programs: FakePrograms) -> None:
    programs.put("scancel", "true")
    client(programs).cancel([])
    assert programs.calls("scancel") == []


def test_a_job_that_is_gone_is_no_error(programs: FakePrograms) -> None:
    programs.put("scancel", "echo 'scancel: error: Kill job error on job id 9: Invalid job id specified' >&2; exit 1")
    programs.put("scontrol", "echo '5_0-2: Job has already finished' >&2; exit 1")
    client(programs).cancel(["9"])
    client(programs).hold(["5"])
    client(programs).release(["5"])
    client(programs).nudge("9_0")


def test_a_refused_cancel_is_an_error_that_stops_no_other(programs: FakePrograms) -> None:
    programs.put(
        "scancel",
        "echo 'scancel: error: Kill job error on job id 1: Access/permission denied' >&2;"
        "echo 'scancel: error: Kill job error on job id 2: Invalid job id specified' >&2; exit 210",
    )
    with pytest.raises(SlurmError, match="Access/permission denied") as caught:
        client(programs).cancel([str(job) for job in range(1, 300)])
    assert not isinstance(caught.value, SlurmAmbiguous)
    assert "Invalid job id" not in str(caught.value)
    assert len(programs.calls("scancel")) == 2


@pytest.mark.parametrize(
    "body",
    [
        "exit 8",
        "echo 'scancel: error: Kill job error: Unable to contact slurm controller (connect failure)' >&2; exit 8",
        "kill -9 $$",
    ],
)
def test_a_cancel_without_an_answer_is_ambiguous_and_not_repeated(programs: FakePrograms, body: str) -> None:
    programs.put("scancel", body)
    with pytest.raises(SlurmAmbiguous, match="cancel jobs"):
        client(programs).cancel([str(job) for job in range(1, 300)])
    assert len(programs.calls("scancel")) == 1


def test_a_cancel_that_hangs_is_ambiguous(programs: FakePrograms) -> None:
    programs.put("scancel", HANG)
    with pytest.raises(SlurmAmbiguous, match="did not end in 3 s"):
        impatient(programs).cancel(["1"])


def test_a_nudge_is_a_harmless_signal_to_the_batch_shell(programs: FakePrograms) -> None:
    programs.put("scancel", "true")
    client(programs).nudge("7_0")
    assert [arguments for arguments, _environ in programs.calls("scancel")] == [["--batch", "--signal=CONT", "7_0"]]


@pytest.mark.parametrize("body", ["exit 1", HANG])
def test_a_nudge_that_fails_is_no_error(programs: FakePrograms, body: str) -> None:
    programs.put("scancel", body)
    impatient(programs).nudge("7_0")


def test_a_nudge_without_scancel_is_no_error(programs: FakePrograms) -> None:
    client(programs).nudge("7_0")


def test_holds_name_ids_and_nothing_else(programs: FakePrograms) -> None:
    programs.put("scontrol", "true")
    client(programs).hold(["7", "8"])
    client(programs).release(["7"])
    assert [arguments for arguments, _environ in programs.calls("scontrol")] == [["hold", "7,8"], ["release", "7"]]


@pytest.mark.parametrize(
    "body",
    [
        "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        "echo 'Job 9_3 not found'; exit 1",
        "echo 'Job 9_3 not found' >&2; exit 1",
    ],
)
def test_a_job_that_slurm_does_not_know_is_none(programs: FakePrograms, body: str) -> None:
    programs.put("scontrol", body)
    assert client(programs).show_job(9) is None


@pytest.mark.parametrize(
    "body", ["echo 'Unable to contact slurm controller' >&2; exit 1", "true", "echo hello", "echo 'JobId=9 hello'"]
)
def test_a_scontrol_that_shows_no_record_is_unobserved_and_not_none(programs: FakePrograms, body: str) -> None:
    programs.put("scontrol", body)
    assert isinstance(client(programs).show_job(9), Unobserved)


def test_records_of_two_owners_are_not_believed(programs: FakePrograms, tmp_path: Path) -> None:
    text = read_recorded("22.05.8", "odd-names", "scontrol-show-job")
    lines = text.splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if line.startswith("JobId=5 "))
    shown = tmp_path / "shown"
    # The second line of the name is made to claim the same id.
    shown.write_text(lines[at] + lines[at + 1].replace("JobId=9", "JobId=5"))
    programs.put("scontrol", f"cat '{shown}'")
    answer = client(programs).show_job(5)
    assert isinstance(answer, Unobserved)
    assert "owner" in answer.reason


def test_only_the_records_asked_for_are_returned(programs: FakePrograms, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.write_text(read_recorded("24.11.5", "running", "scontrol-show-job"))
    programs.put("scontrol", f"cat '{shown}'")
    details = client(programs).show_job(2)
    assert details is not None
    assert not isinstance(details, Unobserved)
    assert {detail.array_job_id for detail in details} == {2}


SACCT_ROWS = """\
for argument; do case $argument in --delimiter=*) d=${argument#--delimiter=};; esac; done
row() {
  printf "%s$d%s${d}alice$d%s$d%s${d}Unknown${d}Unknown$d%s${d}" "$1" "$2" "$3" "$4" "$5"
  printf "n1${d}/w d${d}nvrx-chain:c0ffee/1${d}chain\\n"
}
"""


def test_accounting_drops_what_was_not_asked_for_and_jobs_from_before(programs: FakePrograms) -> None:
    programs.put(
        "sacct",
        f"{SACCT_ROWS} row 14_0 15 FAILED 2026-11-30T01:00:00 93:0; row 14_0.0 15.0 FAILED 2026-11-30T01:00:00 93:0;"
        "row 4_2 14 FAILED 2026-11-30T01:00:00 1:0; row 14_1 16 COMPLETED 2025-01-01T00:00:00 0:0",
    )
    since = datetime(2026, 11, 30, 1, 0, 1, tzinfo=timezone.utc)
    rows = client(programs).accounting([14], since)
    assert not isinstance(rows, Unobserved)
    assert [(row.array_job_id, row.array_task_id, row.exit_code, row.step_exit_codes) for row in rows] == [
        (14, 0, 93, (93,))
    ]
    assert [(row.work_dir, row.comment, row.name) for row in rows] == [("/w d", "nvrx-chain:c0ffee/1", "chain")]
    assert client(programs).accounting([14], since + timedelta(hours=1)) == ()


def test_accounting_that_is_disabled_or_down_is_unobserved(programs: FakePrograms) -> None:
    text = read_recorded("no-accounting/22.05.8", "running", "sacct.stderr").strip()
    programs.put("sacct", f"echo '{text}' >&2; exit 1")
    answer = client(programs).accounting([14], NEVER)
    assert isinstance(answer, Unobserved)
    assert "accounting storage is disabled" in answer.reason


def test_accounting_that_answers_with_nothing_is_empty(programs: FakePrograms) -> None:
    programs.put("sacct", "true")
    assert client(programs).accounting([14], NEVER) == ()


def test_a_node_name_that_is_none_is_not_passed_on(programs: FakePrograms) -> None:
    programs.put("sinfo", "true")
    assert isinstance(client(programs).nodes(["n1", "--help"]), Unobserved)
    assert programs.calls("sinfo") == []


def test_partitions_are_told_even_when_sinfo_does_not_say_what_gpus_they_have(
    programs: FakePrograms, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    shown.write_text(read_recorded("22.05.8", "odd-names", "scontrol-show-partition"))
    programs.put("scontrol", f"cat '{shown}'")
    programs.put("sinfo", "exit 1")
    partitions = client(programs).partitions()
    assert not isinstance(partitions, Unobserved)
    assert [(partition.name, partition.gpus_per_node) for partition in partitions] == [("main", None), ("hid", None)]


def test_a_configuration_that_cannot_be_read_is_unobserved(programs: FakePrograms) -> None:
    programs.put("scontrol", "echo hello")
    assert isinstance(client(programs).config(), Unobserved)


def test_other_programs_are_run_where_they_are_named(programs: FakePrograms, tmp_path: Path) -> None:
    site = FakePrograms(tmp_path / "site")
    path = site.put("squeue-site", f"{ROW} row 9 9 0 RUNNING alice x")
    there = CommandLineClient(clock=FakeClock(), environ=programs.environ, programs={"squeue": str(path)})
    assert not isinstance(there.queue(), Unobserved)
    assert len(site.calls("squeue-site")) == 1


def test_a_program_that_slurm_does_not_have_is_refused(programs: FakePrograms) -> None:
    with pytest.raises(ValueError, match="qstat"):
        CommandLineClient(clock=FakeClock(), environ={}, programs={"qstat": "/bin/qstat"})


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("printf '#!/bin/bash\\nsrun x'", "#!/bin/bash\nsrun x"),
        ("echo 'job script retrieval failed: Invalid job id specified' >&2; exit 1", None),
    ],
)
def test_a_batch_script_is_shown_or_is_not_there(body: str, answer: str | None, programs: FakePrograms) -> None:
    programs.put("scontrol", body)
    assert client(programs).batch_script(9) == answer


@pytest.mark.parametrize(
    "body",
    ["echo 'job script retrieval failed: Invalid user id' >&2", "exit 1", "true", "echo 'Access/permission denied'"],
)
def test_a_batch_script_that_is_refused_is_unobserved_even_with_exit_code_0(body: str, programs: FakePrograms) -> None:
    programs.put("scontrol", body)
    assert isinstance(client(programs).batch_script(9), Unobserved)
