"""What happened to a real chain is what the watcher says of it: fences, verdicts that were not honoured, restarts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Outcome
from nvrx_chain.sandbox import FaultKind
from tests.integration.case_tools import PAIR, SMALL, beat, tell, wait_for_ranks, wait_for_text
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.controller import controller_away, wait_for_saved_jobs
from tests.integration.harness import ENDLESS, FT_LAUNCHER, TORCHRUN
from tests.integration.watch_tools import Watcher, submit_plain, tasks_in, wait_until_up

ON_ITS_OWN = {"NVRX_CHAIN_TEST_HOOKS": "no-fence,no-release"}
"""The peers neither close nor cancel anything: what is done then is the watcher's."""


@pytest.mark.slow
def test_a_task_0_whose_node_died_is_found_and_fenced_when_that_is_allowed(
    cluster: Cluster, tmp_path: Path, submit: SubmitChain
) -> None:
    chain = submit(TORCHRUN, target_iteration=ENDLESS, environ=ON_ITS_OWN)
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    watch = Watcher(cluster, tmp_path / "state", {"lease_stale": 10})
    healthy = watch.look(str(first), "--act", "--allow=fence")
    assert healthy.detectors("critical") == set(), healthy.only
    report = chain.kill_node_of(first, 0)
    assert report.kind is FaultKind.KILL_NODE
    # The lease is seen to stand still; Slurm does not know yet, so nothing is done on the lease alone.
    found = watch.look_until("task0_unreachable", str(first), seconds=90)
    assert chain.closed(first) is None
    assert all(action["state"] == "observe_only" for action in found.only["actions"])
    cluster.run(["scancel", "--batch", "--signal=CONT", f"{first}_0"], check=False)

    def fenced() -> bool:
        action = watch.look(str(first), "--act", "--allow=fence").action("fence")
        return action is not None and action["state"] in ("done", "incomplete")

    wait_for(fenced, 240, "the watcher to fence")
    closed = chain.closed(first)
    assert closed is not None
    assert closed.outcome is Outcome.LEASE_LOST
    assert closed.closed_by.startswith("nvrx-watch on ")
    chain.wait_for_step(second, seconds=150)
    chain.assert_no_overlap()
    assert tasks_in(cluster, third, "PENDING") == {0, 1, 2, 3, 4}


def test_a_no_restart_verdict_that_was_not_honoured_is_found_and_mended_when_that_is_allowed(
    cluster: Cluster, tmp_path: Path, submit: SubmitChain
) -> None:
    # Nobody inside cancels: with the controller dead at that moment, nobody could.
    chain = submit(beat("--ends=0:told:93"), shape=PAIR, environ=ON_ITS_OWN)
    first, second, third = chain.jobs
    wait_for_ranks(chain, first)
    # What is queued would leave by itself as soon as it starts; on a full cluster it would wait, as it does here.
    cluster.run(["scontrol", "hold", str(second), str(third)])
    watch = Watcher(cluster, tmp_path / "state", {"orphan_grace": 5})
    assert watch.look(str(second)).finding("chain_not_cancelled") is None
    wait_for_saved_jobs(cluster, second)
    with controller_away(cluster, kill=True):
        tell(chain)
        assert chain.wait_for_outcome(first, seconds=60) is Outcome.NO_RESTART
    found = watch.look_until("chain_not_cancelled", str(second), "--act", seconds=120)
    assert found.code == 2
    finding = found.finding("chain_not_cancelled")
    assert finding is not None
    assert "verdict" in " ".join(finding["details"])
    action = found.action("cancel-chain")
    assert action is not None
    assert action["state"] == "observe_only"
    assert tasks_in(cluster, second, "PENDING") == tasks_in(cluster, third, "PENDING") == {0, 1}
    mended = watch.look(str(second), "--act", "--allow=cancel-chain").action("cancel-chain")
    assert mended is not None
    assert mended["state"] == "done", mended
    assert not tasks_in(cluster, second, "PENDING") | tasks_in(cluster, third, "PENDING")
    assert chain.started_jobs() == (first,)


