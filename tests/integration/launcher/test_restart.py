"""Ranks that fail, in any way, on one node and on several: the job goes on with whom it should, quickly."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launcher.crew import Crew, await_end, crew, is_alive

pytestmark = pytest.mark.integration

WARM = ("--max-restarts", "9", "--refill-delay", "0")


def one_node(directory: Path, *options: str) -> Any:
    return crew(directory, ranks=2, options=(*WARM, *options))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "how",
    ["kill", pytest.param("exit", marks=SLOW), pytest.param("raise", marks=SLOW), pytest.param("segv", marks=SLOW)],
)
def test_a_rank_that_fails_costs_a_round_and_the_same_ranks_go_on(tmp_path: Path, how: str) -> None:
    with one_node(tmp_path) as job:
        job.start(0)
        job.until_stepping(0, 2)
        if how in ("exit", "raise"):
            job.order(1, do=how, code=17)
        else:
            os.kill(job.rank_pid(1, 0), signal.SIGKILL if how == "kill" else signal.SIGSEGV)
        job.until_stepping(1, 2)
        assert {event["rank"] for event in job.events("step", round_number=1)} == {0, 1}
        job.finish()
        assert job.wait() == [0]


@pytest.mark.slow
def test_both_ranks_that_die_at_once_cost_one_round(tmp_path: Path) -> None:
    with one_node(tmp_path) as job:
        job.start(0)
        job.until_stepping(0, 2)
        for rank in (0, 1):
            os.kill(job.rank_pid(rank, 0), signal.SIGKILL)
        job.until_stepping(1, 2)
        job.finish()
        assert job.wait() == [0]
        assert {event["round"] for event in job.events("born")} == {0, 1}


def test_failures_faster_than_the_refill_all_restart_until_the_budget_is_spent(tmp_path: Path) -> None:
    with crew(tmp_path, command=("-c", "raise SystemExit(3)"), options=("--max-restarts", "3", "--no-python")) as job:
        job.command = (job.python, "-c", "raise SystemExit(3)")
        job.start(0)
        assert job.wait() == [1]
        assert "budget_spent" in job.nodes[0].log.read_text()


@pytest.mark.slow
def test_a_rank_that_finished_early_takes_part_again_when_another_fails(tmp_path: Path) -> None:
    with crew(tmp_path, nnodes="2:2", options=WARM) as job:
        job.start(0, 1)
        job.until_stepping(0, 2)
        job.order(0, do="finish")
        job.until(lambda: job.events("done"), "rank 0 is done")
        os.kill(job.rank_pid(1, 0), signal.SIGKILL)
        job.until_stepping(1, 2)
        job.finish()
        assert job.wait() == [0, 0]


def three_nodes(directory: Path) -> Any:
    return crew(directory, nnodes="2:3", options=(*WARM, "--first-round-grace", "20"))


def start_three(job: Crew) -> None:
    job.start(0, 1, 2)
    job.until_stepping(0, 2)
    assert sorted((job.node_of(0, 0), job.node_of(1, 0))) == [0, 1]


@pytest.mark.slow
def test_a_failed_rank_keeps_its_node_and_the_spare_stays_one(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as job:
        start_three(job)
        os.kill(job.rank_pid(1, 0), signal.SIGKILL)
        job.until_stepping(1, 2)
        assert [job.node_of(rank, 1) for rank in (0, 1)] == [0, 1]
        job.finish()
        assert job.wait() == [0, 0, 0]


def test_a_dead_node_is_replaced_by_the_spare(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as job:
        start_three(job)
        job.nodes[1].kill()
        job.until_stepping(1, 2)
        assert [job.node_of(rank, 1) for rank in (0, 1)] == [0, 2]
        job.finish()
        assert job.wait(0, 2) == [0, 0]


@pytest.mark.slow
def test_a_launcher_that_is_killed_alone_takes_its_ranks_along_and_the_spare_takes_over(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as job:
        start_three(job)
        victim = job.rank_pid(1, 0)
        os.kill(job.nodes[1].pid, signal.SIGKILL)
        await_end(victim, 5.0)
        job.until_stepping(1, 2)
        assert [job.node_of(rank, 1) for rank in (0, 1)] == [0, 2]
        job.finish()
        assert job.wait(0, 2) == [0, 0]


@pytest.mark.slow
def test_a_frozen_launcher_loses_its_seat_and_its_ranks_disturb_nobody_when_it_thaws(tmp_path: Path) -> None:
    with crew(tmp_path, nnodes="2:3", options=(*WARM, "--first-round-grace", "20", "--liveness-timeout", "3")) as job:
        start_three(job)
        for pid in job.nodes[1].processes():
            os.kill(pid, signal.SIGSTOP)
        job.until_stepping(1, 2)
        assert [job.node_of(rank, 1) for rank in (0, 1)] == [0, 2]
        for pid in job.nodes[1].processes():
            os.kill(pid, signal.SIGCONT)
        job.wait(1)
        steps = len(job.events("step", round_number=1))
        job.until(lambda: len(job.events("step", round_number=1)) > steps + 20, "training goes on")
        assert {event["round"] for event in job.events("born")} == {0, 1}
        job.finish()
        assert job.wait(0, 2) == [0, 0]


@pytest.mark.slow
def test_a_late_spare_restarts_nothing_and_is_used_when_it_is_needed(tmp_path: Path) -> None:
    with crew(tmp_path, nnodes="2:2", options=WARM) as job:
        job.start(0, 1)
        job.until_stepping(0, 2)
        job.start(2)  # one more than MAX
        job.until_parked(2)
        assert {event["round"] for event in job.events("born")} == {0}
        job.nodes[1].kill()
        job.until_stepping(1, 2)
        assert [job.node_of(rank, 1) for rank in (0, 1)] == [0, 2]
        job.finish()
        assert job.wait(0, 2) == [0, 0]


def test_a_dead_host_ends_every_launcher_and_all_ranks(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as job:
        start_three(job)
        pids = [job.rank_pid(rank, 0) for rank in (0, 1)]
        job.nodes[0].kill()
        assert job.wait(1, 2, seconds=10) == [75, 75]
        assert not any(is_alive(pid) for pid in pids)


def test_a_spent_budget_ends_also_a_launcher_whose_ranks_are_well(tmp_path: Path) -> None:
    with crew(tmp_path, nnodes="2:2", options=("--max-restarts", "0")) as job:
        job.start(0, 1)
        job.until_stepping(0, 2)
        os.kill(job.rank_pid(1, 0), signal.SIGKILL)
        assert job.wait(seconds=20) == [1, 1]


@pytest.mark.slow
def test_a_term_at_the_host_ends_the_job_as_terminated_on_every_node(tmp_path: Path) -> None:
    with crew(tmp_path, nnodes="2:2", options=WARM) as job:
        job.start(0, 1)
        job.until_stepping(0, 2)
        os.kill(job.nodes[0].pid, signal.SIGTERM)
        assert job.wait(seconds=20) == [143, 143]


@pytest.mark.slow
def test_a_term_at_another_node_gives_its_seat_to_the_spare(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as job:
        start_three(job)
        os.kill(job.nodes[1].pid, signal.SIGTERM)
        assert job.wait(1) == [143]
        job.until_stepping(1, 2)
        job.finish()
        assert job.wait(0, 2) == [0, 0]


@pytest.mark.slow
def test_a_survivor_that_ignores_term_costs_the_grace_and_no_more(tmp_path: Path) -> None:
    with one_node(tmp_path, "--stop-grace", "1") as job:
        job.start(0)
        job.until_stepping(0, 2)
        job.order(0, do="stick")
        job.until(lambda: job.events("stuck"), "it is stuck")
        victim = job.rank_pid(1, 0)
        os.kill(victim, signal.SIGKILL)
        job.until_stepping(1, 2)
        log = job.nodes[0].log.read_text()
        assert "killed=1" in log
        job.finish()
        assert job.wait() == [0]
