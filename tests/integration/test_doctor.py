"""`nvrx-chain doctor` on a real Slurm: healthy, a run directory that a node does not see, a controller that hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.doctor.visit import JOB_NAME
from nvrx_chain.sandbox.members import find_node
from nvrx_chain.sandbox.record import SandboxState, find_place, read_state
from tests.integration.cluster import Cluster, QueueRow, wait_for
from tests.integration.harness import COMMAND, NASTY_NAME

FAST = ("--python", "/bin/true")
"""Nothing here is about torch: an interpreter that imports nothing answers at once, with `unknown`."""


def doctor(cluster: Cluster, *words: str, code: int = 0) -> dict[str, Any]:
    done = cluster.run([COMMAND, "doctor", "--json", *FAST, *words], check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def grade(report: dict[str, Any], check: str, place: str) -> str:
    (found,) = [line for line in report["lines"] if (line["check"], line["place"]) == (check, place)]
    return str(found["grade"])


def seen(report: dict[str, Any], check: str, place: str) -> str:
    (found,) = [line for line in report["lines"] if (line["check"], line["place"]) == (check, place)]
    return str(found["seen"])


def own_rows(cluster: Cluster) -> list[QueueRow]:
    """The doctor's jobs, those of earlier tests included."""
    return sorted((row for row in cluster.queue() if row.name == JOB_NAME), key=lambda row: row.job)


def inside(cluster: Cluster, node: str, *argv: str) -> None:
    """Run a program in the mount namespace of a node."""
    place = find_place(cluster.sandbox.directory)
    state = read_state(place) if place else None
    assert isinstance(state, SandboxState)
    view = find_node(state, node)
    assert view is not None
    first = min(view.inside, key=lambda process: process.pid)
    subprocess.run(["nsenter", f"--target={first.pid}", "--mount", *argv], check=True, timeout=30)


def run_root(tmp_path: Path) -> Path:
    root = tmp_path / NASTY_NAME
    root.mkdir()
    return root


def test_a_healthy_cluster_is_looked_at_from_both_sides_and_nothing_is_left(cluster: Cluster, tmp_path: Path) -> None:
    root = run_root(tmp_path)
    report = doctor(cluster, "--run-root", str(root), "--on-node", "n3")
    assert report["node"] == "n3"
    assert report["counts"]["bad"] == 0
    for check in ("slurm-programs", "squeue", "directory", "name", "job", "seen", "same-code", "clocks"):
        assert grade(report, check, "n3") == "ok", report
    assert grade(report, "controller", "cluster") == "ok"
    assert list(root.iterdir()) == []
    assert [row.state for row in own_rows(cluster)][-1] == "CANCELLED"
    cluster.assert_free()


@pytest.mark.slow
def test_a_run_directory_that_a_node_does_not_see_is_bad_by_name(cluster: Cluster, tmp_path: Path) -> None:
    root = run_root(tmp_path)
    inside(cluster, "n2", "mount", "-t", "tmpfs", "tmpfs", str(root))
    try:
        blind = doctor(cluster, "--run-root", str(root), "--on-node", "n2", code=1)
        sighted = doctor(cluster, "--run-root", str(root), "--on-node", "n4")
    finally:
        inside(cluster, "n2", "umount", str(root))
    assert grade(blind, "directory", "n2") == "bad"
    assert "is not there" in seen(blind, "directory", "n2")
    assert grade(blind, "directory", "login") == "ok"
    assert grade(sighted, "directory", "n4") == "ok"
    assert list(root.iterdir()) == []
    cluster.assert_free()


@pytest.mark.slow
def test_a_controller_that_hangs_is_bad_within_ten_seconds_and_no_job_is_submitted(
    cluster: Cluster, tmp_path: Path
) -> None:
    before = len(own_rows(cluster))
    cluster.sandbox.stop_controller()
    try:
        began = time.monotonic()
        report = doctor(cluster, "--run-root", str(run_root(tmp_path)), "--on-node", code=1)
        took = time.monotonic() - began
    finally:
        cluster.sandbox.start_controller()
    assert took < 10, f"{took:.1f} s"
    assert grade(report, "controller", "cluster") == "bad"
    assert grade(report, "job", "node") == "unknown"
    assert len(own_rows(cluster)) == before


@pytest.mark.slow
def test_without_a_free_node_the_job_is_given_up_and_says_what_it_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.occupied(cluster.sandbox.node_names):
        report = doctor(cluster, "--run-root", str(run_root(tmp_path)), "--on-node", "--timeout", "5")
        assert not [row for row in own_rows(cluster) if row.is_live]
    assert grade(report, "job", "node") == "unknown"
    assert "Slurm says" in seen(report, "job", "node")


@pytest.mark.slow
def test_a_slurmd_that_freezes_before_the_job_leaves_no_job_behind(cluster: Cluster, tmp_path: Path) -> None:
    argv = [COMMAND, "doctor", "--json", *FAST, "--run-root", str(run_root(tmp_path)), "--on-node", "n5"]
    with cluster.occupied(["n5"]) as free:
        process = subprocess.Popen(argv, env=cluster.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: [row for row in own_rows(cluster) if row.is_live], 30, "the doctor's job")
        cluster.sandbox.freeze_slurmd("n5")
        free["n5"]()
        # Slurm gives the node away to a slurmd that does not answer, or waits for it: either way nothing may be left.
        out, err = process.communicate(timeout=200)
    assert err == b""
    report = json.loads(out)
    assert [line for line in report["lines"] if line["check"] == "job"]
    cluster.sandbox.thaw_node("n5")
    cluster.assert_free(60)


@pytest.mark.slow
def test_an_interrupt_cancels_the_job(cluster: Cluster, tmp_path: Path) -> None:
    argv = [COMMAND, "doctor", *FAST, "--run-root", str(run_root(tmp_path)), "--on-node"]
    with cluster.occupied(cluster.sandbox.node_names):
        process = subprocess.Popen(argv, env=cluster.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        (row,) = wait_for(lambda: [row for row in own_rows(cluster) if row.is_live], 30, "the doctor's job")
        assert row.is_pending
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=40)
        assert process.returncode == 1, (out, err)
        assert [found.state for found in own_rows(cluster) if found.job == row.job] == ["CANCELLED"]
