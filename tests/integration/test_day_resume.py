"""A cancelled chain goes on in its directory with `--resume`; what Tab offers on a cluster with a live chain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Verdict
from tests.integration.case_tools import PAIR, SECONDS, beat, chain_of, run_submit, starts, submit_argv, tell
from tests.integration.cluster import Cluster
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND

pytestmark = pytest.mark.slow


def test_a_cancelled_chain_is_resumed_in_its_directory_and_finishes(cluster: Cluster, submit: SubmitChain) -> None:
    launcher = beat("--until-told")
    old = submit(launcher, shape=PAIR, depth=2, options=["--complete-on-exit-zero"])
    old.wait_for_training(old.jobs[0], seconds=SECONDS)
    argv = submit_argv(old.run_dir, launcher, PAIR, 3, "--complete-on-exit-zero", "--resume")
    refused = run_submit(cluster, argv)
    assert refused.returncode != 0, "a live chain was resumed"
    assert {row.job for row in cluster.live_rows()} == set(old.jobs)
    assert old.files.manifest().chain_id == old.chain_id
    old.cli("cancel", "--yes", "--reason=for the night")
    old.wait_until_gone(seconds=SECONDS)
    saved = old.iteration()
    assert saved
    without = run_submit(cluster, argv[:-1])
    assert without.returncode != 0
    assert "--resume starts a new chain there from its checkpoints" in without.stderr
    new = chain_of(cluster, run_submit(cluster, argv), PAIR)
    assert new.run_dir == old.run_dir
    assert new.chain_id != old.chain_id
    assert not set(new.jobs) & set(old.jobs)
    assert {row.job for row in cluster.live_rows()} == set(new.jobs)
    new.wait_for_step(new.jobs[0], seconds=SECONDS)
    assert starts(new, new.jobs[0])[0].iteration == saved, "it did not go on from the checkpoint"
    assert new.verdict() is None, "the verdict of the old chain counts for the new one"
    kept = {path.name for path in (new.run_dir / "history").rglob("*.json")}
    assert {"chain.json", "chain_outcome.json"} <= kept
    tell(new)
    assert new.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
    new.wait_until_gone(seconds=SECONDS)
    assert new.started_jobs() == new.jobs[:1]


def test_a_shell_is_offered_the_jobs_of_live_chains_and_the_nodes_of_the_cluster(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    foreign = cluster.run(["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true"]).stdout.strip()
    chain = submit(beat(), shape=PAIR, depth=2)
    jobs = [str(job) for job in chain.jobs]
    assert offered(cluster, tmp_path, "status", jobs[0][:1]) == sorted(
        job for job in jobs if job.startswith(jobs[0][:1])
    )
    assert set(offered(cluster, tmp_path, "wait", "")) >= set(jobs)
    assert foreign not in offered(cluster, tmp_path, "wait", "")
    assert offered(cluster, tmp_path, "exclude", "n") == sorted(cluster.sandbox.node_names)
    assert offered(cluster, tmp_path, "doctor", "--on-node", "n1") == ["n1"]
    chain.cli("cancel", "--yes")
    chain.wait_until_gone(seconds=SECONDS)
    assert not set(offered(cluster, tmp_path, "wait", "")) & set(jobs), "an ended chain is offered"
    cluster.cancel(foreign)


def offered(cluster: Cluster, directory: Path, *words: str) -> list[str]:
    """The words that the script of `nvrx-chain completion bash` offers for the last one."""
    script = (
        'eval "$(nvrx-chain completion bash)"\n'
        'COMP_WORDS=(nvrx-chain "$@"); COMP_CWORD=$#; COMPREPLY=()\n'
        '"$(complete -p nvrx-chain | sed "s/.*-F //; s/ .*//")" nvrx-chain\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environ = {"PATH": f"{Path(COMMAND).parent}{os.pathsep}{cluster.environ['PATH']}"}
    argv = ["bash", "--noprofile", "--norc", "-c", script, "bash", *words]
    return sorted(cluster.run(argv, cwd=directory, environ=environ).stdout.split())
