"""The undisturbed run beside the cluster: its losses, its failures, its end. A script stands for the interpreter."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.demo.reference import DEADLINE_SECONDS, ReferenceRun, reference_argv, started_reference
from nvrx_chain.errors import DemoError, Unobserved
from tests.fakes.fake_clock import FakeClock
from tests.unit.demo.story import Story, loss_of

PATIENCE_SECONDS = 60.0
Start = Callable[[str], AbstractContextManager[ReferenceRun]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "it's 100% here"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def start(tmp_path: Path, place: Path, clock: FakeClock) -> Start:
    """Start a run whose interpreter is a shell script with this body."""

    def start_script(body: str) -> AbstractContextManager[ReferenceRun]:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        return started_reference(str(script), place, os.environ, clock, target_iteration=3, ranks=2)

    return start_script


def answer_of(run: ReferenceRun) -> Mapping[int, str] | Unobserved:
    """What the run says when it has ended."""
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while (losses := run.losses()) is None:
        assert clock.monotonic() < deadline, "the run does not end"
        clock.wait(threading.Event(), 0.01)
    return losses


def test_the_losses_are_there_when_the_run_has_ended(tmp_path: Path, place: Path, start: Start) -> None:
    story = Story()
    story.trains(0, 0, 3, at=1.0)
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in story.events))
    go = tmp_path / "go"
    os.mkfifo(go)
    with start(f'read -r _ < "{go}"; cp "{lines}" "{place}/events/rank0.jsonl"; exit 0') as run:
        (place / "events").mkdir()
        assert run.losses() is None
        go.write_text("go\n")
        assert answer_of(run) == {iteration: loss_of(iteration) for iteration in (1, 2, 3)}


def test_a_run_that_fails_says_how_and_where_its_log_is(place: Path, start: Start) -> None:
    with start("echo no such module >&2; exit 3") as run:
        answer = answer_of(run)
    assert answer == Unobserved(f"the undisturbed run exited with 3, see {place / 'log'}")
    assert (place / "log").read_text() == "no such module\n"


def test_a_run_that_takes_too_long_is_given_up(start: Start, clock: FakeClock) -> None:
    with start("exec sleep 600") as run:
        assert run.losses() is None
        clock.advance(DEADLINE_SECONDS)
        assert isinstance(run.losses(), Unobserved)


def test_a_run_is_gone_with_its_context(tmp_path: Path, start: Start) -> None:
    with start(f'echo $$ > "{tmp_path}/pid.tmp"; mv "{tmp_path}/pid.tmp" "{tmp_path}/pid"; exec sleep 600') as run:
        pid = _await_pid(tmp_path / "pid", run)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _await_pid(path: Path, run: ReferenceRun) -> int:
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert clock.monotonic() < deadline
        assert run.losses() is None
        clock.wait(threading.Event(), 0.01)
    return int(path.read_text())


def test_an_interpreter_that_is_not_there_is_an_error(tmp_path: Path, clock: FakeClock) -> None:
    run = started_reference(str(tmp_path / "none"), tmp_path / "run", {}, clock, target_iteration=3, ranks=2)
    with pytest.raises(DemoError, match="starting the undisturbed run"):
        run.__enter__()


def test_the_variables_of_an_enclosing_job_do_not_reach_it(place: Path, tmp_path: Path, clock: FakeClock) -> None:
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "${SLURM_ARRAY_JOB_ID-none}"; exit 1\n')
    script.chmod(0o755)
    environ = {**os.environ, "SLURM_ARRAY_JOB_ID": "7"}
    with started_reference(str(script), place, environ, clock, target_iteration=3, ranks=2) as run:
        answer_of(run)
    assert (place / "log").read_text() == "none\n"


def test_the_run_has_the_ranks_and_the_target_of_the_chain_and_saves_nothing_on_the_way() -> None:
    argv = reference_argv("/venv/bin/python", Path("/d"), target_iteration=80, ranks=2)
    assert argv[:3] == ("/venv/bin/python", "-m", "torch.distributed.run")
    assert "--nproc-per-node=2" in argv
    assert {"--target-iteration=80", "--save-interval=0", "--log-interval=1"} <= set(argv)
    assert "--event-file=/d/events/rank{rank}.jsonl" in argv
