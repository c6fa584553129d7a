"""A run that was killed and resumed is the same run, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.workloads.checkpoint import TRACKER_NAME, CheckpointStore
from nvrx_chain.workloads.events import Ending, Event, EventKind
from tests.unit.workloads.conftest import TARGET
from tests.unit.workloads.lives import PATIENCE_SECONDS, Job

REPOSITORY = Path(__file__).parents[3]


SAVES = (EventKind.SAVE_STARTED, EventKind.SAVE_FINISHED)


def store_of(job: Job) -> CheckpointStore:
    return CheckpointStore(job.checkpoints, keep=2, save_seconds=0, clock=SystemClock())


def parse_line(line: str) -> Event:
    return msgspec.json.decode(line, type=Event)


def is_save_start(event: Event) -> bool:
    return event.event is EventKind.SAVE_STARTED


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_killed_rank_costs_no_bit(tmp_path: Path, undisturbed: dict[int, dict[int, str]], world_size: int) -> None:
    job = Job(tmp_path, world_size=world_size)
    victim = world_size - 1
    options = (f"--target-iteration={TARGET}", "--save-interval=10")
    fault = f"--fault=rank={victim},iteration=26,kind=sigkill"

    codes = job.run(*options, fault)
    assert codes[victim] == -signal.SIGKILL
    assert all(code == 1 for code in codes[:-1])
    assert max(job.losses()) == 25

    assert job.run(*options, fault) == [0] * world_size
    assert job.starts() == [0, 20]
    assert job.losses() == undisturbed[world_size]
    assert job.events()[-1].outcome is Ending.TARGET
    assert job.done_file.read_text() == f"{TARGET}\n"


def test_torchrun_restarts_into_the_same_run(tmp_path: Path, undisturbed: dict[int, dict[int, str]]) -> None:
    job = Job(tmp_path, world_size=2)
    workload = job.arguments(
        f"--target-iteration={TARGET}", "--save-interval=10", "--fault=rank=1,iteration=26,kind=sigkill"
    )
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"),
            *("--module", "nvrx_chain.workloads.mock_gpt", *workload),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    for rank in (0, 1):
        starts = [event for event in job.events(rank) if event.event is EventKind.START]
        assert [(event.iteration, event.restart_count) for event in starts] == [(0, 0), (20, 1)]
        assert all(event.rank == event.local_rank == rank and event.world_size == 2 for event in starts)
        assert job.losses(rank) == undisturbed[2]
    kinds = [event.event for event in job.events(1)]
    assert kinds[kinds.index(EventKind.FAULT) + 1] is EventKind.START
    assert kinds.count(EventKind.FAULT) == kinds.count(EventKind.END) == 1
    started = [event for event in map(parse_line, finished.stdout.splitlines()) if event.event is EventKind.START]
    assert [event.rank for event in started] == [0, 0]


def test_a_kill_at_any_moment_of_an_asynchronous_save_loses_nothing(
    job: Job, undisturbed: dict[int, dict[int, str]]
) -> None:
    options = ("--save-interval=4", "--async-save", "--step-seconds=0.01")
    clock, moments = SystemClock(), random.Random(7)
    stretch = 0.15
    cut_short = 0
    for _ in range(6):
        with job.life(*options, "--target-iteration=1000000", f"--save-seconds={stretch}") as life:
            life.wait_for(0, is_save_start)
            clock.wait(threading.Event(), moments.uniform(0, stretch))
            life.signal(0, signal.SIGKILL)
            assert life.exit_codes() == [-signal.SIGKILL]
        tracked = store_of(job).tracked_iteration()
        if tracked is not None:
            assert store_of(job).read(tracked).metadata.iteration == tracked
        assert job.events()[-1].event is not EventKind.END
        last_save = [event for event in job.events() if event.event in SAVES][-1]
        cut_short += last_save.event is EventKind.SAVE_STARTED
    assert cut_short >= 3, "the kills missed the saves"
    target = max(TARGET, (store_of(job).tracked_iteration() or 0) + 4)
    assert job.run(*options, f"--target-iteration={target}") == [0]
    assert {iteration: loss for iteration, loss in job.losses().items() if iteration <= TARGET} == undisturbed[1]
    assert sorted(path.name for path in job.checkpoints.iterdir()) == [
        f"iter_{target - 4:07d}",
        f"iter_{target:07d}",
        TRACKER_NAME,
    ]


def test_asynchronous_saves_go_on_behind_the_steps_one_at_a_time(job: Job) -> None:
    assert job.run("--target-iteration=12", "--save-interval=4", "--async-save", "--save-seconds=0.3") == [0]
    kinds = [(event.event, event.iteration) for event in job.events()]
    steps_while_saving = kinds[kinds.index((EventKind.SAVE_STARTED, 4)) : kinds.index((EventKind.SAVE_FINISHED, 4))]
    # Which of them is for the scheduler to say: the save begins on a thread of its own.
    assert {kind for kind, _iteration in steps_while_saving[1:]} == {EventKind.STEP}
    assert [kind for kind in kinds if kind[0] in SAVES] == [
        (event, iteration) for iteration in (4, 8, 12) for event in SAVES
    ]


def test_no_rank_ends_before_the_last_checkpoint_is_safe(tmp_path: Path) -> None:
    job = Job(tmp_path, world_size=2)
    assert job.run("--target-iteration=2", "--async-save", "--save-seconds=0.4") == [0, 0]
    (saved,) = (event for event in job.events(0) if event.event is EventKind.SAVE_FINISHED)
    assert saved.save_seconds is not None
    assert saved.save_seconds >= 0.4
    assert saved.save_bytes is not None
    assert saved.save_bytes > 1000
    assert job.events(1)[-1].event is EventKind.END
    assert job.events(1)[-1].monotonic > saved.monotonic


def test_the_tracker_names_a_whole_checkpoint_whenever_somebody_looks(job: Job) -> None:
    store, seen = store_of(job), set()
    with job.life("--target-iteration=60", "--save-interval=1", "--async-save", "--keep=4") as life:
        while life.processes[0].exitcode is None:
            tracked = store.tracked_iteration()
            if tracked is not None:
                assert store.read(tracked).metadata.iteration == tracked
                seen.add(tracked)
        assert life.exit_codes() == [0]
    assert len(seen) > 5


def test_the_run_learns(undisturbed: dict[int, dict[int, str]]) -> None:
    losses = [float.fromhex(loss) for _, loss in sorted(undisturbed[1].items())]
    assert sum(losses[-10:]) < sum(losses[:10])


def test_another_number_of_ranks_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    assert Job(tmp_path, world_size=1).run("--target-iteration=6") == [0]
    wider = Job(tmp_path, world_size=2)
    assert wider.run("--target-iteration=12") == [0, 0]
    assert wider.starts(rank=1) == [6]


def test_a_checkpoint_of_another_model_is_refused(job: Job) -> None:
    assert job.run("--target-iteration=3") == [0]
    assert job.run("--target-iteration=6", "--width=32") == [1]
    assert "the checkpoint has model" in job.errors()
    assert "another --checkpoint-dir" in job.errors()


def test_a_fresh_start_takes_no_checkpoint_and_replaces_those_that_are_there(tmp_path: Path) -> None:
    job = Job(tmp_path, world_size=2)
    options = ("--save-interval=4", "--fresh-start")
    # The second life first saves what the tracker names: without forgetting it the save would be refused.
    assert job.run(*options, "--target-iteration=4") == [0, 0]
    assert job.run(*options, "--target-iteration=4") == [0, 0]
    assert job.starts() == job.starts(rank=1) == [0, 0]
    assert store_of(job).tracked_iteration() == 4
    assert store_of(job).read(4).metadata.iteration == 4
