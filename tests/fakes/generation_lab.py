"""One chain in a run directory, on a fake clock and a fake Slurm, and contexts to be any task of any generation.

Nothing runs by itself: leases beat and launchers end as the clock moves on, and every look at the board is fresh.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.generation.background import Spawn
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.identity import TaskIdentity
from nvrx_chain.generation.lease import LeaseWriter
from nvrx_chain.generation.signals import SignalFlags
from nvrx_chain.generation.watcher import BoardWatcher, Snapshot
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.control import Closed, LauncherExit
from nvrx_chain.records.files import encode_record, read_record, write_atomic
from nvrx_chain.records.layout import GenerationDirectory, RunDirectory
from nvrx_chain.records.manifest import (
    ChainManifest,
    Completion,
    CompletionKind,
    Launcher,
    LauncherKind,
    Shape,
    SubmissionId,
    Thresholds,
)
from nvrx_chain.slurm.identity import format_comment
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.slurm.nodelist import expand_nodes
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm

CHAIN_ID = "train-1"
JOB_NAME = "train"
USER = "alice"

# No test lets more time pass: who still waits then would wait for ever.
LONGEST_SECONDS = 3600.0

R = TypeVar("R")


def shape(train: int = 2, hot: int = 1, cold: int = 2, nodes: int = 1) -> Shape:
    """T training tasks, H hot and C cold spares."""
    return Shape(
        train_tasks=train,
        hot_spares=hot,
        cold_spares=cold,
        nodes_per_task=nodes,
        gpus_per_node=8,
        procs_per_node=8,
    )


def at_once(work: Callable[[], None], _name: str) -> None:
    """A spawn that does the work before it returns."""
    work()


class HeldWork:
    """A spawn whose work hangs until `release`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._held: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], None], name: str) -> None:
        self.names.append(name)
        self._held.append(work)

    def release(self) -> None:
        held, self._held = self._held, []
        for work in held:
            work()


class ClockworkLease(LeaseWriter):
    """Beats as the clock moves; `freeze` ends that as a stalled file system or a dead process would."""

    frozen = False

    def start(self) -> None:
        self._beat()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        self._beat()

    def _beat(self) -> None:
        if self.frozen or self._stop.is_set():
            return
        self._write()
        clock = self._clock
        assert isinstance(clock, FakeClock)
        clock.after(self.interval_seconds, self._beat)


class FreshWatcher(BoardWatcher):
    """Reads whenever it is asked, in the thread that asks."""

    def start(self) -> None:
        self._latest = self.read()

    def latest(self) -> Snapshot:
        # It counts as having looked all the time.
        self._sight.seen_at = self._clock.monotonic()
        return self.read()


class FakeLauncher:
    """The launcher of one task. It runs until it is told to end, or told to stop while it `obeys`."""

    def __init__(self, board: Board, clock: FakeClock) -> None:
        self.board = board
        self.obeys: int | None = 143
        self.takes_seconds = 1.0
        self.said: list[str] = []
        self.excuses: list[float] = []
        self._clock = clock
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._code

    def save(self) -> None:
        self.said.append("save")

    def excuse(self, seconds: float) -> None:
        self.said.append("excused")
        self.excuses.append(seconds)

    def stop(self, *, gentle: bool) -> None:
        self.said.append("stop gentle" if gentle else "stop")
        if self.obeys is not None and self._code is None:
            code = self.obeys
            self._clock.after(self.takes_seconds, lambda: self.exit(code))

    def kill(self) -> None:
        if self._code is None:
            self.said.append("kill")
            self._code = -int(signal.SIGKILL)

    def exit(self, code: int, *, lost: bool = False) -> None:
        """Every node's wrapper writes its exit, and srun returns the highest code."""
        if self._code is None:
            for node in self.board.identity.nodes:
                self.write_exit(node, code, lost=lost)
            self._code = code

    def vanish(self, code: int) -> None:
        """srun returns and no wrapper wrote anything."""
        self._code = code

    def write_exit(self, node: str, code: int, *, lost: bool = False) -> None:
        now = format_time(self._clock.now())
        identity = self.board.identity
        record = LauncherExit(
            node=node,
            exit_code=code,
            asked_to_stop=any(word.startswith("stop") for word in self.said),
            rendezvous_lost=lost,
            started_at=now,
            ended_at=now,
            **identity.stamp(),
        )
        path = self.board.directory.launcher_exit(identity.array_task_id, node)
        write_atomic(path, encode_record(record))


