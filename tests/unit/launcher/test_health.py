"""All checks of a node before a round: one deadline, fresh where a failure may have changed something, never hung."""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nvrx_chain.launcher.checks import Check, Seen, make_checks
from nvrx_chain.launcher.health import Finding, Health, HealthChecks
from nvrx_chain.launcher.health_settings import make_health_settings
from nvrx_chain.launcher.place import read_place


class Scripted:
    """A check that answers what it is told to, and counts."""

    def __init__(self, name: str = "scripted", ttl: float = 0.0, every: float = 0.0, sick: bool = True) -> None:
        self.name = name
        self.ttl_seconds = ttl
        self.every_seconds = every
        self.patience_seconds = math.inf
        self.silence_is_sick = sick
        self.answer = Seen()
        self.rounds: list[int] = []
        self.held = threading.Event()
        self.held.set()
        self.looked = threading.Semaphore(0)

    def look(self, round_number: int) -> Seen:
        self.rounds.append(round_number)
        self.looked.release()
        self.held.wait(30.0)
        return self.answer


@pytest.fixture
def started() -> Iterator[Callable[[Sequence[Check]], HealthChecks]]:
    made: list[HealthChecks] = []

    def start(checks: Sequence[Check]) -> HealthChecks:
        made.append(HealthChecks(checks))
        return made[-1]

    yield start
    for health in made:
        health.close()


Start = Callable[[Sequence[Check]], HealthChecks]


def test_a_node_without_checks_is_healthy(started: Start) -> None:
    health = started([]).check(0, 1.0)
    assert health.is_healthy
    assert health.describe() == "healthy"


def test_findings_come_in_the_order_of_the_checks_whoever_is_done_first(started: Start) -> None:
    slow, fast = Scripted("slow"), Scripted("fast")
    slow.answer, fast.answer = Seen(sick=("a", "b")), Seen(sick=("c",), unobserved=("d",))
    slow.held.clear()
    threading.Timer(0.1, slow.held.set).start()
    health = started([slow, fast]).check(4, 10.0)
    assert health.describe() == "slow: a; slow: b; fast: c"
    assert health.unobserved == (Finding(check="fast", reason="d"),)
    assert not health.is_healthy
    assert (health.round, slow.rounds, fast.rounds) == (4, [4], [4])


