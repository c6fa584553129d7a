"""Real ranks of mock_gpt that tests start, watch and kill. Forked from a server that has imported torch once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.forkserver import ensure_running
from pathlib import Path

from nvrx_chain.clock import SystemClock
from nvrx_chain.workloads.events import Event, EventKind, read_events

PATIENCE_SECONDS = 120.0
_LOOK_AGAIN_SECONDS = 0.005
_CONTEXT = multiprocessing.get_context("forkserver")
_CLOCK = SystemClock()


def start_server() -> None:
    """Start the process that all lives are forked from. Its environment is that of this moment."""
    # Threads that a numeric library starts at import would be missing in every fork.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    _CONTEXT.set_forkserver_preload(["nvrx_chain.workloads.training"])
    ensure_running()


class Job:
    """A checkpoint directory and the lives of the ranks that train in it, one set after the other."""

    def __init__(self, directory: Path, *, world_size: int = 1) -> None:
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self.done_file = directory / "done"
        self._world_size = world_size

    def arguments(self, *extra: str) -> list[str]:
        """The options of every life of this job, then those of one of them, which win."""
        return [
            f"--checkpoint-dir={self.checkpoints}",
            f"--event-file={self.directory / 'events-{rank}.jsonl'}",
            f"--done-file={self.done_file}",
            "--log-interval=1",
            "--device=cpu",
            "--layers=1",
            "--width=16",
            "--heads=2",
            "--sequence=8",
            "--vocabulary=32",
            "--batch=2",
            *extra,
        ]

    @contextmanager
    def life(self, *extra: str) -> Iterator[Life]:
        """All ranks, started; those that the test leaves running are killed."""
        life = Life(self, self.arguments(*extra), self._world_size)
        try:
            yield life
        finally:
            life.kill_the_rest()

    def run(self, *extra: str) -> list[int]:
        """A life from start to end: the exit codes by rank."""
        with self.life(*extra) as life:
            return life.exit_codes()

    def events(self, rank: int = 0) -> list[Event]:
        """What a rank wrote in all its lives so far."""
        path = self.directory / f"events-{rank}.jsonl"
        return list(read_events(path)) if path.exists() else []

    def losses(self, rank: int = 0) -> dict[int, str]:
        """Iteration to loss as hex, over all lives. An iteration that was trained twice must have come out the same."""
        losses: dict[int, str] = {}
        for event in self.events(rank):
            if event.event is EventKind.STEP:
                assert event.loss_hex is not None
                assert losses.setdefault(event.iteration, event.loss_hex) == event.loss_hex
        return losses

    def starts(self, rank: int = 0) -> list[int]:
        """The iterations that the lives of a rank resumed from."""
        return [event.iteration for event in self.events(rank) if event.event is EventKind.START]

    def errors(self) -> str:
        """Standard error of every rank and life."""
        return "".join(path.read_text() for path in sorted(self.directory.glob("stderr-*")))


class Life:
    """The processes of one attempt, one per rank."""

    def __init__(self, job: Job, arguments: Sequence[str], world_size: int) -> None:
        self._job = job
        job.directory.mkdir(parents=True, exist_ok=True)
        environments = [{}] if world_size == 1 else list(_launcher_environments(world_size))
        self.processes = [
            _CONTEXT.Process(target=_live, args=(list(arguments), environment, job.directory / f"stderr-{rank}"))
            for rank, environment in enumerate(environments)
        ]
        for process in self.processes:
            process.start()
        self._seen = {rank: len(job.events(rank)) for rank in range(world_size)}

    def wait_for(self, rank: int, wanted: Callable[[Event], bool]) -> Event:
        """The first event of this life that is wanted. Fails when the rank ends without it."""
        found: list[Event] = []

        def look() -> bool:
            gone = self.processes[rank].exitcode is not None
            found.extend(event for event in self._job.events(rank)[self._seen[rank] :] if wanted(event))
            assert found or not gone, f"rank {rank} ended without the event: {self._job.errors()}"
            return bool(found)

        wait_until(look)
        return found[0]

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to one rank, which must be alive to get it."""
        process = self.processes[rank]
        assert process.is_alive()
        assert process.pid is not None
        os.kill(process.pid, number)

    def exit_codes(self) -> list[int]:
        """Wait for all ranks to end by themselves; the code of each, negative for a signal."""
        codes = []
        for rank, process in enumerate(self.processes):
            process.join(PATIENCE_SECONDS)
            assert process.exitcode is not None, f"rank {rank} did not end: {self._job.errors()}"
            codes.append(process.exitcode)
        return codes

    def kill_the_rest(self) -> None:
        """Leave no process behind."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(PATIENCE_SECONDS)
            process.close()


def run_with_torch(function: Callable[[], None]) -> None:
    """Run a function of a module in a process of its own that has torch already. What it raises fails the test."""
    process = _CONTEXT.Process(target=function)
    process.start()
    process.join(PATIENCE_SECONDS)
    code = process.exitcode
    process.kill()
    process.join(PATIENCE_SECONDS)
    process.close()
    assert code == 0, f"{function.__name__} ended with {code}; its traceback is on standard error"


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again until the condition holds; fail when it does not come true in time."""
    deadline = _CLOCK.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert _CLOCK.monotonic() < deadline, "waited in vain"
        _CLOCK.wait(threading.Event(), _LOOK_AGAIN_SECONDS)


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _launcher_environments(world_size: int) -> Iterator[Mapping[str, str]]:
    port = str(free_port())
    for rank in range(world_size):
        yield {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }


def _live(arguments: Sequence[str], environment: Mapping[str, str], stderr: Path) -> None:
    from nvrx_chain.workloads.mock_gpt import main

    os.environ.update(environment)
    descriptor = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = main(arguments)
    if "torch._dynamo" in sys.modules:
        raise AssertionError("something imported torch._dynamo, which doubles the start-up time")
    sys.exit(code)
