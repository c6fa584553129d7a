"""A watcher that cannot see acts on nothing, sends no heartbeat, says so, and goes on when it sees again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.case_tools import PAIR, beat
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.controller import controller_away
from tests.integration.watch_tools import Watcher, submit_plain, tasks_in, wait_until_up
from tests.unit.watch.sinks.receiver import receiving


@pytest.mark.slow
def test_with_the_controller_away_a_pass_is_degraded_silent_and_harmless_and_recovers(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, second = submit_plain(cluster, tmp_path / "work")
    wait_until_up(cluster, tmp_path / "work", first)
    log = tmp_path / "watch.log"
    with receiving() as heartbeat:
        options = (f"--heartbeat-url={heartbeat.url('/beat')}", f"--work-dir={tmp_path / 'work'}")
        watch = Watcher(cluster, tmp_path / "state", {"orphan_grace": 0}, options=options)
        with watch.staying(str(first), "--interval=1", "--json", "--act", log=log):
            wait_for(lambda: heartbeat.received, 60, "a heartbeat of a pass that sees")
            with controller_away(cluster):
                wait_for(lambda: last_pass(log)["unobserved"].get("queue"), 120, "a pass that is blind")
                assert last_pass(log)["exit_code"] == 1
                beats = len(heartbeat.received)
                blind = len(passes(log))
                # Several passes on it is still silent.
                wait_for(lambda: len(passes(log)) >= blind + 2, 180, "two more passes")
                assert len(heartbeat.received) == beats
            wait_for(lambda: len(heartbeat.received) > beats, 120, "a heartbeat after the recovery")
        assert all(one["actions"] == [] for one in passes(log))
    assert tasks_in(cluster, first, "RUNNING") == {0, 1, 2}
    assert tasks_in(cluster, first, "PENDING") == {3, 4}
    assert tasks_in(cluster, second, "PENDING") == {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_a_watcher_that_starts_while_the_controller_is_away_says_so_and_is_degraded(
    cluster: Cluster, tmp_path: Path
) -> None:
    (first, *_) = submit_plain(cluster, tmp_path / "work")
    wait_until_up(cluster, tmp_path / "work", first)
    watch = Watcher(cluster, tmp_path / "state")
    with controller_away(cluster, kill=False):
        done = cluster.run(watch.argv(str(first)), cwd=tmp_path, check=False)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def passes(log: Path) -> list[dict[str, Any]]:
    """The passes that a daemon has printed so far."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]


def last_pass(log: Path) -> dict[str, Any]:
    """The newest of them."""
    found = passes(log)
    return found[-1] if found else {"unobserved": {}, "exit_code": None}


@pytest.mark.slow
@pytest.mark.cluster(accounting=True, nodes=4)
def test_accounting_that_stops_half_way_degrades_the_pass_and_is_used_again_when_it_is_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    (first, *_) = submit_plain(cluster, tmp_path / "work", task_zero="exit 7")
    wait_for(lambda: tasks_in(cluster, first, "FAILED") == {0}, 60, "task 0 to have failed")
    watch = Watcher(cluster, tmp_path / "state", {"orphan_grace": 3600}, options=(f"--work-dir={tmp_path / 'work'}",))
    with_accounting = watch.look(str(first)).only
    assert "accounting" not in with_accounting["unobserved"]
    assert "accounting" not in with_accounting["unavailable"]
    daemon = database_daemon(cluster)
    os.kill(daemon, signal.SIGSTOP)
    try:
        without = watch.look(str(first))
        assert "accounting" in without.only["unobserved"], without.only
        assert "accounting" not in without.only["unavailable"]
        assert without.code == 1
    finally:
        os.kill(daemon, signal.SIGCONT)
    wait_for(lambda: "accounting" not in watch.look(str(first)).only["unobserved"], 60, "accounting to be seen again")


def test_a_site_without_accounting_is_watched_and_is_no_degraded_pass(
    cluster: Cluster, tmp_path: Path, submit: SubmitChain
) -> None:
    chain = submit(beat("--ends=0:3:1"), shape=PAIR)
    first, second, _ = chain.jobs
    wait_for(lambda: chain.closed(first) is not None, 90, "the first generation to end")
    watch = Watcher(cluster, tmp_path / "state")
    seen = watch.look(str(second))
    assert seen.only["unobserved"] == {}, seen.only
    assert "accounting" in seen.only["unavailable"]
    assert seen.code != 1


def test_any_id_of_the_chain_leads_to_it_live_or_ended(cluster: Cluster, tmp_path: Path, submit: SubmitChain) -> None:
    chain = submit(beat("--ends=0:3:1", "--ends-once"), shape=PAIR)
    first, second, third = chain.jobs
    chain.wait_for_step(second)
    watch = Watcher(cluster, tmp_path / "state")
    raw = cluster.run(["squeue", "-h", "-r", "-t", "R", "-o", "%A", "-j", f"{second}_1"]).stdout.strip()
    for word in (
        str(first),
        f"{first}_0",
        str(second),
        f"{second}_1",
        f"{second}_[0-1]",
        str(third),
        f"{third}_[0-1]",
        raw,
    ):
        seen = watch.look(word)
        assert seen.only["chain"]["chain_id"] == chain.chain_id, word
        assert [one["array_job_id"] for one in seen.only["generations"]] == list(chain.jobs), word
    alone = watch.look(f"--run-dir={chain.run_dir}", "--platform=none").only
    assert [one["array_job_id"] for one in alone["generations"]] == list(chain.jobs)


def database_daemon(cluster: Cluster) -> int:
    """The pid of the sandbox's slurmdbd."""
    found = [one for one in cluster.sandbox.status().daemons if one.name == "slurmdbd"]
    assert len(found) == 1, found
    pid = found[0].pid
    assert pid is not None
    return pid