def test_what_cannot_be_observed_is_said_once_and_keeps_nobody_out(
    started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    check = Scripted()
    check.answer = Seen(unobserved=("no pynvml",))
    health = started([check])
    with caplog.at_level(logging.WARNING):
        assert health.check(0, 10.0).is_healthy
        assert health.check(1, 10.0).is_healthy
    assert [record.getMessage() for record in caplog.records] == [
        "a health check cannot tell check=scripted reason=no pynvml"
    ]


def test_checks_that_hang_share_one_deadline(started: Start) -> None:
    hung = [Scripted("gpu"), Scripted("storage"), Scripted("drain", sick=False)]
    for check in hung:
        check.held.clear()
    good = Scripted("good")
    started_at = time.monotonic()
    health = started([*hung, good]).check(0, 0.3)
    assert 0.3 <= time.monotonic() - started_at < 1.0
    assert health.findings == (
        Finding(check="gpu", reason="no result within 0.3 s"),
        Finding(check="storage", reason="no result within 0.3 s"),
    )
    assert health.unobserved == (Finding(check="drain", reason="no result within 0.3 s"),)
    for check in hung:
        check.held.set()


def test_a_marker_on_a_file_system_that_stalls_delays_a_join_no_longer_than_its_patience(started: Start) -> None:
    check = Scripted("drain", sick=False)
    check.patience_seconds = 0.1
    check.held.clear()
    found = started([check, Scripted()]).check(0, 30.0)
    check.held.set()
    assert found.is_healthy
    assert found.unobserved == (Finding(check="drain", reason="no result within 0.1 s"),)
    assert found.seconds < 2.0


def test_a_check_that_hangs_is_not_started_a_second_time_and_counts_again_when_it_answers(started: Start) -> None:
    check = Scripted(sick=False)
    check.held.clear()
    health = started([check])
    before = set(threading.enumerate())
    for round_number in range(5):
        assert health.check(round_number, 0.02).unobserved
    assert check.rounds == [0]
    assert len(set(threading.enumerate()) - before) == 1
    check.held.set()
    # What was begun for an earlier round does not count for this one.
    assert health.check(5, 10.0).unobserved == ()
    assert check.rounds[-1] == 5


def test_a_check_without_a_time_to_live_looks_before_each_round(started: Start) -> None:
    check = Scripted()
    health = started([check])
    for round_number in range(3):
        health.check(round_number, 10.0)
    assert check.rounds == [0, 1, 2]


def test_a_good_result_counts_for_its_time_and_a_bad_one_never(started: Start) -> None:
    check = Scripted(ttl=60.0)
    health = started([check])
    health.check(0, 10.0)
    health.check(1, 10.0)
    assert check.rounds == [0]
    bad = Scripted(ttl=60.0)
    bad.answer = Seen(sick=("down",))
    health = started([bad])
    assert not health.check(0, 10.0).is_healthy
    bad.answer = Seen()
    assert health.check(1, 10.0).is_healthy
    assert bad.rounds == [0, 1]


def test_a_good_result_that_is_too_old_is_looked_at_again(started: Start) -> None:
    check = Scripted(ttl=0.05)
    health = started([check])
    health.check(0, 10.0)
    time.sleep(0.06)
    health.check(1, 10.0)
    assert check.rounds == [0, 1]


def test_in_the_background_results_are_renewed_so_that_a_join_waits_for_nothing(started: Start) -> None:
    check = Scripted(ttl=5.0, every=0.02)
    health = started([check])
    health.start_background()
    for _ in range(3):
        assert check.looked.acquire(timeout=10.0)
    looks = len(check.rounds)
    assert health.check(7, 10.0).is_healthy
    assert 7 not in check.rounds[:looks]


def test_a_bad_result_of_the_background_is_looked_at_again_before_it_costs_the_node(started: Start) -> None:
    check = Scripted(ttl=60.0, every=30.0)
    check.answer = Seen(sick=("a moment's trouble",))
    health = started([check])
    health.start_background()
    assert check.looked.acquire(timeout=10.0)
    check.answer = Seen()
    assert health.check(1, 10.0).is_healthy


def test_without_a_background_pace_nothing_runs_while_training(started: Start) -> None:
    check = Scripted(ttl=60.0)
    health = started([check])
    health.start_background()
    health.check(0, 10.0)
    assert check.looked.acquire(timeout=10.0)
    assert not check.looked.acquire(timeout=0.1)
    assert check.rounds == [0]


def test_a_check_with_a_fault_of_its_own_does_not_cost_the_node(
    started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(Scripted):
        def look(self, round_number: int) -> Seen:
            super().look(round_number)
            raise ZeroDivisionError("oh")

    faulty = Faulty()
    health = started([faulty])
    with caplog.at_level(logging.ERROR):
        found = health.check(0, 10.0)
    assert found.is_healthy
    assert "ZeroDivisionError" in found.unobserved[0].reason
    assert "Traceback" in caplog.text
    assert health.check(1, 10.0).is_healthy
    assert faulty.rounds == [0, 1]


def test_the_result_is_posted_once_from_another_thread(started: Start) -> None:
    check = Scripted()
    posted: list[tuple[Health, int]] = []
    done = threading.Event()

    def post(health: Health) -> None:
        posted.append((health, threading.get_ident()))
        done.set()

    started([check]).begin(3, 10.0, post)
    assert done.wait(10.0)
    assert [health.round for health, _ in posted] == [3]
    assert posted[0][1] != threading.get_ident()


def test_closing_ends_the_threads(started: Start) -> None:
    before = set(threading.enumerate())
    health = started([Scripted(ttl=1.0, every=0.01), Scripted()])
    health.start_background()
    health.check(0, 10.0)
    health.close()
    deadline = time.monotonic() + 10.0
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before


def test_a_restart_on_a_healthy_node_without_gpus_costs_under_10_ms(tmp_path: Path, started: Start) -> None:
    for name in ("control", "health", "data"):
        (tmp_path / name).mkdir()
    environ = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_NNODES": "1",
               "SLURM_PROCID": "0", "NVRX_INJECT_GPU_FAILURE": "99:99"}  # fmt: skip
    settings = make_health_settings(
        environ,
        storage_paths=[str(tmp_path / "data")],
        segment_dir=str(tmp_path / "health"),
        control_dir=str(tmp_path / "control"),
    )
    health = started(make_checks(settings, read_place(environ, "host"), environ, None))
    health.start_background()
    assert health.check(0, 30.0).is_healthy
    # The best of many: the machine may be busy with something else.
    taken = [health.check(round_number, 30.0) for round_number in range(1, 40)]
    assert all(found.is_healthy and not found.unobserved for found in taken)
    assert statistics.quantiles([found.seconds for found in taken])[0] < 0.010
