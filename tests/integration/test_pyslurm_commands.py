"""A chain that is submitted, looked at, held and cancelled with `--slurm-client pyslurm`, on a real Slurm.

Not with PySlurm, which cannot be built for this Slurm: a stand-in makes its attributes from scontrol's output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.records.outcome import Verdict
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, Chain, Shape, command_launcher

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.cluster(nodes=3, kill_wait_seconds=5)]

_STAND_IN = Path(__file__).parents[1] / "fakes" / "scontrol_pyslurm"
_ENVIRON = {"NVRX_SLURM_CLIENT": "pyslurm", "PYTHONPATH": str(_STAND_IN)}
_WATCH = str(Path(sys.executable).with_name("nvrx-watch"))
_SECONDS = 90.0


def ask(chain: Chain, command: str, *words: str) -> Any:
    done = chain.cluster.run([COMMAND, command, f"--run-dir={chain.run_dir}", "--json", *words], environ=_ENVIRON)
    return json.loads(done.stdout)


def states(chain: Chain) -> list[str]:
    return [generation["state"] for generation in ask(chain, "status")["generations"]]


def test_a_chain_lives_its_life_while_every_command_reads_through_pyslurm(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    chain = submit(
        command_launcher("bash -c 'sleep 600'"), shape=Shape(train=1, hot=1, cold=1), depth=2, environ=_ENVIRON
    )
    wait_for(lambda: states(chain) == ["running", "queued"], _SECONDS, "one generation runs and one waits")
    seen = ask(chain, "status")["generations"]
    assert seen[0]["tasks"] == {"running": 2, "pending": 1}
    assert seen[1]["tasks"] == {"pending": 3}

    watch = [_WATCH, f"--run-dir={chain.run_dir}", "--json", f"--state-dir={tmp_path / 'state'}"]
    shown = json.loads(cluster.run(watch, environ=_ENVIRON, check=False).stdout)
    assert "queue" not in shown["unobserved"]
    assert "nodes" not in shown["unobserved"]

    # Each ends with 1 when its own reading of the queue does not show it as done.
    ask(chain, "hold", "--reason", "maintenance")
    assert all(row.reason.startswith("JobHeld") for row in chain.live_rows(chain.jobs[1]))
    ask(chain, "release")
    assert not any(row.reason.startswith("JobHeld") for row in chain.live_rows(chain.jobs[1]))
    assert len(chain.live_rows(chain.jobs[1])) == 3

    ask(chain, "cancel", "--yes")
    verdict = chain.verdict()
    assert verdict is not None
    assert verdict.verdict is Verdict.CANCELLED
    assert {row.state for row in chain.live_rows()} <= {"COMPLETING"}
    cluster.assert_free()
