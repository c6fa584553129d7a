"""Runs one real Wrapper, as srun would on a node: `python -m tests.unit.generation.run_wrapper SPEC.json`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import msgspec

from nvrx_chain.clock import SystemClock
from nvrx_chain.generation import wrapper
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.identity import TaskIdentity, read_boot_id
from nvrx_chain.launchers.seats import LaunchPlan
from nvrx_chain.records.layout import GenerationDirectory
from nvrx_chain.records.manifest import Thresholds


class Spec(msgspec.Struct, kw_only=True):
    """What the node runs."""

    directory: str
    argv: list[str]
    port: int
    thresholds: Thresholds
    slack_seconds: float
    is_host: bool = False
    array_job_id: int = 7
    array_task_id: int = 0
    node: str = "n1"


def main(path: str) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    spec = msgspec.json.decode(Path(path).read_bytes(), type=Spec)
    wrapper.OBSERVER_SLACK_SECONDS = spec.slack_seconds
    identity = TaskIdentity(
        array_job_id=spec.array_job_id,
        array_task_id=spec.array_task_id,
        restart_count=0,
        host=spec.node,
        nodes=(spec.node,),
        boot_id=read_boot_id(),
        pid=os.getpid(),
        pid_started_at=1,
    )
    directory = GenerationDirectory(Path(spec.directory), spec.array_job_id)
    clock = SystemClock()
    return wrapper.Wrapper(
        board=Board(directory, identity, clock),
        clock=clock,
        thresholds=spec.thresholds,
        plan=LaunchPlan(argv=tuple(spec.argv), environment={"ADDED": "by the plan"}),
        node=spec.node,
        no_restart_exit_code=93,
        rendezvous=("127.0.0.1", spec.port),
        log_path=directory.logs / "launcher.log",
        is_host=spec.is_host,
    ).run()


if __name__ == "__main__":
    code = main(sys.argv[1])
    os._exit(code)
