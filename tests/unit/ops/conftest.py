"""A chain in a run directory with an awkward name, queued on a FakeSlurm that remembers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nvrx_chain.clock import format_time
from nvrx_chain.ops.chain import OpenChain, Operator, open_run_directory
from nvrx_chain.ops.settle import Desk
from nvrx_chain.records import control
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import (
    ChainManifest,
    Completion,
    CompletionKind,
    Launcher,
    LauncherKind,
    Shape,
    SubmissionId,
    SubmissionIntent,
)
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm

USER = "alice"
AWKWARD = 'it\'s a "run" & #1 100%'
STAMP = {"array_task_id": 0, "restart_count": 0, "host": "n1", "boot_id": "b", "pid": 7, "pid_started_at": 1}


@dataclass
class World:
    """A FakeSlurm, its clock, and chains in run directories. The person who runs pytest owns the files."""

    root: Path
    clock: FakeClock = field(default_factory=FakeClock)
    said: list[str] = field(default_factory=list)
    slurm: FakeSlurm = field(init=False)

    def __post_init__(self) -> None:
        self.slurm = FakeSlurm(self.clock, user=USER, first_job_id=11)

    def desk(self, *, uid: int | None = None, is_interactive: bool = False) -> Desk:
        operator = Operator(user=USER, uid=os.getuid() if uid is None else uid, host="login")
        return Desk(
            client=self.slurm,
            clock=self.clock,
            operator=operator,
            say=self.said.append,
            is_interactive=is_interactive,
        )

    def make_chain(self, where: Path | None = None, *, chain_id: str = "c0ffee", **changes: object) -> ChainOnDisk:
        run = RunDirectory(where or self.root / AWKWARD)
        for directory in (run.path, run.submissions, run.generations, run.slurm_logs):
            directory.mkdir(parents=True, exist_ok=True)
        fields: dict[str, object] = {
            "chain_id": chain_id,
            "job_name": "train",
            "user": USER,
            "uid": os.getuid(),
            "cluster": "fake",
            "run_directory": str(run.path),
            "submitted_at": format_time(self.clock.now()),
            "package_version": "0",
            "interpreter": "/usr/bin/python3",
            "shape": Shape(
                train_tasks=2, hot_spares=1, cold_spares=2, nodes_per_task=1, gpus_per_node=0, procs_per_node=1
            ),
            "chain_depth": 3,
            "time_limit_seconds": None,
            "launcher": Launcher(kind=LauncherKind.FT_LAUNCHER, python="/usr/bin/python3", max_restarts=5),
            "workload": ("train.py",),
            "checkpoint_iteration_file": str(run.default_iteration_file),
            "completion": Completion(kind=CompletionKind.TARGET_ITERATION, target_iteration=500),
        }
        write_atomic(run.manifest, encode_record(ChainManifest(**{**fields, **changes})))  # type: ignore[arg-type]
        return ChainOnDisk(self, run, chain_id)


@dataclass
class ChainOnDisk:
    """One chain: what a submit, its generations and its operators would write."""

    world: World
    run: RunDirectory
    chain_id: str

    def open(self) -> OpenChain:
        return open_run_directory(self.run.path)

    def argv(self, sequence: int) -> list[str]:
        return [
            "--parsable",
            "--job-name=train",
            "--array=0-4%3",
            "--dependency=singleton",
            "--no-requeue",
            f"--chdir={self.run.path}",
            f"--comment=nvrx-chain:{self.chain_id}/{sequence}",
            str(self.run.script),
        ]

    def submit(self, sequence: int, *, on_record: bool = True) -> int:
        """Queue one generation, with its intent on record and (unless sbatch's answer was lost) its id."""
        self.intend(sequence)
        job = self.world.slurm.submit(self.argv(sequence)).array_job_id
        if on_record:
            self.record_id(sequence, job)
        return job

    def submit_three(self) -> tuple[int, int, int]:
        """The usual chain: the first generation runs on three nodes, two wait behind it."""
        return self.submit(1), self.submit(2), self.submit(3)

    def intend(self, sequence: int) -> None:
        intent = SubmissionIntent(
            chain_id=self.chain_id,
            sequence=sequence,
            stamp=f"nvrx-chain:{self.chain_id}/{sequence}",
            argv=tuple(self.argv(sequence)),
            intended_at=format_time(self.world.clock.now()),
        )
        write_atomic(self.run.intent(sequence), encode_record(intent))

    def record_id(self, sequence: int, array_job_id: int, submitted_at: str | None = None) -> None:
        record = SubmissionId(
            chain_id=self.chain_id,
            sequence=sequence,
            array_job_id=array_job_id,
            cluster=None,
            submitted_at=submitted_at or format_time(self.world.clock.now()),
            adopted=False,
            recorded_at=format_time(self.world.clock.now()),
        )
        write_atomic(self.run.submission_id(sequence), encode_record(record))

    def decide(self, verdict: Verdict, why: str = "because", chain_id: str | None = None) -> None:
        outcome = control.ChainOutcome(
            chain_id=chain_id or self.chain_id,
            verdict=verdict,
            array_job_id=None,
            by="11_0 on n1",
            why=why,
            evidence=(),
            decided_at=format_time(self.world.clock.now()),
        )
        write_atomic(self.run.outcome, encode_record(outcome))

    def brake(self, why: str = "2 generations in a row failed") -> None:
        hold = control.Hold(
            chain_id=self.chain_id,
            by="brake in 11_0 on n1",
            why=why,
            held_at=format_time(self.world.clock.now()),
            array_job_ids=(),
        )
        write_atomic(self.run.hold, encode_record(hold))

    def lease(self, array_job_id: int, phase: str) -> None:
        record = control.Lease(array_job_id=array_job_id, counter=3, interval_seconds=5.0, phase=phase, **STAMP)
        self._write(array_job_id, self.run.generation(array_job_id).lease(0), record)

    def close(self, array_job_id: int, outcome: Outcome, *evidence: str) -> None:
        record = control.Closed(
            array_job_id=array_job_id,
            outcome=outcome,
            exit_code=1,
            closed_by=f"{array_job_id}_0 on n1",
            closed_at=format_time(self.world.clock.now()),
            evidence=evidence,
            **STAMP,
        )
        self._write(array_job_id, self.run.generation(array_job_id).closed, record)

    def record(self, array_job_id: int, *, start: int | None, end: int | None, outcome: Outcome | None) -> None:
        now = format_time(self.world.clock.now())
        record = control.GenerationRecord(
            array_job_id=array_job_id,
            chain_id=self.chain_id,
            started_at=now,
            launched_at=now,
            ended_at=now if outcome else None,
            outcome=outcome,
            exit_code=0 if outcome else None,
            signalled=False,
            near_wall=False,
            iteration_at_start=start,
            iteration_at_end=end,
            cycles=1,
            run_seconds=1.0,
            **STAMP,
        )
        self._write(array_job_id, self.run.generation(array_job_id).record, record)

    def iteration(self, text: str) -> None:
        self.run.default_iteration_file.parent.mkdir(exist_ok=True)
        self.run.default_iteration_file.write_text(text)

    def log(self, array_job_id: int, name: str, content: bytes) -> Path:
        path = self.run.generation(array_job_id).logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def _write(self, array_job_id: int, path: Path, record: control.Record) -> None:
        self.run.generation(array_job_id).control.mkdir(parents=True, exist_ok=True)
        write_atomic(path, encode_record(record))


def give_away(path: Path) -> int:
    """Make a file somebody else's. Returns a uid that it then does not belong to, though its reader may claim it."""
    if os.getuid() == 0:
        os.chown(path, 54321, 54321, follow_symlinks=False)
        return 0
    return os.getuid() + 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def chain(world: World) -> ChainOnDisk:
    return world.make_chain()
