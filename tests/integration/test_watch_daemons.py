"""Two watchers that act on one chain while it loses task 0 again and again: each spare goes once, and nothing else."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.sandbox import BatchScope
from tests.integration.cluster import Cluster, wait_for
from tests.integration.watch_tools import Watcher, submit_plain, tasks_in, wait_until_up
from tests.unit.watch.sinks.receiver import receiving

SECONDS = 300.0
DEPTH = 120
WAIT = 60.0


@pytest.mark.slow
def test_two_watchers_release_every_orphan_once_and_page_once_for_each(cluster: Cluster, tmp_path: Path) -> None:
    jobs = list(submit_plain(cluster, tmp_path / "work", depth=DEPTH))
    wait_until_up(cluster, tmp_path / "work", jobs[0])
    lost: list[int] = []
    with receiving() as pager:
        options = (
            "--pd-routing-key=KEY",
            f"--pd-url={pager.url('/v2/enqueue')}",
            "--act",
            "--interval=2",
            f"--work-dir={tmp_path / 'work'}",
        )
        watchers = [
            Watcher(cluster, tmp_path / f"state {name}", {"orphan_grace": 3}, options=options) for name in ("a", "b")
        ]
        with (
            watchers[0].staying(str(jobs[0]), log=tmp_path / "a.log"),
            watchers[1].staying(str(jobs[0]), log=tmp_path / "b.log"),
        ):
            until = time.monotonic() + SECONDS
            while time.monotonic() < until and len(jobs) > 1:
                job = jobs.pop(0)
                lose_task_zero(cluster, job)
                wait_for(lambda job=job: not tasks_in(cluster, job, "PENDING"), WAIT, f"the spares of {job} to go")
                lost.append(job)
                # Nothing behind it was touched: every task of the next generation is still there.
                assert tasks_in(cluster, jobs[0], "PENDING") == {0, 1, 2, 3, 4}
                assert tasks_in(cluster, job, "RUNNING") == {1, 2, 3}
                cluster.cancel(job)
                wait_until_up(cluster, tmp_path / "work", jobs[0])
            wait_for(lambda: resolved(pager.bodies) >= set(incidents(lost)), WAIT, "every incident to be resolved")
    assert len(lost) >= 5
    lines = [line for watcher in watchers for line in action_lines(watcher.state)]
    asked = Counter(spec for line in lines for spec in line["asked"])
    assert set(asked) == {f"{job}_4" for job in lost}
    assert max(asked.values()) <= len(watchers)
    assert {spec for line in lines for spec in line["gone"]} == set(asked)
    triggers = Counter(body["dedup_key"] for body in pager.bodies if body["event_action"] == "trigger")
    orphans = {key: count for key, count in triggers.items() if "orphaned_generation" in key}
    # The pager makes one incident of one key, whoever sends it; each of the two sends it once.
    assert set(orphans) == set(incidents(lost)), orphans
    assert max(orphans.values()) <= len(watchers)


def lose_task_zero(cluster: Cluster, job: int) -> None:
    """SIGKILL of the batch shell of task 0, until one spare waits behind the one that took its slot."""
    cluster.sandbox.kill_task_0(job, scope=BatchScope.SHELL)
    wait_for(lambda: 0 in tasks_in(cluster, job, "FAILED"), WAIT, f"task 0 of {job} to have failed")


def incidents(jobs: list[int]) -> list[str]:
    """The keys under which the orphans of these jobs are reported."""
    return [f"nvrx-watch/sandbox:root:plain/orphaned_generation:{job}" for job in jobs]


def resolved(bodies: list[Any]) -> set[str]:
    """The incidents that the pager was told are over."""
    return {body["dedup_key"] for body in bodies if body["event_action"] == "resolve"}


def action_lines(state: Path) -> list[dict[str, Any]]:
    """What a watcher did, by its own log."""
    path = state / "actions.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