class Lab:
    """The chain. `submit` queues generations; `context` makes this test one of their tasks."""

    def __init__(
        self,
        path: Path,
        *,
        shape: Shape | None = None,
        thresholds: Thresholds | None = None,
        completion: Completion | None = None,
        launcher: LauncherKind = LauncherKind.FT_LAUNCHER,
        time_limit_seconds: int | None = None,
        fence_stuck: bool = False,
        slurm: Callable[[FakeClock], FakeSlurm] | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.began = self.clock.now()
        self.clock.after(LONGEST_SECONDS, _give_up)
        self.slurm = slurm(self.clock) if slurm else FakeSlurm(self.clock, user=USER)
        self.run = RunDirectory(path / "run & #'100%\"")
        self.chain = ChainFiles(self.run, CHAIN_ID)
        self.launchers: dict[tuple[int, int], FakeLauncher] = {}
        for directory in (self.run.submissions, self.run.generations):
            directory.mkdir(parents=True)
        self.manifest = ChainManifest(
            chain_id=CHAIN_ID,
            job_name=JOB_NAME,
            user=USER,
            uid=os.geteuid(),
            cluster=None,
            run_directory=str(self.run.path),
            submitted_at=format_time(self.clock.now()),
            package_version="0.1.0",
            interpreter="/usr/bin/python3",
            shape=shape or _DEFAULT_SHAPE,
            chain_depth=3,
            time_limit_seconds=time_limit_seconds,
            launcher=Launcher(kind=launcher, python="/usr/bin/python3", max_restarts=3),
            workload=("train.py",),
            checkpoint_iteration_file=str(self.run.default_iteration_file),
            completion=completion or Completion(kind=CompletionKind.EXIT_ZERO),
            thresholds=thresholds or Thresholds(),
            fence_stuck=fence_stuck,
        )
        write_atomic(self.run.manifest, encode_record(self.manifest))

    def submit(self, count: int = 1) -> list[int]:
        """Queue generations and record their ids."""
        size = self.manifest.shape
        first = len(self.chain.generations()) + 1
        jobs = []
        for sequence in range(first, first + count):
            argv = (
                "--parsable",
                f"--array=0-{size.total - 1}%{size.throttle}",
                f"--nodes={size.nodes_per_task}",
                f"--job-name={JOB_NAME}",
                f"--comment={format_comment(CHAIN_ID, sequence)}",
                "--dependency=singleton",
                "--no-requeue",
                "generation.sbatch",
            )
            job = self.slurm.submit(argv).array_job_id
            self.record(sequence, job)
            jobs.append(job)
        return jobs

    def record(self, sequence: int, job: int, submitted_at: str | None = None) -> None:
        """Write the id of a submission."""
        record = SubmissionId(
            chain_id=CHAIN_ID,
            sequence=sequence,
            array_job_id=job,
            cluster=None,
            submitted_at=submitted_at or format_time(self.clock.now()),
            adopted=False,
            recorded_at=format_time(self.clock.now()),
        )
        write_atomic(self.run.submission_id(sequence), encode_record(record))

    def context(self, job: int, task: int = 0, *, spawn: Spawn = at_once, restart_count: int = 0) -> TaskContext:
        """This test as one task, on the nodes that Slurm gave it. Its lease does not beat yet."""
        nodes = expand_nodes(self.slurm.task(f"{job}_{task}").nodelist)
        identity = TaskIdentity(
            array_job_id=job,
            array_task_id=task,
            restart_count=restart_count,
            host=nodes[0] if nodes else "n0",
            nodes=nodes or ("n0",),
            boot_id=f"boot of {nodes[0] if nodes else 'n0'}",
            pid=1000 + task,
            pid_started_at=7,
        )
        board = Board(self.run.generation(job), identity, self.clock)
        board.prepare()

        def start_launcher() -> FakeLauncher:
            return self.launchers.setdefault((job, task), FakeLauncher(board, self.clock))

        return TaskContext(
            manifest=self.manifest,
            chain=self.chain,
            identity=identity,
            board=board,
            clock=self.clock,
            client=self.slurm,
            signals=SignalFlags(),
            lease=ClockworkLease(board, self.clock, self.manifest.thresholds.lease_interval),
            watcher=FreshWatcher(board, self.chain, self.clock, 1.0, all_leases=True),
            start_launcher=start_launcher,
            spawn=spawn,
        )

    def arrive(self, job: int, task: int, *, spawn: Spawn = at_once) -> TaskContext:
        """A context of a task that runs: its lease beats and it has joined."""
        context = self.context(job, task, spawn=spawn)
        context.lease.start()
        context.board.join()
        context.watcher.start()
        return context

    def launcher(self, context: TaskContext) -> FakeLauncher:
        """The launcher that this task will start or has started."""
        key = (context.array_job_id, context.identity.array_task_id)
        return self.launchers.setdefault(key, FakeLauncher(context.board, self.clock))

    def directory(self, job: int) -> GenerationDirectory:
        return self.run.generation(job)

    def closed(self, job: int) -> Closed | None:
        """How a generation was closed."""
        return self.chain.closed_of(job)

    def checkpoint(self, iteration: int) -> None:
        """The workload saved."""
        path = self.run.default_iteration_file
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, f"{iteration}\n".encode())

    def states_of(self, job: int) -> list[str]:
        """What the queue shows of any array job."""
        reading = self.slurm.queue()
        assert isinstance(reading, QueueReading)
        return [row.raw_state for row in reading.of(job)]

    def states(self, job: int) -> dict[int, str]:
        """The truth about every task of an array job."""
        return {task: self.slurm.task(f"{job}_{task}").raw_state for task in range(self.manifest.shape.total)}


_DEFAULT_SHAPE = shape()


def _give_up() -> None:
    raise AssertionError(f"somebody waits for more than {LONGEST_SECONDS:.0f} s")


def freeze(context: TaskContext) -> None:
    """The task's lease stops beating."""
    assert isinstance(context.lease, ClockworkLease)
    context.lease.freeze()


def thaw(context: TaskContext) -> None:
    """The task's lease beats again."""
    assert isinstance(context.lease, ClockworkLease)
    context.lease.thaw()


def terminate(context: TaskContext) -> None:
    """The task gets a TERM."""
    context.signals.terminated = True
    context.signals.wake.set()


def read(path: Path, kind: type[R]) -> R:
    """A record that must be there."""
    record = read_record(path, kind)
    assert isinstance(record, kind), record
    return record


def replace_struct(record: R, **changes: object) -> R:
    """A copy of a record with other fields."""
    return msgspec.structs.replace(record, **changes)  # type: ignore[type-var]