@pytest.mark.slow
def test_a_93_of_a_sites_own_script_is_found_by_its_exit_code_and_only_reported(
    cluster: Cluster, tmp_path: Path
) -> None:
    # Task 0 wants the rest gone and asks for it once, just when nobody listens.
    told = tmp_path / "told"
    waits = f'until [ -e "{told}" ]; do sleep 0.2; done'
    task_zero = f'{waits}; scancel "$SLURM_ARRAY_JOB_ID"; echo $? >"{told}.rc"; exit 93'
    first, second, third = submit_plain(cluster, tmp_path / "work", task_zero=task_zero, depth=3)
    wait_until_up(cluster, tmp_path / "work", first)
    watch = Watcher(cluster, tmp_path / "state", {"orphan_grace": 5}, options=(f"--work-dir={tmp_path / 'work'}",))
    wait_for_saved_jobs(cluster, second)
    # Killed and not frozen: a request that waits in a socket would be honoured later.
    with controller_away(cluster, kill=True):
        told.touch()
        assert wait_for_text(Path(f"{told}.rc"), 150) != "0", "scancel found a controller"
    wait_for(lambda: 0 in tasks_in(cluster, first, "FAILED"), 60, "Slurm to know that task 0 has failed")
    seen = watch.look_until("chain_not_cancelled", str(first), "--act", "--allow=cancel-chain", seconds=60)
    action = seen.action("cancel-chain")
    assert action is not None
    # An exit code is no verdict: 221 looks like 93 on some versions of Slurm.
    assert action["state"] == "refused", action
    assert tasks_in(cluster, second, "PENDING") == tasks_in(cluster, third, "PENDING") == {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_restarts_that_get_nowhere_are_found_in_the_records_of_the_real_ft_launcher(
    cluster: Cluster, tmp_path: Path, submit: SubmitChain
) -> None:
    workload = ["--step-seconds=0.1", "--save-interval=1000", "--fault=rank=0,iteration=60,kind=exit:7,repeat=always"]
    chain = submit(
        FT_LAUNCHER, shape=SMALL, depth=2, target_iteration=ENDLESS, workload=workload, options=["--max-restarts=6"]
    )
    thresholds = {"storm_cycles": 3, "never_checkpointed": 5, "same_iteration_cycles": 3, "budget_left": 3}
    watch = Watcher(cluster, tmp_path / "state", thresholds)
    seen = watch.look_until("restart_storm", str(chain.jobs[0]), seconds=120)
    assert seen.code == 2
    assert {"restart_storm", "never_checkpointed"} <= seen.detectors()
    crash = watch.look_until("same_iteration_crash", str(chain.jobs[0]), seconds=90)
    finding = crash.finding("same_iteration_crash")
    assert finding is not None
    assert "59" in finding["title"], finding
    chain.cli("cancel")
    after = watch.look(str(chain.jobs[0]))
    assert after.finding("restart_storm") is None, "a chain that was ended by its user needs nobody any more"


@pytest.mark.slow
def test_restarts_after_which_the_checkpoint_never_moves_are_stalled_progress(
    cluster: Cluster, tmp_path: Path, submit: SubmitChain
) -> None:
    workload = ["--step-seconds=0.05", "--save-interval=5", "--fault=rank=0,iteration=14,kind=exit:7,repeat=always"]
    chain = submit(
        FT_LAUNCHER, shape=SMALL, depth=2, target_iteration=ENDLESS, workload=workload, options=["--max-restarts=8"]
    )
    watch = Watcher(cluster, tmp_path / "state", {"stalled_cycles": 2, "storm_cycles": 100})
    seen = watch.look_until("stalled_progress", str(chain.jobs[0]), seconds=150)
    assert seen.code == 2
    stalled = seen.finding("stalled_progress")
    assert stalled is not None
    assert re.search(r"\b10\b", stalled["title"]), stalled
    assert seen.finding("never_checkpointed") is None
