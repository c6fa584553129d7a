"""A chain on a FakeSlurm and on disk, the snapshot that a pass would make of it, and a desk to act from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import Closed, Lease, Left
from nvrx_chain.records.files import encode_record, read_record, write_atomic
from nvrx_chain.records.layout import GenerationDirectory, RunDirectory
from nvrx_chain.records.manifest import (
    ChainManifest,
    Completion,
    CompletionKind,
    Launcher,
    LauncherKind,
    Shape,
)
from nvrx_chain.slurm.model import AccountedTask, QueuedTask, QueueReading
from nvrx_watch.acting.desk import ActionDesk, CommandAnswer
from nvrx_watch.acting.perform import perform
from nvrx_watch.action_model import ActionReport, Rights
from nvrx_watch.memory import Memory
from nvrx_watch.model import (
    ActionKind,
    ActionRequest,
    Finding,
    Generation,
    Queue,
    Severity,
    Snapshot,
    SourceReport,
    Subject,
)
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm

USER = "alice"
UID = os.getuid()
NAME = "train"
CHAIN_ID = "c0ffee"
TASKS = 7
AWKWARD = 'it\'s a "run" & #1 100%'
EVERYTHING = frozenset(ActionKind)

Hook = Callable[[], object]


class Stage(FakeSlurm):
    """A FakeSlurm on which things happen between two calls, and whose rows can be those of somebody else.

    `before` has, per method, what happens before its next calls, one a call. `disguise` changes every row that is read.
    """

    def __init__(self, clock: FakeClock, **settings: Any) -> None:
        super().__init__(clock, user=USER, first_job_id=11, **settings)
        self.before: dict[str, list[Hook]] = {}
        self.disguise: Callable[[QueuedTask], QueuedTask] | None = None

    def queue(self, user: str | None = None) -> QueueReading | Unobserved:
        self._happen("queue")
        reading = super().queue(user)
        if self.disguise is None or isinstance(reading, Unobserved):
            return reading
        return replace(reading, tasks=tuple(self.disguise(row) for row in reading.tasks))

    def cancel(self, specs: Sequence[str], *, pending_only: bool = False) -> None:
        self._happen("cancel")
        super().cancel(specs, pending_only=pending_only)

    def cancelled(self) -> list[str]:
        """Every spec that was ever handed to scancel."""
        found: list[str] = []
        for call in self.asked("cancel"):
            specs = call.arguments[0]
            assert isinstance(specs, tuple)
            found += specs
        return found

    def changes(self) -> list[str]:
        """The names of the calls that change something."""
        return [call.operation for call in self.calls if call.operation in ("cancel", "nudge", "hold", "release")]

    def _happen(self, operation: str) -> None:
        waiting = self.before.get(operation)
        if waiting:
            waiting.pop(0)()


class Scene:
    """The chain of the tests: three generations of 7 tasks, of which 3 run at once."""

    def __init__(self, root: Path, *, ours: bool = True, **settings: Any) -> None:
        self.clock = FakeClock()
        self.slurm = Stage(self.clock, **settings)
        self.root = root
        self.run = RunDirectory(root / AWKWARD)
        self.ours = ours
        self.jobs: list[int] = []
        self.submitted: dict[int, Any] = {}
        self.commands: list[tuple[str, ...]] = []
        self.answer = CommandAnswer(returncode=0, stdout="", stderr="")
        for directory in (self.run.path, self.run.submissions, self.run.generations):
            directory.mkdir(parents=True, exist_ok=True)

    # The chain.

    def submit(self, count: int = 3) -> list[int]:
        """Queue generations; the first one starts."""
        for _ in range(count):
            sequence = len(self.jobs) + 1
            job = self.slurm.submit(self.argv(sequence)).array_job_id
            self.jobs.append(job)
            self.submitted[job] = self.clock.now()
            self.run.generation(job).control.mkdir(parents=True)
        return self.jobs

    def argv(self, sequence: int, *, name: str = NAME, chain_id: str = CHAIN_ID) -> tuple[str, ...]:
        return (
            "--parsable",
            f"--array=0-{TASKS - 1}%3",
            f"--job-name={name}",
            f"--comment=nvrx-chain:{chain_id}/{sequence}" if self.ours else "--comment=",
            "--dependency=singleton",
            "--no-requeue",
            "generation.sbatch",
        )

    def orphan(self) -> int:
        """Task 0 of the first generation ends; its waiting spares are 4, 5 and 6."""
        job = self.jobs[0]
        self.slurm.finish(f"{job}_0", exit_code=1)
        assert self.waiting(job) == [f"{job}_4", f"{job}_5", f"{job}_6"]
        return job

    def waiting(self, job: int) -> list[str]:
        """The truth about who waits."""
        return [row.spec for row in self.truth(job) if row.state.is_pending]

    def alive(self, job: int) -> list[str]:
        """The truth about who has not ended."""
        return [row.spec for row in self.truth(job) if not row.state.is_terminal]

    def truth(self, job: int) -> list[QueuedTask]:
        return [self.slurm.task(f"{job}_{index}") for index in range(TASKS)]

    def directory(self, job: int) -> GenerationDirectory:
        return self.run.generation(job)

    def manifest(self, **changes: Any) -> ChainManifest:
        values: dict[str, Any] = {
            "chain_id": CHAIN_ID,
            "job_name": NAME,
            "user": USER,
            "uid": UID,
            "cluster": "fake",
            "run_directory": str(self.run.path),
            "submitted_at": format_time(self.clock.now()),
            "package_version": "0",
            "interpreter": "/usr/bin/python3",
            "shape": Shape(
                train_tasks=2, hot_spares=1, cold_spares=4, nodes_per_task=1, gpus_per_node=0, procs_per_node=1
            ),
            "chain_depth": 3,
            "time_limit_seconds": None,
            "launcher": Launcher(kind=LauncherKind.FT_LAUNCHER, python="/usr/bin/python3", max_restarts=5),
            "workload": ("train.py",),
            "checkpoint_iteration_file": str(self.run.default_iteration_file),
            "completion": Completion(kind=CompletionKind.EXIT_ZERO),
        }
        return ChainManifest(**{**values, **changes})

    # What a pass makes of it.

    def subject(self, **changes: Any) -> Subject:
        values: dict[str, Any] = {"key": "key", "name": NAME, "user": USER, "uid": UID}
        if self.ours:
            values |= {"chain_id": CHAIN_ID, "run_directory": self.run.path, "manifest": self.manifest()}
        return Subject(**{**values, **changes})

    def snapshot(self, **changes: Any) -> Snapshot:
        reading = FakeSlurm.queue(self.slurm, changes.get("subject", self.subject()).user)
        assert isinstance(reading, QueueReading)
        accounting: dict[int, tuple[AccountedTask, ...]] = {}
        seen = self.slurm.accounting(self.jobs, FakeClock().now())
        for task in () if isinstance(seen, Unobserved) else seen:
            accounting[task.array_job_id] = (*accounting.get(task.array_job_id, ()), task)
        self.slurm.calls.clear()
        values: dict[str, Any] = {
            "subject": self.subject(),
            "taken_at": self.clock.now(),
            "generations": tuple(self.generation(job) for job in self.jobs),
            "queue": Queue(arrays={job: reading.of(job) for job in self.jobs if reading.of(job)}),
            "accounting": accounting,
            "nodes": {},
            "iteration": None,
            "verdict": None,
            "hold": None,
            "memory": Memory(),
            "sources": SourceReport(),
        }
        return Snapshot(**{**values, **changes})

    def generation(self, job: int, **changes: Any) -> Generation:
        values: dict[str, Any] = {
            "array_job_id": job,
            "sequence": self.jobs.index(job) + 1,
            "submitted_at": self.submitted[job] if self.ours else None,
        }
        return Generation(**{**values, **changes})

    # Acting.

    def rights(self, **changes: Any) -> Rights:
        return Rights(**{"user": USER, "uid": UID, "act": True, "allowed": EVERYTHING, **changes})

    def desk(self, **changes: Any) -> ActionDesk:
        values: dict[str, Any] = {
            "client": self.slurm,
            "clock": self.clock,
            "rights": self.rights(),
            "run_command": self.run_command,
            "host": "login1",
        }
        return ActionDesk(**{**values, **changes})

    def run_command(self, argv: Sequence[str], seconds: float) -> CommandAnswer:
        assert 0 < seconds < 600
        self.commands.append(tuple(argv))
        return self.answer

    def act(
        self,
        kind: ActionKind,
        job: int | None,
        *,
        snapshot: Snapshot | None = None,
        desk: ActionDesk | None = None,
    ) -> ActionReport:
        """Perform one request."""
        seen = snapshot or self.snapshot()
        (report,) = perform([finding(kind, job)], seen, desk or self.desk())
        return report

    # Files.

    def lease(self, job: int, counter: int = 700, task: int = 0, **changes: Any) -> Lease:
        values = {"counter": counter, "interval_seconds": 5.0, "phase": "training"}
        return Lease(**{**stamp(job, task), **values, **changes})

    def write_lease(self, job: int, counter: int = 700, task: int = 0, **changes: Any) -> None:
        write_atomic(self.directory(job).lease(task), encode_record(self.lease(job, counter, task, **changes)))

    def write_left(self, job: int, task: int, **changes: Any) -> None:
        record = Left(**{**stamp(job, task), "left_at": "now", "evidence": "no rank is left", **changes})
        write_atomic(self.directory(job).left(task), encode_record(record))

    def write_closed(self, job: int, outcome: str = "failed", **changes: Any) -> Closed:
        values = {
            **stamp(job, 0),
            "outcome": outcome,
            "exit_code": 1,
            "closed_by": f"{job}_0 on n1",
            "closed_at": format_time(self.clock.now()),
            "evidence": (),
        }
        record = msgspec.convert({**values, **changes}, Closed)
        write_atomic(self.directory(job).closed, encode_record(record))
        return record

    def closed(self, job: int) -> Closed | None:
        record = read_record(self.directory(job).closed, Closed)
        assert not isinstance(record, Unobserved), record
        return record


def stamp(job: int, task: int) -> dict[str, Any]:
    return {
        "array_job_id": job,
        "array_task_id": task,
        "restart_count": 0,
        "host": f"n{task + 1}",
        "boot_id": "b",
        "pid": 7,
        "pid_started_at": 1,
    }


def finding(kind: ActionKind, job: int | None, *, detector: str = "orphaned_generation") -> Finding:
    request = ActionRequest(kind=kind, array_job_id=job, why="task 0 has ended", command=f"scancel {job}_4")
    return Finding(
        detector=detector,
        severity=Severity.CRITICAL,
        scope=f"job:{job}",
        title="a title",
        array_job_ids=(job,) if job is not None else (),
        action=request,
    )
