"""Names, directories and markers that point at the wrong job: what a record says counts, not what it looks like."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.records.control import Drained
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.integration.case_tools import (
    PAIR,
    SECONDS,
    beat,
    field_of,
    run_bare,
    run_submit,
    submit_argv,
    tell,
    wait_for_ranks,
)
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, NASTY_NAME, Shape
from tests.integration.stand_ins import shell_launcher

pytestmark = pytest.mark.slow


def state_of(cluster: Cluster, job: int) -> set[str]:
    """The states of a job's tasks."""
    return {row.state for row in cluster.queue() if row.job == job}


def test_case_15_jobs_of_the_same_name_survive_a_chain_that_ends_and_a_second_chain_of_it_is_refused(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    chain = submit(beat("--ends=1:told:93"), shape=PAIR, depth=3, options=["--name=case15"])
    first = chain.jobs[0]
    chain.wait_for_training(first, seconds=SECONDS)
    wait_for_ranks(chain, first)
    # squeue --name takes upper and lower case for the same, so both would wait for each other.
    elsewhere = tmp_path / NASTY_NAME / "another"
    refused = run_submit(cluster, submit_argv(elsewhere, beat(), PAIR, 1, "--name=CASE15"))
    assert refused.returncode == 2
    assert "the name CASE15 is in use" in refused.stderr
    assert {row.job for row in cluster.live_rows()} == set(chain.jobs)
    running = run_bare(cluster, tmp_path / "running", "sleep 600\n", "--job-name=case15")
    waiting = run_bare(cluster, tmp_path / "waiting", "sleep 600\n", "--job-name=case15", "--hold", "--array=0-3")
    wait_for(lambda: state_of(cluster, running) == {"RUNNING"}, SECONDS, "the namesake to run")
    tell(chain)
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.NO_RESTART
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.started_jobs() == (first,)
    assert (state_of(cluster, running), state_of(cluster, waiting)) == ({"RUNNING"}, {"PENDING"})
    # An operator's cancel goes by ids too.
    chain.cli("cancel", "--yes")
    assert (state_of(cluster, running), state_of(cluster, waiting)) == ({"RUNNING"}, {"PENDING"})
    cluster.cancel(running, waiting)


def test_case_21_a_job_leads_to_its_chain_by_its_record_and_not_by_what_its_command_looks_like(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    run_dir = tmp_path / "w d" / "my job.sh a b UserId=nobody(99) JobId=1 JobName=x JobState=FAILED"
    # One that looks like a field which scontrol shows behind it could not be told from one: nothing is left queued.
    unclear = tmp_path / "w d" / "my job.sh a b Command=(null) WorkDir=x"
    refused = run_submit(cluster, submit_argv(unclear, beat(), PAIR, 1))
    assert refused.returncode == 1, refused.stdout
    assert "is not as it was asked for" in refused.stderr
    assert not cluster.live_rows()
    chain = submit(beat("--until-told"), run_dir=run_dir, shape=PAIR, depth=2, options=["--complete-on-exit-zero"])
    first, second = chain.jobs
    chain.wait_for_training(first, seconds=SECONDS)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return cluster.run([COMMAND, *words], cwd=elsewhere, check=False)

    for spec in (str(first), f"{first}_1", str(second), f"{second}_[0-1]"):
        done = ask("status", spec, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["chain_id"] == chain.chain_id, spec
        assert json.loads(done.stdout)["run_directory"] == str(run_dir)
    # Jobs in the chain's directory that are not the chain's: no script, a script of that name, somebody's own comment.
    wrapped = _bare(cluster, run_dir, "--wrap=sleep 600")
    assert field_of(cluster, wrapped, "Command") == "(null)"
    commented = _bare(cluster, run_dir, "--comment=nvrx-chain:0/1", "--wrap=sleep 600")
    strangers = [wrapped, commented]
    wait_for(lambda: all(state_of(cluster, job) == {"RUNNING"} for job in strangers), SECONDS, "both to run")
    for job in strangers:
        for words in (("status", str(job)), ("cancel", str(job), "--yes", "--timeout=2"), ("hold", str(job))):
            refused = ask(*words)
            assert refused.returncode != 0, words
            assert f"finding the chain of job {job}" in refused.stderr, refused.stderr
    assert {state_of(cluster, job) == {"RUNNING"} for job in strangers} == {True}
    assert chain.verdict() is None
    assert chain.hold() is None
    # The order by one of its ids, from anywhere, ends this chain and nothing else in its directory.
    assert ask("cancel", f"{second}_1", "--yes").returncode == 0
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.wait_for_verdict(seconds=1) is Verdict.CANCELLED
    assert {state_of(cluster, job) == {"RUNNING"} for job in strangers} == {True}
    cluster.cancel(*strangers)


def _bare(cluster: Cluster, directory: Path, *words: str) -> int:
    argv = ["sbatch", "--parsable", f"--chdir={directory}", "--output=/dev/null", "--job-name=stranger", *words]
    return int(cluster.run(argv).stdout.split(";")[0])


def test_case_37_a_stale_drain_marker_in_the_directory_of_a_replacement_is_not_believed(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    launcher = shell_launcher(tmp_path / "launcher.sh", "exec sleep 1000")
    options = ["--drain-poll=2", "--on-drain=restart"]
    chain = submit(launcher, shape=Shape(train=2, hot=1, cold=1), depth=2, options=options)
    first, second = chain.jobs
    wait_for(lambda: (record := chain.record(first)) and record.launched_at, SECONDS, "the launch")
    host = chain.host_of(first, 1)
    cluster.sandbox.drain_node(host)
    marker = chain.generation(first).drained(1)

    def is_excluded() -> bool:
        found = read_record(marker, Drained)
        return isinstance(found, Drained) and found.is_active and found.excluded

    wait_for(is_excluded, SECONDS, "task 1 to be excluded")
    stale = json.loads(marker.read_text())
    # As if the state of the dead generation had been kept for the next one, once as it is and once under its name.
    for task, job in ((1, second), (2, first)):
        _plant(chain.generation(second).drained(task), {**stale, "array_job_id": job, "task": task})
    cluster.cancel(f"{first}_0")
    assert chain.wait_for_outcome(first, seconds=SECONDS) is Outcome.TERMINATED
    wait_for(lambda: (record := chain.record(second)) and record.launched_at, SECONDS, "the replacement to launch")
    wait_for(lambda: "marker is not believed" in chain.task_log(second, 1), SECONDS, "task 1 to look at the marker")
    assert set(chain.running(second)) == {0, 1, 2}
    assert host not in chain.running(second).values()
    assert chain.closed(second) is None
    assert not list(chain.generation(second).control.glob("launcher_exit.*")), "a launcher was stopped"


def _plant(path: Path, marker: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".planted")
    temporary.write_text(json.dumps(marker))
    os.replace(temporary, path)
