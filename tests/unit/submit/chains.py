"""Configs, plans and a cluster for the tests of a submit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

from nvrx_chain.errors import SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.records.files import read_record
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.slurm.identity import format_comment
from nvrx_chain.slurm.model import ClusterConfig, Partition, QueueReading
from nvrx_chain.slurm.user import current_user
from nvrx_chain.submit.chain import SubmitResult, submit_chain
from nvrx_chain.submit.config import ChainConfig, build_config
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.facts import SubmitFacts
from nvrx_chain.submit.interpreters import ModuleProbe
from nvrx_chain.submit.mounts import FileSystem, Reach
from nvrx_chain.submit.plan import SubmitPlan, Submitter, build_plan
from nvrx_chain.submit.render import read_template
from nvrx_chain.submit.settings import Settings, read_settings
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm

NASTY = "run & dir#1 'q\"u' %j é"
CHAIN_ID = "0123456789ab"
OTHER_ID = "fedcba987654"
T = TypeVar("T")
HERE = Path("/home/alice/project")


def make_settings(**flags: Any) -> Settings:
    """Settings from flags alone; T=2 H=1 C=2 unless said."""
    return read_settings({"train_tasks": "2", "hot_spares": "1", "cold_spares": "2", **flags}, {}, HERE)


def make_config(*, chain_id: str = CHAIN_ID, interpreter: str = sys.executable, **flags: Any) -> ChainConfig:
    """A config by flags, with fixed ids."""
    return build_config(make_settings(**flags), directory=HERE, interpreter=interpreter, make_chain_id=lambda: chain_id)


def make_plan(config: ChainConfig) -> SubmitPlan:
    submitter = Submitter(user="alice", uid=1001, cluster="c1", submitted_at="2026-01-01T00:00:00Z")
    return build_plan(config, submitter, read_template())


def make_facts(**changes: Any) -> SubmitFacts:
    """Facts without a fault."""
    facts: dict[str, Any] = {
        "user": "alice",
        "uid": 1001,
        "cluster": make_cluster(),
        "partitions": (make_partition(),),
        "queue": QueueReading(tasks=(), read_at=FakeClock().now()),
        "file_system": FileSystem(mount_point="/home", kind="nfs4", reach=Reach.SHARED),
        "directory": DirectoryState(),
        "program_exists": None,
        "probes": (ModuleProbe(interpreter="/usr/bin/python", needed=("torch",), found={"torch": "2"}),),
    }
    return SubmitFacts(**{**facts, **changes})


def make_cluster(**changes: Any) -> ClusterConfig:
    values: dict[str, Any] = {
        "cluster_name": "c1",
        "version": "24.11.5",
        "max_array_size": 1001,
        "kill_wait_seconds": 30,
        "slurmd_timeout_seconds": 300,
        "min_job_age_seconds": 300,
        "preempt_mode": "OFF",
        "accounting": True,
    }
    return ClusterConfig(**{**values, **changes})


def make_partition(**changes: Any) -> Partition:
    values: dict[str, Any] = {
        "name": "main",
        "is_default": True,
        "available": True,
        "max_time_seconds": None,
        "node_count": 64,
        "gpus_per_node": 8,
    }
    return Partition(**{**values, **changes})


UNSEEN = Unobserved("squeue did not answer in 25 s")
TIMED_OUT = SlurmAmbiguous("submit a job", part="Socket timed out on send/recv operation")
LIMIT = SlurmError("submit a job", part="sbatch: error: AssocMaxSubmitJobLimit")


def record(path: Path, kind: type[T]) -> T:
    """A record that must be there and whole."""
    found = read_record(path, kind)
    assert isinstance(found, kind), found
    return found


def stamps(*sequences: int, chain_id: str = CHAIN_ID) -> list[str]:
    return [format_comment(chain_id, sequence) for sequence in sequences]


class Site:
    """A fake cluster of the user who runs the tests, and a nasty run directory on it."""

    def __init__(self, tmp_path: Path) -> None:
        # Answers the question what it can import, and nothing else, in place of an installed nvrx-chain.
        self.interpreter = tmp_path / "py thon"
        self.interpreter.write_text('#!/bin/sh\necho \'{"nvrx_chain": "0.1.0"}\'\n')
        self.interpreter.chmod(0o755)
        self.clock = FakeClock()
        self.slurm = FakeSlurm(self.clock, user=current_user()[0])
        self.directory = tmp_path / NASTY
        self.said: list[str] = []

    def config(self, **flags: Any) -> ChainConfig:
        """A chain that passes the preflight of this machine: any command as launcher needs no package."""
        chosen = {
            "run_dir": str(self.directory),
            "allow_local_run_dir": True,
            "interpreter": str(self.interpreter),
            "launcher": "command",
            "launcher_command": "true {host} {workload}",
            **flags,
        }
        return make_config(**chosen)

    def submit(self, **flags: Any) -> SubmitResult:
        return submit_chain(self.config(**flags), self.slurm, self.clock, say=self.said.append)

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.directory)

    def array_jobs(self) -> list[int]:
        """The array jobs in the queue, oldest first."""
        return sorted({task.array_job_id for task in self._queue().tasks})

    def _queue(self) -> QueueReading:
        queue = self.slurm.queue()
        assert isinstance(queue, QueueReading)
        return queue

    def stamps(self) -> list[str]:
        """The stamps of the live array jobs, in the order of their ids."""
        queue = self._queue()
        alive = {task.array_job_id: task.comment for task in queue.tasks if not task.state.is_terminal}
        return [alive[job] for job in sorted(alive)]
