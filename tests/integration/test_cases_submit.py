"""Submitting where site, user and network do their worst: the chain in the queue is the one that was asked for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvrx_chain.records.files import read_record
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import SubmissionId
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.integration.case_tools import (
    PAIR,
    SECONDS,
    SMALL,
    beat,
    calls_of,
    chain_of,
    environment_of,
    exit_codes,
    field_of,
    put_fake,
    run_bare,
    run_submit,
    submit_argv,
    wait_for_end,
    wait_for_row,
    wait_for_text,
)
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, NASTY_NAME, Chain, Shape

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
REJECTED = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"


def queued(cluster: Cluster, chain_id: str) -> dict[int, int]:
    """Live array jobs of a chain and their place in it, by the comment that Slurm shows."""
    out = cluster.run(["squeue", "-h", "-r", "-o", "%F|%k"]).stdout
    rows = {tuple(line.split("|")) for line in out.splitlines() if f"|nvrx-chain:{chain_id}/" in line}
    return {int(job): int(comment.rpartition("/")[2]) for job, comment in rows}


def assert_exactly(chain: Chain, depth: int) -> None:
    """The queue has the chain's generations, each once, under the ids that were printed and recorded."""
    assert len(chain.jobs) == depth
    assert queued(chain.cluster, chain.chain_id) == {job: place for place, job in enumerate(chain.jobs, start=1)}
    assert tuple(submission(chain, place).array_job_id for place in range(1, depth + 1)) == chain.jobs


def submission(chain: Chain, place: int) -> SubmissionId:
    record = read_record(RunDirectory(chain.run_dir).submission_id(place), SubmissionId)
    assert isinstance(record, SubmissionId), record
    return record


@pytest.fixture
def run_dir(tmp_path: Path, cluster: Cluster) -> Path:
    """A run directory for tests that type the command themselves; what is queued there is cancelled at the end."""
    return tmp_path / NASTY_NAME


@pytest.fixture(autouse=True)
def _cancel_everything(cluster: Cluster) -> object:
    yield
    cluster.cancel(*{row.job for row in cluster.live_rows()})


# 10, 11: options


def test_case_10_a_variable_of_the_site_changes_nothing_that_a_chain_depends_on(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    poison = {
        "SBATCH_REQUEUE": "1",
        "SBATCH_JOB_NAME": "of-the-site",
        "SBATCH_ARRAY_INX": "0-7",
        "SBATCH_TIMELIMIT": "1",
    }
    bare = run_bare(
        cluster, tmp_path / "bare", "#SBATCH --no-requeue\n#SBATCH --job-name=mine\n", "--hold", environ=poison
    )
    trap = [field_of(cluster, bare, name) for name in ("Requeue", "JobName")]
    assert trap == ["1", "of-the-site"], "the trap does not exist here"
    cluster.cancel(bare)

    argv = submit_argv(run_dir, beat(), PAIR, 3, "--name=mine-10")
    done = run_submit(cluster, argv, environ=poison)
    chain = chain_of(cluster, done, PAIR)
    for job in chain.jobs:
        assert field_of(cluster, job, "Requeue") == "0"
        assert field_of(cluster, job, "JobName") == "mine-10"
        assert field_of(cluster, job, "TimeLimit") == "00:30:00"
    assert {field_of(cluster, job, "ArrayTaskId") for job in chain.jobs[1:]} == {"0-1%2"}
    assert {field_of(cluster, job, "Dependency") for job in chain.jobs[1:]} == {"singleton(unfulfilled)"}
    (note,) = (line for line in done.stderr.splitlines() if "kept from sbatch" in line)
    assert all(name in note for name in poison)


@pytest.mark.slow
def test_case_10_a_task_0_that_slurm_restarts_in_spite_of_everything_refuses(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat(), shape=PAIR)
    first, second, _ = chain.jobs
    chain.wait_for_training(first)
    # An administrator can do what no variable can.
    cluster.run(["scontrol", "update", f"jobid={first}_0", "requeue=1"])
    cluster.run(["scontrol", "requeue", f"{first}_0"])
    # Slurm would start it two minutes later; until then it may keep the next generation waiting.
    wait_for_row(chain, first, 0, "PENDING")
    cluster.run(["scontrol", "update", f"jobid={first}_0", "starttime=now"])
    wait_for_row(chain, first, 0, "FAILED")
    chain.wait_for_step(second)
    assert field_of(cluster, f"{first}_0", "Restarts") == "1", "it was not restarted"
    assert exit_codes(cluster, first)[0] == "76:0"
    assert "refusing to run" in chain.task_log(first, 0)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.TERMINATED
    chain.assert_no_overlap()
    assert 0 in chain.running(second)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["-d", "afterany:999999"],
        ["-dafterany:999999"],
        ["--dependency=afterany:999999"],
        ["--depend=afterany:999999"],
        ["--array=0-4%0"],
        ["-a0-4"],
        ["-Jother"],
        ["--job-name", "other"],
        ["--requeue"],
        ["-N3"],
        ["--wrap=true"],
        ["-QH"],
    ],
    ids="_".join,
)
def test_case_11_an_option_that_would_break_the_chain_is_refused_by_name(
    cluster: Cluster, run_dir: Path, words: list[str]
) -> None:
    argv = submit_argv(run_dir, beat(), PAIR, 2, *(f"--sbatch-arg={word}" for word in words))
    done = run_submit(cluster, argv)
    assert done.returncode == 2, done.stdout
    assert words[0] in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not cluster.live_rows()
    assert not run_dir.exists()


