"""A controller that does not answer, and a scancel whose yes means nothing: only a later look at the queue counts."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.clock import parse_time
from nvrx_chain.records.control import LauncherExit
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.workloads.events import EventKind
from tests.integration import timeline
from tests.integration.case_tools import PAIR, SECONDS, beat, run_bare, tell, wait_for_ranks, wait_for_row, why_left
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.controller import controller_away, wait_for_saved_jobs
from tests.integration.harness import COMMAND, Chain

AT_ONCE = timedelta(seconds=5)
"""Between a launcher's end and the closed file; a controller that is asked in between costs 10 s and more."""


def closed_within(chain: Chain, job: int) -> timedelta:
    """From the end of task 0's launcher to the closed file, by the times in both."""
    (path,) = chain.generation(job).control.glob("launcher_exit.0.*.json")
    record, closed = read_record(path, LauncherExit), chain.closed(job)
    assert isinstance(record, LauncherExit)
    ended_at, closed_at = parse_time(record.ended_at), parse_time(closed.closed_at if closed else None)
    assert ended_at is not None
    assert closed_at is not None
    return closed_at - ended_at


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["frozen", "killed"])
def test_a_training_that_ends_while_the_controller_is_away_is_closed_at_once_and_settled_later(
    cluster: Cluster, submit: SubmitChain, kill: bool
) -> None:
    chain = submit(beat("--until-told"), options=["--complete-on-exit-zero"])
    first, *others = chain.jobs
    # An srun that starts meanwhile would fail for lack of a controller, which is not what is tried here.
    wait_for_ranks(chain, first)
    if kill:
        wait_for_saved_jobs(cluster, first)
    with controller_away(cluster, kill=kill):
        assert chain.closed(first) is None
        tell(chain)
        assert chain.wait_for_outcome(first, seconds=SECONDS) is Outcome.COMPLETED
        assert closed_within(chain, first) < AT_ONCE
        assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
        # Its peers leave without the controller.
        wait_for(lambda: all(why_left(chain, first, task) for task in (1, 2)), SECONDS, "the peers to leave")
    chain.wait_until_gone(seconds=SECONDS)
    assert {row.state for job in others for row in chain.rows(job)} == {"CANCELLED"}
    assert chain.started_jobs() == (first,)
    assert "teardown verified" in chain.task_log(first, 0)


@pytest.mark.slow
def test_a_generation_that_fails_while_the_controller_is_away_hands_off_when_it_is_back(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat("--ends=0:told:1", "--ends-once"))
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    wait_for_ranks(chain, first)
    with controller_away(cluster):
        tell(chain)
        assert chain.wait_for_outcome(first, seconds=SECONDS) is Outcome.FAILED
        assert closed_within(chain, first) < AT_ONCE
    chain.wait_for_step(second)
    chain.assert_no_overlap()
    assert {row.state for row in chain.live_rows(third)} == {"PENDING"}
    assert not chain.live_rows(first)


@pytest.mark.slow
def test_a_controller_that_is_away_for_a_while_does_not_disturb_the_training(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat(), shape=PAIR, options=["--threshold=self_check=3"])
    first, *others = chain.jobs
    chain.wait_for_training(first)
    wait_for_ranks(chain, first)
    with controller_away(cluster):
        step = timeline.steps(chain.events(first))[-1]
        # Through several of task 0's own looks at the queue, each of which gets no answer.
        last = chain.wait_for_step(first, after=step.unix, steps=300, seconds=2 * SECONDS)
    chain.wait_for_step(first, after=last.unix, steps=10)
    assert chain.closed(first) is None
    assert len([event for event in chain.events(first) if event.event is EventKind.START]) == PAIR.train
    assert {row.state for job in others for row in chain.rows(job)} == {"PENDING"}


@pytest.mark.slow
def test_case_62_what_scancel_says_when_nothing_happened(cluster: Cluster, tmp_path: Path) -> None:
    """The trap itself: a 0 that cancelled nothing."""
    job = run_bare(cluster, tmp_path, "sleep 600\n", "--array=0-1", "--job-name=case62")
    wait_for(lambda: sum(row.job == job and row.state == "RUNNING" for row in cluster.queue()) == 2, SECONDS, "both")
    assert cluster.run(["scancel", "--state=PENDING", str(job)], check=False).returncode == 0
    assert cluster.run(["scancel", "--name=no-such-job"], check=False).returncode == 0
    assert sum(row.job == job and row.state == "RUNNING" for row in cluster.queue()) == 2
    with controller_away(cluster, kill=False):
        assert cluster.run(["scancel", str(job)], check=False).returncode != 0
    cluster.cancel(job)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["frozen", "killed"])
def test_case_62_cancel_reports_what_the_queue_shows_and_not_what_scancel_said(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path, kill: bool
) -> None:
    chain = submit(beat())
    first, *others = chain.jobs
    chain.wait_for_training(first)
    wait_for_ranks(chain, first)
    # Same name, same user: only the comment and the submit time tell it from the chain.
    namesake = run_bare(cluster, tmp_path / "namesake", "sleep 600\n", f"--job-name={chain.name}")
    wait_for(lambda: any(row.job == namesake and row.state == "RUNNING" for row in cluster.queue()), SECONDS, "it")
    if kill:
        wait_for_saved_jobs(cluster, namesake)
    with controller_away(cluster, kill=kill):
        report, code = cancel(chain, "--timeout=3")
        assert code == 1
        assert report["no_answer"]
        assert not report["gone"]
        assert chain.wait_for_verdict(seconds=1) is Verdict.CANCELLED
    report, code = cancel(chain)
    assert (code, report["still_there"], report["no_answer"]) == (0, {}, None)
    assert set(others) <= set(report["asked"])
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.started_jobs() == (first,)
    assert state_of(cluster, namesake) == "RUNNING", "a job of somebody else was cancelled"
    # Nothing is left to ask for, and saying so is no failure.
    report, code = cancel(chain)
    assert (code, report["asked"]) == (0, [])
    cluster.cancel(namesake)


def cancel(chain: Chain, *words: str) -> tuple[dict[str, Any], int]:
    """`nvrx-chain cancel`: what it reports, and its exit code."""
    argv = [COMMAND, "cancel", f"--run-dir={chain.run_dir}", "--yes", "--json", *words]
    done = chain.cluster.run(argv, check=False)
    return json.loads(done.stdout), done.returncode


def state_of(cluster: Cluster, job: int) -> str:
    """The state of a job that is no array."""
    return next(row.state for row in cluster.queue() if row.job == job)


@pytest.mark.slow
def test_case_62_a_generation_with_no_pending_task_left_ends_without_touching_its_peers(
    cluster: Cluster, submit: SubmitChain
) -> None:
    """`scancel --state=PENDING` of running tasks only: all that a task 0 without spares could ask for when it fails."""
    chain = submit(beat("--ends=0:3:1", "--ends-once"), shape=PAIR)
    first, second, _ = chain.jobs
    chain.wait_for_step(second, seconds=2 * SECONDS)
    assert wait_for_row(chain, first, 1, "COMPLETED", "FAILED", "CANCELLED").state == "COMPLETED"
    log = chain.task_log(first, 0)
    assert "teardown verified" in log
    assert "cancelling" not in log
