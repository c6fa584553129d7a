"""Spares that wait for a dead task 0 are found, and released by `--act` and by nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nvrx_chain.sandbox import BatchScope, FaultKind
from tests.integration.cluster import Cluster, wait_for
from tests.integration.measure import Figures
from tests.integration.watch_tools import OTHER_USER, Watcher, submit_plain, tasks_in, wait_until_up

GRACE = 5.0


def watcher(cluster: Cluster, tmp_path: Path, grace: float = GRACE, *, as_other_user: bool = False) -> Watcher:
    """A watcher of the chain that `orphan` makes."""
    place = (f"--work-dir={tmp_path / 'work & dir'}",)
    return Watcher(cluster, tmp_path / "state", {"orphan_grace": grace}, place, as_other_user)


def orphan(cluster: Cluster, directory: Path) -> tuple[int, int]:
    """A chain whose task 0 was killed while a spare still waits: (its array job, the one queued behind it)."""
    first, second = submit_plain(cluster, directory)
    wait_until_up(cluster, directory, first)
    report = cluster.sandbox.kill_task_0(first, scope=BatchScope.SHELL)
    assert report.kind is FaultKind.KILL_TASK_0
    wait_for(lambda: 0 in tasks_in(cluster, first, "FAILED"), 30, "task 0 to have failed")
    # The slot that it frees starts a cold spare; one still waits.
    wait_for(lambda: tasks_in(cluster, first, "PENDING") == {4}, 30, "one spare to be pending")
    return first, second


def test_orphaned_spares_are_released_in_the_first_pass_after_the_grace(
    cluster: Cluster, tmp_path: Path, figures: Figures
) -> None:
    watch = watcher(cluster, tmp_path)
    first, second = orphan(cluster, tmp_path / "work & dir")
    seen = watch.look_until("orphaned_generation", str(first), "--act", seconds=60)
    action = seen.action("cancel_pending")
    assert action is not None
    assert (action["state"], action["asked"], action["gone"]) == ("done", [f"{first}_4"], [f"{first}_4"])
    assert seen.code == 2
    # Nothing else went: the tasks that run and the generation behind them are as they were.
    assert tasks_in(cluster, first, "RUNNING") == {1, 2, 3}
    assert tasks_in(cluster, second, "PENDING") == {0, 1, 2, 3, 4}
    again = watch.look(f"{first}_[0-4]", "--act")
    assert again.finding("orphaned_generation") is None
    assert again.action("cancel_pending") is None


@pytest.mark.slow
def test_orphaned_spares_are_only_reported_without_act(cluster: Cluster, tmp_path: Path) -> None:
    watch = watcher(cluster, tmp_path)
    first, _ = orphan(cluster, tmp_path / "work & dir")
    seen = watch.look_until("orphaned_generation", str(first), seconds=60)
    action = seen.action("cancel_pending")
    assert action is not None
    assert action["state"] == "observe_only"
    assert seen.code == 2
    assert tasks_in(cluster, first, "PENDING") == {4}
    dry = watch.look(str(first), "--act", "--dry-run").action("cancel_pending")
    assert dry is not None
    assert (dry["state"], dry["asked"]) == ("dry_run", [f"{first}_4"])
    assert tasks_in(cluster, first, "PENDING") == {4}


@pytest.mark.slow
def test_nothing_is_released_within_the_grace(cluster: Cluster, tmp_path: Path) -> None:
    watch = watcher(cluster, tmp_path, 3600)
    first, _ = orphan(cluster, tmp_path / "work & dir")
    until = time.monotonic() + 10
    while time.monotonic() < until:
        assert watch.look(str(first), "--act").finding("orphaned_generation") is None
    assert tasks_in(cluster, first, "PENDING") == {4}


def test_another_user_sees_everything_and_touches_nothing(cluster: Cluster, tmp_path: Path) -> None:
    first, second = orphan(cluster, tmp_path / "work & dir")
    watch = watcher(cluster, tmp_path, as_other_user=True)
    seen = watch.look_until("orphaned_generation", str(first), "--act", seconds=60)
    action = seen.action("cancel_pending")
    assert action is not None
    assert (action["state"], action["asked"]) == ("not_owner", [])
    assert action["command"] == f"scancel {first}_4"
    assert tasks_in(cluster, first, "PENDING") == {4}
    assert tasks_in(cluster, second, "PENDING") == {0, 1, 2, 3, 4}
    # Told to act as an operator he tries, and Slurm refuses.
    refused = watch.look(str(first), "--act", "--act-as-operator").action("cancel_pending")
    assert refused is not None
    assert (refused["state"], refused["still_there"]) == ("failed", [f"{first}_4"]), refused
    assert tasks_in(cluster, first, "PENDING") == {4}


@pytest.mark.cluster(private_jobs=True)
def test_who_may_not_see_the_jobs_is_told_so_and_not_that_the_chain_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    (first, *_) = submit_plain(cluster, tmp_path / "work")
    wait_until_up(cluster, tmp_path / "work", first)
    watch = Watcher(cluster, tmp_path / "state", as_other_user=True)
    done = cluster.run(watch.argv(str(first)), cwd=tmp_path, check=False)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert f"cannot see job {first}" in done.stderr
    assert OTHER_USER not in done.stdout
    assert len(tasks_in(cluster, first, "RUNNING")) == 3
