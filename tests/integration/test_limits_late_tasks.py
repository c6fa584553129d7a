"""The tasks of one generation start far apart on a busy cluster, and it trains all the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Verdict
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import FT_LAUNCHER, TORCHRUN, Chain, Launcher
from tests.integration.measure import Figures
from tests.integration.stand_ins import impatient, shell_launcher

JOIN_SECONDS = 15
"""The launchers' own join time-out, 300 s by default. Gaps and time-out are scaled down alike."""
SHORT_GAP, LONG_GAP = 20.0, 45.0
"""The long one is beyond `lease_timeout` and `gate_timeout` as well, by which a waiting peer could lose patience."""
SCALED = ("--threshold=gate_timeout=40",)
TARGET = 40


def test_tasks_that_start_apart_assemble_once_all_training_tasks_are_there(
    cluster: Cluster, submit: SubmitChain, figures: Figures, tmp_path: Path
) -> None:
    body = f"""
touch "$2/up.$1.$3"
deadline=$((SECONDS + {JOIN_SECONDS}))
until [ -e "$2/up.$1.0" ] && [ -e "$2/up.$1.1" ]; do
  [ "$SECONDS" -lt "$deadline" ] || {{ echo "join time-out" >&2; exit 1; }}
  sleep 0.2
done"""
    launcher = shell_launcher(tmp_path / "launcher.sh", body, "{run_id}", "{run_dir}", "{node_rank}")
    nodes = cluster.sandbox.node_names
    with cluster.occupied(nodes[1:]) as free:
        chain = submit(launcher, options=["--complete-on-exit-zero", *SCALED])
        _assert_waits(chain, SHORT_GAP)
        free[nodes[1]]()
        began = time.time()
        assert chain.wait_for_verdict(seconds=60) is Verdict.COMPLETED
        figures.add("late-tasks", launcher.name, time.time() - began, f"task 1 came {SHORT_GAP:g} s late, to the end")
        assert chain.started_jobs() == chain.jobs[:1]
        assert chain.hold() is None


@pytest.mark.slow
@pytest.mark.parametrize("real", [FT_LAUNCHER, TORCHRUN], ids=lambda real: real.name)
def test_a_real_launcher_trains_although_its_tasks_start_apart(
    cluster: Cluster, submit: SubmitChain, figures: Figures, real: Launcher
) -> None:
    nodes = cluster.sandbox.node_names
    with cluster.occupied(nodes[1:]) as free:
        chain = submit(impatient(real, JOIN_SECONDS), target_iteration=TARGET, options=SCALED)
        first = chain.jobs[0]
        _assert_waits(chain, LONG_GAP)
        free[nodes[1]]()
        wait_for(lambda: 1 in chain.running(first), 30, "task 1 to start")
        began = time.time()
        step = chain.wait_for_step(first)
        figures.add(
            "late-tasks", real.name, step.unix - began, f"task 1 came {LONG_GAP:g} s late, join {JOIN_SECONDS} s"
        )
        # The hot spare comes later still, into a training that goes on.
        free[nodes[2]]()
        wait_for(lambda: 2 in chain.running(first), 30, "the hot spare to start")
        assert chain.wait_for_verdict(seconds=90) is Verdict.COMPLETED
        assert {event.array_task_id for event in chain.events(first)} == {0, 1}
        assert {event.world_size for event in chain.events(first)} == {2}
        assert chain.started_jobs() == (first,)
        assert chain.hold() is None


def _assert_waits(chain: Chain, gap: float) -> None:
    """Task 0 runs alone for `gap` seconds and says what it waits for; nothing is launched, closed or held."""
    first = chain.jobs[0]
    wait_for(lambda: set(chain.running(first)) == {0}, 30, "task 0 to run alone")
    deadline = time.monotonic() + gap
    while time.monotonic() < deadline:
        assert set(chain.running(first)) == {0}, "the cluster was not as busy as meant"
        assert chain.closed(first) is None
        assert chain.record(first) is None or chain.record(first).launched_at is None  # type: ignore[union-attr]
        time.sleep(1)
    assert "assembling (1 of 2" in chain.task_log(first, 0)
    assert chain.hold() is None
