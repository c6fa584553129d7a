"""Directories whose names break scripts, and two chains beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Outcome, Verdict
from tests.integration import timeline
from tests.integration.case_tools import PAIR, SECONDS, beat, field_of, starts, tell, wait_for_ranks
from tests.integration.cluster import Cluster
from tests.integration.conftest import SubmitChain
from tests.integration.harness import Shape

NAMES = {
    "spaces": "a b & c #1",
    "quotes": """it's "quoted" `id` $HOME $(id)""",
    "patterns": "100%A %j %% é [1-3]*?; x=~ | <y>",
    "templates": "@RUN_DIR@ {node_rank} -x",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_chain_lives_in_a_directory_whose_name_breaks_scripts(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path, name: str
) -> None:
    """Case 22: paths and names with spaces, `&`, `#`, quotes."""
    home = tmp_path / "home"
    run_dir = home / name
    done = "done & dusted #2"
    chain = submit(beat("--until-told"), run_dir=run_dir, shape=PAIR, options=[f"--done-file={done}"])
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    chain.kill_task_0(first)
    chain.wait_for_step(second)
    chain.assert_no_overlap()
    (run_dir / done).touch()
    tell(chain)
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.started_jobs() == (first, second)
    # Nothing was written anywhere else, and Slurm's own logs are where they belong.
    assert [path.name for path in home.iterdir()] == [name]
    logs = {path.name for path in (run_dir / "logs").iterdir()}
    assert logs == {f"slurm-{job}_{task}.log" for job in (first, second) for task in (0, 1)}
    assert (chain.files.manifest().run_directory, third) == (str(run_dir), chain.jobs[2])
    assert field_of(cluster, first, "Requeue") == "0"


@pytest.mark.slow
def test_two_chains_side_by_side_and_a_93_that_ends_only_one(cluster: Cluster, submit: SubmitChain) -> None:
    shape = Shape(train=2, hot=1, cold=1)
    left = submit(beat("--ends=1:told:93"), shape=shape, options=["--name=chain-left"])
    right = submit(beat(), shape=shape, options=["--name=chain-right"])
    for chain in (left, right):
        chain.wait_for_training(chain.jobs[0])
        wait_for_ranks(chain, chain.jobs[0])
    queue = {row.job: row.name for row in cluster.live_rows()}
    assert queue == dict.fromkeys(left.jobs, "chain-left") | dict.fromkeys(right.jobs, "chain-right")
    tell(left)
    assert left.wait_for_verdict(seconds=SECONDS) is Verdict.NO_RESTART
    left.wait_until_gone(seconds=SECONDS)
    assert left.wait_for_outcome(left.jobs[0], seconds=1) is Outcome.NO_RESTART
    assert left.started_jobs() == left.jobs[:1]
    # The other one goes on in the same lives, with all that it had queued.
    step = timeline.steps(right.events(right.jobs[0]))[-1]
    right.wait_for_step(right.jobs[0], after=step.unix, steps=10)
    assert len(starts(right, right.jobs[0])) == 2
    assert {row.job for row in right.live_rows()} == set(right.jobs)
    assert sum(row.is_pending for row in right.rows()) == 1 + 2 * shape.total
    assert right.verdict() is None
    # And hands off when its own time comes.
    cluster.cancel(f"{right.jobs[0]}_0")
    right.wait_for_step(right.jobs[1])
    right.assert_no_overlap()
