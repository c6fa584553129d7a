"""`cancel --after-current` on a real Slurm: what runs trains to its end, nothing follows it."""

from __future__ import annotations

import pytest

from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.sandbox import BatchScope
from tests.integration.case_tools import PAIR, SECONDS, beat, put_fake, tell
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, Shape

WITH_SPARE = Shape(train=2, hot=0, cold=1)


@pytest.mark.slow
def test_the_running_generation_trains_on_keeps_its_spare_and_is_the_last(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat("--ends=0:told:1", "--ends=1:told:1"), shape=WITH_SPARE, depth=3)
    first = chain.jobs[0]
    chain.wait_for_training(first, seconds=SECONDS)
    report = chain.cli("cancel", "--after-current", "--yes", "--reason=the budget is spent", "--json")
    assert (report["ending"]["array_job_id"], report["gone"]) == (first, list(chain.jobs[1:]))
    assert {row.job for row in chain.live_rows()} == {first}
    assert sorted(row.state for row in chain.live_rows(first)) == ["PENDING", "RUNNING", "RUNNING"]
    assert chain.cli("status", "--json")["state"] == "ending"
    before = chain.iteration() or 0
    wait_for(lambda: (chain.iteration() or 0) > before, SECONDS, "training to go on after the order")
    refused = cluster.run([COMMAND, "extend", f"--run-dir={chain.run_dir}", "--by=1"], check=False)
    assert refused.returncode == 1
    assert "is the last" in refused.stderr
    assert chain.cli("cancel", "--after-current", "--yes", "--json")["decided_now"] is False
    tell(chain)
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.CANCELLED
    verdict = chain.verdict()
    assert verdict is not None
    assert verdict.why == "the budget is spent"
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.wait_for_outcome(first, seconds=SECONDS) is Outcome.FAILED
    assert chain.started_jobs() == (first,)


@pytest.mark.slow
def test_a_queued_generation_that_could_not_be_cancelled_starts_and_leaves(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat(), shape=PAIR, depth=2)
    first, second = chain.jobs
    chain.wait_for_training(first, seconds=SECONDS)
    argv = [COMMAND, "cancel", "--after-current", "--yes", "--timeout=2", f"--run-dir={chain.run_dir}"]
    # No scancel reaches Slurm: the queued generation stays.
    environ = put_fake(chain.run_dir.parent / "fake", "scancel", "exit 0\n", cluster)
    assert cluster.run(argv, environ=environ, check=False).returncode == 1
    assert {row.job for row in chain.live_rows()} == {first, second}
    # Task 0, which would clear the queue, dies without a word; its peer closes the generation.
    chain.kill_task_0(first, BatchScope.WHOLE_STEP)
    chain.wait_until_gone(seconds=2 * SECONDS)
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.CANCELLED
    assert chain.started_jobs() == (first, second)
    assert all(event.array_job_id == first for event in chain.events()), "the second one trained"
