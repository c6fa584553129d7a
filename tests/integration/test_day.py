"""A working day with one short chain: list it, wait for it, read a line of it, tidy up after it."""

from __future__ import annotations

import json
import subprocess

from tests.integration.case_tools import SECONDS, SMALL, beat
from tests.integration.cluster import Cluster
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND


def test_a_chain_is_listed_waited_for_and_tidied_up(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat("--until=30", "--step-seconds=0.1"), shape=SMALL, depth=2, options=("--target-iteration=30",))
    listed = json.loads(cluster.run([COMMAND, "list", "--json"], cwd=chain.run_dir.parent.parent).stdout)
    mine = [one for one in listed["chains"] if one["chain_id"] == chain.chain_id]
    assert len(mine) == 1, listed
    assert (mine[0]["submitted"], mine[0]["run_directory"]) == (2, str(chain.run_dir))
    waited: subprocess.CompletedProcess[str] = cluster.run(
        [COMMAND, "wait", f"--run-dir={chain.run_dir}", f"--timeout={SECONDS}", "--json"], check=False
    )
    assert waited.returncode == 0, waited.stdout + waited.stderr
    assert json.loads(waited.stdout)["end"] == "completed"
    assert json.loads(waited.stdout)["live_jobs"] == []
    assert chain.cli("prune", "--keep=0", "--yes", "--json")["files"] > 0
    assert chain.iteration() == 30, "a checkpoint was touched"
