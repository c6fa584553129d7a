"""Nodes that a chain keeps away from, and extends at the same moment, on a real Slurm."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.case_tools import SECONDS, beat, field_of
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, Chain, Shape

WITH_SPARE = Shape(train=2, hot=0, cold=1)


@pytest.mark.slow
def test_a_generation_starts_beside_the_excluded_nodes(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat(), shape=WITH_SPARE, depth=2)
    first, second = chain.jobs
    chain.wait_for_training(first, seconds=SECONDS)
    used = sorted(chain.running(first).values())
    report = chain.cli("exclude", *used, "--json")
    assert (report["done"], report["not_done"]) == ([first, second], {})
    assert field_of(cluster, second, "ExcNodeList") == f"n[{used[0][1:]}-{used[1][1:]}]"
    extended = chain.cli("extend", "--by=1", "--json")["array_job_ids"][0]
    assert field_of(cluster, extended, "ExcNodeList") == f"n[{used[0][1:]}-{used[1][1:]}]"
    cluster.cancel(first)
    chain.wait_for_step(second, seconds=SECONDS)
    assert not set(chain.running(second).values()) & set(used)
    assert chain.cli("exclude", "--remove", *used, "--json")["nodes"] == {}
    assert field_of(cluster, extended, "ExcNodeList") == "(null)"
    refused = cluster.run([COMMAND, "exclude", f"--run-dir={chain.run_dir}", "n[1-7]"], check=False)
    assert refused.returncode == 2
    assert "1 of 8 nodes would be left" in refused.stderr
    chain.cli("cancel", "--yes")
    wait_for(lambda: not cluster.live_rows(), SECONDS, "everything to leave")


@pytest.mark.slow
def test_extends_in_the_same_moment_queue_each_generation_once(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat(), shape=Shape(train=1, hot=0, cold=0), depth=1)
    argv = [COMMAND, "extend", f"--run-dir={chain.run_dir}", "--by=2", "--json"]

    def extend(_: int) -> list[subprocess.CompletedProcess[str]]:
        tries: list[subprocess.CompletedProcess[str]] = []

        def once() -> bool:
            tries.append(cluster.run(argv, check=False))
            return tries[-1].returncode == 0

        wait_for(once, SECONDS, "an extend to succeed")
        return tries

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(extend, range(4)))
    lost = [done for tries in outcomes for done in tries[:-1]]
    assert all("another submit or extend is at work" in done.stderr for done in lost), lost
    sequences = [number for tries in outcomes for number in json.loads(tries[-1].stdout)["sequences"]]
    jobs = [job for tries in outcomes for job in json.loads(tries[-1].stdout)["array_job_ids"]]
    assert len(set(sequences)) == len(set(jobs))
    known = chain.files.generations()
    assert [one.sequence for one in known] == list(range(1, len(known) + 1))
    assert len(known) == 1 + queued_by(outcomes), "a generation was lost, or queued that nobody asked for"
    on_record = {one.array_job_id: one.sequence for one in known}
    live = {row.job for row in cluster.live_rows()}
    assert live == set(on_record), "the records and the queue differ"
    for job, sequence in on_record.items():
        assert field_of(cluster, job, "Comment") == f"nvrx-chain:{chain.chain_id}/{sequence}"
    end(chain, cluster)


def queued_by(outcomes: list[list[subprocess.CompletedProcess[str]]]) -> int:
    """Generations that these calls say they queued themselves, those of a call that failed half-way included."""
    count = 0
    for tries in outcomes:
        answer = json.loads(tries[-1].stdout)
        count += len(answer["sequences"]) - len(answer["adopted"])
        for lost in tries[:-1]:
            said = lost.stderr.partition("queued: ")[2].partition(",")[0]
            count += 0 if said in ("", "nothing") else len(said.split())
    return count


def end(chain: Chain, cluster: Cluster) -> None:
    chain.cli("cancel", "--yes")
    wait_for(lambda: not cluster.live_rows(), SECONDS, "everything to leave")
