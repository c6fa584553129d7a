"""A chain whose last generation trains goes on with one that is queued meanwhile, held or not."""

from __future__ import annotations

import json
from dataclasses import replace

from nvrx_chain.records.outcome import Outcome
from tests.integration.case_tools import PAIR, SECONDS, beat, environment_of, starts
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, Chain


def start(submit: SubmitChain) -> Chain:
    """A chain of one generation that trains and has a checkpoint."""
    chain = submit(beat(), shape=PAIR, depth=1)
    chain.wait_for_training(chain.jobs[0], seconds=SECONDS)
    return chain


def extend(chain: Chain) -> Chain:
    """The chain with the generation that `nvrx-chain extend` queues."""
    argv = [COMMAND, "extend", f"--run-dir={chain.run_dir}", "--by=1", "--json"]
    answer = json.loads(chain.cluster.run(argv, environ={"EXTENDED_IN": "a shell & #1"}).stdout)
    assert answer["sequences"] == [2]
    return replace(chain, jobs=(*chain.jobs, *answer["array_job_ids"]))


def end(chain: Chain) -> None:
    """The submit fixture knows nothing of the second generation."""
    chain.cli("cancel", "--yes")
    chain.wait_until_gone(seconds=SECONDS)


def test_a_generation_that_was_queued_later_trains_after_the_last_one_of_the_submit(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = start(submit)
    shown = chain.cli("extend", "--by=1", "--dry-run")
    assert "nvrx-chain:" in shown
    assert not any(row.job != chain.jobs[0] for row in cluster.live_rows()), "the dry run queued something"
    chain = extend(chain)
    first, second = chain.jobs
    assert {row.state for row in chain.live_rows(second)} == {"PENDING"}
    cluster.cancel(first)
    chain.wait_for_step(second, seconds=SECONDS)
    assert chain.wait_for_outcome(first, seconds=SECONDS) is Outcome.TERMINATED
    assert chain.verdict() is None, "the chain was taken for exhausted"
    assert starts(chain, second)[0].iteration > 0, "it did not resume"
    assert environment_of(chain, second, 0)["EXTENDED_IN"] == "a shell & #1"
    assert "EXTENDED_IN" not in environment_of(chain, first, 0)
    chain.assert_no_overlap()
    end(chain)


def test_a_generation_that_was_queued_while_the_chain_was_held_waits_for_the_release(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = start(submit)
    chain.cli("hold")
    chain = extend(chain)
    first, second = chain.jobs
    wait_for(lambda: _is_held(chain, second), SECONDS, f"generation {second} to be shown as held")
    cluster.cancel(first)
    wait_for(lambda: not chain.live_rows(first), SECONDS, "the first generation to leave")
    assert _is_held(chain, second)
    chain.cli("release")
    chain.wait_for_step(second, seconds=SECONDS)
    assert chain.started_jobs() == (first, second)
    end(chain)


def _is_held(chain: Chain, job: int) -> bool:
    rows = chain.live_rows(job)
    return bool(rows) and all(row.is_pending and row.reason.startswith("JobHeld") for row in rows)
