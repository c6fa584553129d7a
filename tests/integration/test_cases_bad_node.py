"""One bad node eats generation after generation: `exclude --bad-nodes` finds it, and the next one trains elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from nvrx_chain.records.outcome import Outcome
from nvrx_chain.sandbox import FaultReport
from tests.integration.case_tools import PAIR, SECONDS, beat, field_of, wait_for_ranks
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, Chain

pytestmark = pytest.mark.slow


@contextmanager
def weighed(cluster: Cluster) -> Iterator[Sequence[str]]:
    """The names of the nodes, which may be weighed meanwhile: Slurm takes the lightest one that is free."""
    try:
        yield cluster.sandbox.node_names
    finally:
        weigh(cluster, dict.fromkeys(cluster.sandbox.node_names, 1))


def weigh(cluster: Cluster, weights: Mapping[str, int]) -> None:
    for node, weight in weights.items():
        cluster.run(["scontrol", "update", f"nodename={node}", f"weight={weight}"])


def kill_launcher_of(chain: Chain, job: int, task: int) -> FaultReport:
    """SIGKILL of the rank of a task, which is its launcher too; that this is on record is waited for."""
    fault = chain.kill_rank(job, task)
    control = chain.generation(job).control
    wait_for(lambda: list(control.glob(f"launcher_exit.{task}.*.json")), SECONDS, f"the end of task {task} of {job}")
    return fault


def lose_two_tasks_on_one_node(cluster: Cluster, chain: Chain) -> str:
    """Task 1 of the first generation and task 0 of the second one die on the same node, which is returned.

    The chain is held then: what comes next is the operator's to say.
    """
    first, second = chain.jobs[:2]
    chain.wait_for_training(first, seconds=SECONDS)
    wait_for_ranks(chain, first)
    bad = chain.host_of(first, 1)
    others = [node for node in cluster.sandbox.node_names if node != bad]
    weigh(cluster, {bad: 1, **dict.fromkeys(others, 10)})
    kill_launcher_of(chain, first, 1)
    # While it completes there, the next generation would start elsewhere.
    wait_for(lambda: cluster.node_states()[bad] == "idle", SECONDS, f"{bad} to be free")
    # The rank of task 0 does not miss the other one, as a real one would: the operator ends the generation.
    cluster.cancel(f"{first}_0")
    chain.wait_for_step(second, seconds=SECONDS)
    wait_for_ranks(chain, second)
    assert chain.host_of(second, 0) == bad, "the second death would not be on the node of the first one"
    nothing = chain.cli("exclude", "--bad-nodes", "--yes", "--json")
    assert (nothing["nodes"].get(bad), nothing["added"]) == (None, []), "one death is no bad node"
    chain.cli("hold")
    kill_launcher_of(chain, second, 0)
    assert chain.wait_for_outcome(second, seconds=SECONDS) is Outcome.FAILED
    wait_for(lambda: not chain.live_rows(second), SECONDS, "the second generation to leave")
    return bad


def test_case_39_a_node_on_which_two_generations_died_is_found_and_the_next_one_runs_elsewhere(
    cluster: Cluster, submit: SubmitChain
) -> None:
    with weighed(cluster):
        chain = submit(beat(), shape=PAIR, depth=4, options=["--threshold=brake=1"])
        first, second, third, fourth = chain.jobs
        bad = lose_two_tasks_on_one_node(cluster, chain)
        words = [COMMAND, "exclude", f"--run-dir={chain.run_dir}", "--bad-nodes"]
        asked = cluster.run(words, check=False)
        assert asked.returncode == 2, "nobody was there to be asked"
        assert f"{first}_1: its launcher ended with 137" in asked.stderr
        assert f"{second}_0: its launcher ended with 137" in asked.stderr
        assert field_of(cluster, third, "ExcNodeList") == "(null)"
        report = chain.cli("exclude", "--bad-nodes", "--yes", "--json")
        assert (report["added"], report["done"], report["not_done"]) == ([bad], [third, fourth], {})
        assert report["nodes"] == {bad: f"tasks {first}_1 {second}_0 died there"}
        assert [field_of(cluster, job, "ExcNodeList") for job in (third, fourth)] == [bad, bad]
        # It is idle and still the one that Slurm would take first.
        assert cluster.node_states()[bad] == "idle"
        chain.cli("release")
        chain.wait_for_step(third, seconds=SECONDS)
        wait_for_ranks(chain, third)
        assert len(chain.running(third)) == PAIR.train
        assert bad not in chain.running(third).values()
        assert bad not in chain.rank_hosts(third).values()
        chain.assert_no_overlap()


def test_case_39_a_bad_node_stays_when_a_generation_would_not_fit_without_it(
    cluster: Cluster, submit: SubmitChain
) -> None:
    with weighed(cluster) as names:
        spared = ",".join(names[2:])
        chain = submit(beat(), shape=PAIR, depth=3, options=["--threshold=brake=1", f"--exclude={spared}"])
        third = chain.jobs[2]
        bad = lose_two_tasks_on_one_node(cluster, chain)
        before = field_of(cluster, third, "ExcNodeList")
        records = sorted(path.name for path in chain.run_dir.iterdir())
        words = [COMMAND, "exclude", f"--run-dir={chain.run_dir}", "--bad-nodes", "--yes"]
        refused = cluster.run(words, check=False)
        assert refused.returncode == 2
        assert f"1 of {len(names)} nodes would be left, and a generation takes 2" in refused.stderr
        assert field_of(cluster, third, "ExcNodeList") == before
        assert sorted(path.name for path in chain.run_dir.iterdir()) == records, "excluded.json was written"
        assert not chain.generation(third).path.exists()
        chain.cli("release")
        chain.wait_for_step(third, seconds=SECONDS)
        wait_for_ranks(chain, third)
        assert bad in chain.running(third).values(), "there is no other node for it"