@pytest.mark.slow
def test_case_11_what_the_refused_option_would_have_done(cluster: Cluster, tmp_path: Path) -> None:
    options = ("--hold", "--dependency=singleton", "--job-name=case11")
    bare = run_bare(cluster, tmp_path, "true\n", *options, "-d", "afterany:999999")
    assert "singleton" not in field_of(cluster, bare, "Dependency")


# 17, 18, 19: what sbatch says


def test_case_17_a_generation_that_sbatch_called_timed_out_is_adopted_not_submitted_twice(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    fake = f'if [ $n = 2 ]; then "$real" "$@" >"$own.id"; echo "{TIMED_OUT}" >&2; exit 1; fi\nexec "$real" "$@"\n'
    environ = put_fake(tmp_path, "sbatch", fake, cluster)
    chain = chain_of(cluster, run_submit(cluster, submit_argv(run_dir, beat(), PAIR, 3), environ), PAIR)
    assert calls_of(tmp_path, "sbatch") == 3
    assert chain.jobs[1] == int((tmp_path / "sbatch.id").read_text()), "the fake did not submit the second"
    assert_exactly(chain, 3)
    assert [submission(chain, place).adopted for place in (1, 2, 3)] == [False, True, False]
    chain.wait_for_step(chain.jobs[0])


@pytest.mark.slow
def test_case_17_an_sbatch_that_hangs_after_it_submitted_is_given_up_and_its_job_adopted(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    fake = 'if [ $n = 1 ]; then "$real" "$@" >/dev/null; exec sleep 300; fi\nexec "$real" "$@"\n'
    environ = put_fake(tmp_path, "sbatch", fake, cluster)
    chain = chain_of(cluster, run_submit(cluster, submit_argv(run_dir, beat(), PAIR, 2), environ), PAIR)
    assert calls_of(tmp_path, "sbatch") == 2
    assert_exactly(chain, 2)
    assert submission(chain, 1).adopted


@pytest.mark.slow
def test_case_17_an_sbatch_that_timed_out_and_submitted_nothing_is_tried_again(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    fake = f'if [ $n = 2 ]; then echo "{TIMED_OUT}" >&2; exit 1; fi\nexec "$real" "$@"\n'
    environ = put_fake(tmp_path, "sbatch", fake, cluster)
    chain = chain_of(cluster, run_submit(cluster, submit_argv(run_dir, beat(), PAIR, 2), environ), PAIR)
    assert calls_of(tmp_path, "sbatch") == 3
    assert_exactly(chain, 2)
    assert not submission(chain, 2).adopted


@pytest.mark.slow
def test_case_17_when_the_queue_cannot_be_read_either_the_report_is_partial_and_a_second_call_completes(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    fake = f'if [ $n = 2 ]; then "$real" "$@" >/dev/null; touch "$own.blind"; echo "{TIMED_OUT}" >&2; exit 1; fi\n'
    environ = put_fake(tmp_path, "sbatch", f'{fake}exec "$real" "$@"\n', cluster)
    blind = tmp_path / "sbatch.blind"
    squeue = (
        f'if [ -e "{blind}" ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi\n'
    )
    put_fake(tmp_path, "squeue", f'{squeue}exec "$real" "$@"\n', cluster)
    argv = submit_argv(run_dir, beat(), PAIR, 3)
    done = run_submit(cluster, argv, environ)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert "it may be queued, and squeue does not answer" in line
    assert "queues the rest" in line
    blind.unlink()
    chain = chain_of(cluster, run_submit(cluster, argv, environ), PAIR)
    assert_exactly(chain, 3)
    assert submission(chain, 2).adopted


def reject_third(cluster: Cluster, directory: Path) -> dict[str, str]:
    fake = f'if [ $n = 3 ]; then echo "{REJECTED}" >&2; exit 1; fi\nexec "$real" "$@"\n'
    return put_fake(directory, "sbatch", fake, cluster)


@pytest.mark.slow
def test_case_18_a_rejected_generation_stops_the_submit_and_says_what_is_queued(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    environ = reject_third(cluster, tmp_path)
    argv = submit_argv(run_dir, beat(), PAIR, 4)
    done = run_submit(cluster, argv, environ)
    assert done.returncode == 1
    assert calls_of(tmp_path, "sbatch") == 3, "it went on after the rejection"
    jobs = sorted({row.job for row in cluster.live_rows()})
    assert len(jobs) == 2
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert "Job violates accounting/QOS policy" in line
    assert f"queued: {jobs[0]} {jobs[1]}, of 4 generations with 8 array tasks in all" in line
    assert "--rollback" in line
    # The limit is gone: the same command queues what is missing, and only that.
    chain = chain_of(cluster, run_submit(cluster, argv, environ), PAIR)
    assert chain.jobs[:2] == tuple(jobs)
    assert_exactly(chain, 4)


@pytest.mark.slow
def test_case_18_with_rollback_a_rejected_chain_leaves_nothing_behind(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    environ = reject_third(cluster, tmp_path)
    argv = submit_argv(run_dir, beat(), PAIR, 4, "--rollback")
    before = {row.job for row in cluster.queue()}
    done = run_submit(cluster, argv, environ)
    assert done.returncode == 1
    mine = {row.job for row in cluster.queue()} - before
    assert len(mine) == 2
    assert f"rolled back: cancelled {' '.join(str(job) for job in sorted(mine))}" in done.stderr
    wait_for(lambda: not cluster.live_rows(), SECONDS, "an empty queue")
    # The directory is as it was: the same command starts anew.
    chain = chain_of(cluster, run_submit(cluster, argv, environ), PAIR)
    assert_exactly(chain, 4)
    assert not set(chain.jobs) & mine


@pytest.mark.slow
def test_case_18_the_largest_index_is_checked_against_the_limit_of_the_cluster(cluster: Cluster, run_dir: Path) -> None:
    assert cluster.sandbox.config.max_array_size == 1001
    too_many = Shape(train=1, cold=1001, hot=0)
    done = run_submit(cluster, submit_argv(run_dir, beat(), too_many, 1))
    assert done.returncode == 2
    assert "the largest array index would be 1001, and MaxArraySize of this cluster is 1001" in done.stderr
    assert not cluster.live_rows()
    assert not run_dir.exists()
    most = Shape(train=1, cold=1000, hot=0)
    chain = chain_of(cluster, run_submit(cluster, submit_argv(run_dir, beat(), most, 1)), most)
    assert max(row.task or 0 for row in chain.rows()) == 1000
    cluster.cancel("--state=PENDING", chain.jobs[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "of_cluster"),
    [
        ('echo "$id"', None),
        ('echo "$id;clu"', "clu"),
        ('echo "* news of the site: 17 nodes down"; echo "12345 jobs today"; echo "$id"', None),
        ('echo "Submitted batch job $id on cluster clu"', "clu"),
        ('echo "job 77 notice" >&2; echo "$id"; echo "thank you for using 4711"', None),
    ],
    ids=["bare", "cluster-suffix", "banner", "sentence", "stderr-and-trailer"],
)
def test_case_19_the_job_id_is_found_wherever_the_site_s_sbatch_puts_it(
    cluster: Cluster, run_dir: Path, tmp_path: Path, said: str, of_cluster: str | None
) -> None:
    environ = put_fake(tmp_path, "sbatch", f'id=$("$real" "$@") || exit\n{said}\n', cluster)
    chain = chain_of(cluster, run_submit(cluster, submit_argv(run_dir, beat(), SMALL, 2), environ), SMALL)
    assert calls_of(tmp_path, "sbatch") == 2
    assert_exactly(chain, 2)
    assert {submission(chain, place).cluster for place in (1, 2)} == {of_cluster}


# 20, 43: the environment of the caller


@pytest.mark.slow
def test_case_20_a_chain_submitted_from_inside_a_job_has_nothing_of_that_job(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    poison = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_HINT": "nomultithread",
        "SLURM_NTASKS_PER_CORE": "1",
        "SLURM_EXPORT_ENV": "NONE",
        "SBATCH_EXCLUSIVE": "user",
        "PMI_RANK": "7",
        "PMIX_NAMESPACE": "outer",
        "OF_THE_USER": "kept",
    }
    exports = "".join(f"export {name}={value}\n" for name, value in poison.items())
    argv = submit_argv(run_dir, beat(), PAIR, 2)
    inner = "sbatch --output=/dev/null --wrap='env >inner.env.new && mv inner.env.new inner.env'\n"
    script = f"{exports}{inner}{shlex.join(argv)} >submit.json 2>submit.err || echo failed >submit.json\n"
    outer = run_bare(cluster, tmp_path / "outer", script, "--array=3", "--exclusive")
    wait_for_end(cluster, outer)
    text = (tmp_path / "outer" / "submit.json").read_text()
    assert text.startswith("{"), (tmp_path / "outer" / "submit.err").read_text()
    assert "PMI_RANK=7" in wait_for_text(tmp_path / "outer" / "inner.env"), "the trap does not exist here"
    answer = json.loads(text)
    chain = Chain(cluster, run_dir, answer["chain_id"], answer["name"], tuple(answer["array_job_ids"]), PAIR)
    first = chain.jobs[0]
    chain.wait_for_step(first, steps=2)
    wait_for((run_dir / "environ" / f"{first}.1.json").exists, SECONDS, "both ranks")
    for task in (0, 1):
        seen = environment_of(chain, first, task)
        assert seen["SLURM_ARRAY_TASK_ID"] == str(task)
        assert seen["SLURM_ARRAY_JOB_ID"] == str(first)
        assert seen["SLURM_JOB_NODELIST"] == chain.host_of(first, task)
        assert seen["OF_THE_USER"] == "kept"
        inherited = {name for name, value in poison.items() if seen.get(name) == value} - {"OF_THE_USER"}
        assert not inherited
        assert not [name for name in seen if name.startswith(("PMI", "SBATCH_"))]
    note = (tmp_path / "outer" / "submit.err").read_text()
    assert "SLURM_CPU_BIND" in note
    assert "SLURM_ARRAY_TASK_ID" in note


def hostile_environment(tmp_path: Path) -> dict[str, str]:
    """What makes Slurm's programs lie, for the caller and, through BASH_ENV, for the batch scripts as well."""
    poison = {
        "SQUEUE_STATES": "RUNNING",
        "SQUEUE_PARTITION": "elsewhere",
        "SQUEUE_USERS": "nobody",
        "SQUEUE_FORMAT": "%i",
        "SLURM_TIME_FORMAT": "%s",
        "SCANCEL_USER": "nobody",
        "SCANCEL_NAME": "of-somebody-else",
        "SINFO_FORMAT": "%n",
        "TZ": "Asia/Tokyo",
    }
    profile = tmp_path / "profile.sh"
    profile.write_text("".join(f"export {name}='{value}'\n" for name, value in poison.items()))
    return {**poison, "BASH_ENV": str(profile)}


def assert_it_lies(cluster: Cluster, poison: Mapping[str, str]) -> None:
    """With these variables a plain squeue does not show a job that is there, and a plain scancel cancels nothing."""
    out = cluster.run(["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true"]).stdout
    job = int(out.split(";")[0])
    seen = cluster.run(["squeue", "-h", "-j", str(job)], environ=poison)
    cluster.run(["scancel", str(job)], environ=poison, check=False)
    assert str(job) not in seen.stdout
    assert job in {row.job for row in cluster.live_rows()}, "the trap does not exist here"
    cluster.cancel(job)


@pytest.mark.slow
def test_case_43_variables_that_filter_slurm_s_answers_do_not_reach_a_chain(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    poison = hostile_environment(tmp_path)
    assert_it_lies(cluster, poison)
    argv = submit_argv(run_dir, beat("--until=25"), PAIR, 3, "--complete-on-exit-zero")
    chain = chain_of(cluster, run_submit(cluster, argv, poison), PAIR)
    assert_exactly(chain, 3)
    first = chain.jobs[0]
    chain.wait_for_step(first)
    wait_for((run_dir / "environ" / f"{first}.0.json").exists, SECONDS, "the environment of rank 0")
    assert environment_of(chain, first, 0)["SCANCEL_NAME"] == poison["SCANCEL_NAME"], "it did not reach the job"
    status = json.loads(cluster.run([COMMAND, "status", f"--run-dir={run_dir}", "--json"], environ=poison).stdout)
    assert [generation["array_job_id"] for generation in status["generations"]] == list(chain.jobs)
    # The way out, with scancel as the poison has it: the rest of the chain really is cancelled.
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.started_jobs() == (first,)
    assert "teardown verified" in chain.task_log(first, 0)


@pytest.mark.slow
def test_case_43_cancel_stops_a_chain_under_variables_that_make_scancel_do_nothing(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    poison = hostile_environment(tmp_path)
    assert_it_lies(cluster, poison)
    chain = chain_of(cluster, run_submit(cluster, submit_argv(run_dir, beat(), PAIR, 3), poison), PAIR)
    chain.wait_for_step(chain.jobs[0])
    cluster.run([COMMAND, "cancel", f"--run-dir={run_dir}", "--yes"], environ=poison)
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.wait_for_verdict(seconds=1) is Verdict.CANCELLED
    assert chain.started_jobs() == chain.jobs[:1]
