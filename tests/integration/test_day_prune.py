"""`prune` beside a live generation: what is old goes, what lives and what it needs stays."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Verdict
from tests.integration import timeline
from tests.integration.case_tools import PAIR, SECONDS, beat, starts, tell, wait_for_ranks, why_left
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import Chain


def names_below(*directories: Path) -> set[Path]:
    """Every file, but for temporary ones that a live task writes."""
    found = (Path(root, name) for directory in directories for root, _, names in os.walk(directory) for name in names)
    return {path for path in found if path.suffix not in (".tmp", ".new")}


def hand_on(cluster: Cluster, chain: Chain, job: int, successor: int) -> None:
    """End a generation by its task 0, once all of it trains, and wait for the next one to train and save."""
    wait_for_ranks(chain, job)
    cluster.cancel(f"{job}_0")
    chain.wait_for_training(successor, seconds=SECONDS)
    wait_for(lambda: all(why_left(chain, job, task) for task in range(PAIR.train)), SECONDS, f"all of {job} to leave")


def left_of(chain: Chain, jobs: Iterable[int]) -> set[str]:
    """The names of what is left of generations, with the directory that they are in."""
    roots = [chain.generation(job).path for job in jobs]
    return {str(path.relative_to(root)) for root in roots for path in names_below(root)}


@pytest.mark.slow
def test_prune_beside_a_live_generation_takes_the_ended_ones_and_training_goes_on(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat("--until-told"), shape=PAIR, depth=5, options=["--complete-on-exit-zero"])
    one, two, three, live, last = chain.jobs
    chain.wait_for_training(one, seconds=SECONDS)
    for job, successor in ((one, two), (two, three), (three, live)):
        hand_on(cluster, chain, job, successor)
    wait_for_ranks(chain, live)
    kept = names_below(chain.generation(live).path, chain.generation(three).path, chain.run_dir / "checkpoints")
    others = names_below(chain.run_dir / "submissions", chain.run_dir / "events")
    assert len(chain.cli("prune", "--keep=2", "--dry-run", "--json")["bytes_by_generation"]) == 2
    assert left_of(chain, (one, two)) > {"record.json"}, "the dry run removed something"
    step = timeline.steps(chain.events(live))[-1]
    report = chain.cli("prune", "--keep=2", "--yes", "--json")
    assert (sorted(map(int, report["bytes_by_generation"])), report["not_removed"], report["left_alone"]) == (
        [one, two],
        {},
        {},
    )
    assert report["files"] > 0
    assert {int(job) for job in report["kept"]} == {three, live}
    assert left_of(chain, (one, two)) == {"record.json"}
    assert kept <= names_below(chain.run_dir), kept - names_below(chain.run_dir)
    assert others <= names_below(chain.run_dir)
    chain.wait_for_step(live, after=step.unix, steps=20)
    assert len(starts(chain, live)) == PAIR.train, "ranks were restarted"
    assert chain.closed(live) is None
    shown = chain.cli("status", "--json")
    assert [one["state"] for one in shown["generations"]] == ["ended"] * 3 + ["running", "queued"]
    assert shown["problems"] == []
    # What the next generation reads of its predecessors is still there.
    hand_on(cluster, chain, live, last)
    assert starts(chain, last)[0].iteration > 0, "it did not resume from the checkpoint"
    tell(chain)
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.started_jobs() == chain.jobs
    chain.assert_no_overlap()
