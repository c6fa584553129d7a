"""How a life of a rank ends: signals, faults, nothing left to do, a directory that cannot be resumed from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.workloads.checkpoint import TRACKER_NAME
from nvrx_chain.workloads.events import Ending, Event, EventKind
from tests.unit.workloads.conftest import TARGET
from tests.unit.workloads.lives import Job, wait_until

REPOSITORY = Path(__file__).parents[3]
FOR_EVER = "--target-iteration=1000000"


def is_step(event: Event) -> bool:
    return event.event is EventKind.STEP


def is_fault(event: Event) -> bool:
    return event.event is EventKind.FAULT


def is_signal(event: Event) -> bool:
    return event.event is EventKind.SIGNAL


def tracked(job: Job) -> int:
    return int((job.checkpoints / TRACKER_NAME).read_text())


def test_sigusr1_to_one_rank_saves_one_iteration_on_all(tmp_path: Path, undisturbed: dict[int, dict[int, str]]) -> None:
    job = Job(tmp_path, world_size=2)
    with job.life(f"--target-iteration={TARGET}", "--save-interval=0", "--step-seconds=0.25") as life:
        life.wait_for(1, is_step)
        life.signal(1, signal.SIGUSR1)
        assert life.exit_codes() == [0, 0]
    ends = [job.events(rank)[-1] for rank in (0, 1)]
    assert [end.outcome for end in ends] == [Ending.SIGNAL, Ending.SIGNAL]
    assert ends[0].iteration == ends[1].iteration == tracked(job) < TARGET
    assert [event.signal for event in job.events(1) if is_signal(event)] == ["SIGUSR1"]
    assert not any(map(is_signal, job.events(0)))
    assert not job.done_file.exists()
    assert job.errors() == ""

    assert job.run(f"--target-iteration={TARGET}") == [0, 0]
    assert job.losses(1) == undisturbed[2]


def test_a_signal_ends_the_wait_for_the_next_step(job: Job) -> None:
    clock = SystemClock()
    with job.life(FOR_EVER, "--step-seconds=3600") as life:
        life.wait_for(0, lambda event: event.event is EventKind.START)
        sent_at = clock.monotonic()
        life.signal(0, signal.SIGUSR1)
        assert life.exit_codes() == [0]
    assert clock.monotonic() - sent_at < 60
    assert tracked(job) == 1


@pytest.mark.parametrize(("what", "code"), [("save", 0), ("die", -signal.SIGTERM)])
def test_sigterm_saves_or_kills_as_asked(job: Job, what: str, code: int) -> None:
    with job.life(FOR_EVER, "--step-seconds=0.01", f"--on-sigterm={what}") as life:
        life.wait_for(0, is_step)
        life.signal(0, signal.SIGTERM)
        assert life.exit_codes() == [code]
    saved = (job.checkpoints / TRACKER_NAME).exists()
    assert saved == (what == "save")
    assert (job.events()[-1].event is EventKind.END) == saved


@pytest.mark.parametrize(
    ("kind", "code"), [("exception", 1), ("sigkill", -signal.SIGKILL), ("exit:93", 93), ("exit:0", 0)]
)
def test_a_fault_fires_where_told_and_in_one_life_only(job: Job, kind: str, code: int) -> None:
    options = ("--target-iteration=8", "--save-interval=2", f"--fault=rank=0,iteration=6,kind={kind}")
    assert job.run(*options) == [code]
    (fault,) = filter(is_fault, job.events())
    assert fault.iteration == 5
    assert max(job.losses()) == 5
    assert fault.fault == f"rank0-iteration6-{kind.replace(':', '')}"
    assert (job.checkpoints / "faults" / f"{fault.fault}.fired").is_file()
    assert ("InjectedFault" in job.errors()) == (kind == "exception")

    assert job.run(*options) == [0]
    assert job.starts() == [0, 4]
    assert len(list(filter(is_fault, job.events()))) == 1


def test_a_repeating_fault_fires_in_every_life(job: Job) -> None:
    options = ("--target-iteration=8", "--fault=rank=0,iteration=3,kind=exit:17,repeat=always")
    assert [job.run(*options), job.run(*options)] == [[17], [17]]
    assert not (job.checkpoints / "faults").exists()


def test_a_delayed_fault_fires_in_the_middle_of_a_long_step(job: Job) -> None:
    assert job.run(FOR_EVER, "--step-seconds=3600", "--fault=rank=0,delay=0.2,kind=exit:9") == [9]
    start, fault = job.events()
    assert fault.event is EventKind.FAULT
    assert 0.2 <= fault.monotonic - start.monotonic < 60


def test_a_hanging_rank_stops_all_and_ends_by_a_kill_only(tmp_path: Path) -> None:
    job = Job(tmp_path, world_size=2)
    with job.life(FOR_EVER, "--fault=rank=1,iteration=4,kind=hang") as life:
        life.wait_for(1, is_fault)
        wait_until(lambda: max(job.losses(0), default=0) == 3)
        life.signal(1, signal.SIGUSR1)
        life.wait_for(1, is_signal)
        assert all(process.is_alive() for process in life.processes)
        life.signal(1, signal.SIGTERM)
        assert life.exit_codes() == [1, -signal.SIGTERM]
    assert max(job.losses(1)) == 3
    assert job.events(0)[-1].outcome is Ending.FAILED


def test_a_finished_run_leaves_at_once_without_torch_and_says_again_that_it_is_done(job: Job) -> None:
    assert job.run("--target-iteration=3") == [0]
    job.done_file.unlink()
    program = (
        "import sys; from nvrx_chain.workloads.mock_gpt import main; code = main(sys.argv[1:]);"
        "sys.exit(code or ('torch' in sys.modules) * 99)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, *job.arguments("--target-iteration=3")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0
    assert job.done_file.read_text() == "3\n"
    start, end = job.events()[-2:]
    assert (start.event, start.iteration) == (EventKind.START, 3)
    assert (end.event, end.outcome) == (EventKind.END, Ending.TARGET)


def test_a_start_says_how_long_it_took(job: Job) -> None:
    assert job.run("--target-iteration=1") == [0]
    start = job.events()[0]
    assert start.since_process_start_seconds is not None
    assert start.since_main_seconds is not None
    assert 0 < start.since_main_seconds <= start.since_process_start_seconds + 0.02


def test_a_tracker_without_its_checkpoint_is_an_error_that_names_the_intact_ones(tmp_path: Path) -> None:
    job, clock = Job(tmp_path, world_size=2), SystemClock()
    assert job.run("--target-iteration=4", "--save-interval=2") == [0, 0]
    (job.checkpoints / TRACKER_NAME).write_text("3")
    began_at = clock.monotonic()
    assert job.run("--target-iteration=6") == [1, 1]
    assert clock.monotonic() - began_at < 60, "rank 1 waited for a checkpoint that rank 0 had found missing"
    assert "iter_0000003: it is missing" in job.errors()
    assert "intact here: 2, 4" in job.errors()


def test_a_newer_checkpoint_that_the_tracker_does_not_name_is_reported_and_replaced(
    job: Job, undisturbed: dict[int, dict[int, str]]
) -> None:
    assert job.run("--target-iteration=20", "--save-interval=10") == [0]
    (job.checkpoints / "iter_0000020" / "model.pt").write_bytes(b"cut")
    (job.checkpoints / TRACKER_NAME).write_text("10\n")
    assert job.run(f"--target-iteration={TARGET}", "--save-interval=20") == [0]
    (ignored,) = (event for event in job.events() if event.event is EventKind.CHECKPOINT_IGNORED)
    assert ignored.iteration == 20
    assert ignored.detail is not None
    assert "model.pt is not what was written (3 of" in ignored.detail
    assert job.starts() == [0, 10]
    assert job.losses() == undisturbed[1]


def test_the_log_interval_makes_blocks_and_the_first_step_has_its_own(job: Job) -> None:
    assert job.run("--target-iteration=10", "--log-interval=4") == [0]
    steps = [event for event in job.events() if is_step(event)]
    assert [(step.iteration, step.steps) for step in steps] == [(1, 1), (4, 3), (8, 4), (10, 2)]
    assert all(step.loss == float.fromhex(step.loss_hex or "") for step in steps)


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--fault=rank=2,iteration=1,kind=hang", "can never fire, there are 2 ranks"),
        ("--event-file=shared.jsonl", "2 ranks would share it"),
    ],
)
def test_what_only_the_number_of_ranks_makes_wrong_is_refused(tmp_path: Path, option: str, complaint: str) -> None:
    job = Job(tmp_path, world_size=2)
    assert job.run(option) == [2, 2]
    assert complaint in job.errors()
