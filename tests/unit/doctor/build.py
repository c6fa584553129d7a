"""Evidence of a healthy site, and how to change one piece of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvrx_chain.doctor.checks import CHECKS
from nvrx_chain.doctor.facts import Directory, Echo, Gpus, Host, Launcher, Place, Program, SlurmPrograms
from nvrx_chain.doctor.model import Evidence, Line, NodeVisit, SlurmFacts
from nvrx_chain.doctor.programs import NAMES
from tests.unit.submit.chains import make_cluster, make_partition

RUN = Path("/scratch/run & dir #1 'q' 100%")
FIELDS = {
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "MaxJobCount": "100000",
    "JobRequeue": "1",
    "OverTimeLimit": "0 min",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "PrivateData": "none",
}


def make_programs(**changes: Any) -> SlurmPrograms:
    """All programs of 24.11; `changes` are those of SlurmPrograms."""
    programs = tuple(Program(name=name, path=f"/usr/bin/{name}", version="24.11.5") for name in NAMES)
    return SlurmPrograms(**{"programs": programs, "queue_seconds": 0.1, **changes})


def make_host(**changes: Any) -> Host:
    values: dict[str, Any] = {
        "name": "login1",
        "python": "/opt/venv/bin/python",
        "python_version": "3.11.7",
        "package_version": "0.1.0",
        "read_at": 1000.0,
        "open_files": 65536,
        "open_files_most": 524288,
        "shared_memory_bytes": 64 << 30,
        "addresses": ("10.0.0.1",),
        "port": 20001,
    }
    return Host(**{**values, **changes})


def make_directory(**changes: Any) -> Directory:
    values: dict[str, Any] = {
        "path": str(RUN),
        "tested": "/scratch",
        "kind": "lustre",
        "mount_point": "/scratch",
        "reach": "shared",
        "write_seconds": 0.01,
        "first_wins": True,
        "free_bytes": 1 << 44,
        "free_files": 1 << 30,
    }
    return Directory(**{**values, **changes})


ECHO = Echo(node_wrote_at=1000.0, login_saw_at=1000.1, login_wrote_at=1000.1, node_saw_at=1000.2)


def make_place(**changes: Any) -> Place:
    values: dict[str, Any] = {
        "host": make_host(),
        "slurm": make_programs(),
        "directory": make_directory(),
        "launcher": Launcher(
            python="/opt/venv/bin/python", versions={"torchrun": "2.8"}, kind="torchrun", import_seconds=3.0
        ),
        "gpus": Gpus(count=8, names=("H100",) * 8, driver="570.1", source="NVML"),
    }
    return Place(**{**values, **changes})


def make_visit(**changes: Any) -> NodeVisit:
    """A node that answered. `place` and its parts are given as to `make_place`."""
    parts = {name: changes.pop(name) for name in ("host", "directory", "slurm", "launcher", "gpus") if name in changes}
    there = {"host": make_host(name="n7"), "directory": make_directory(seen_after_seconds=0.0, echo=ECHO), **parts}
    values: dict[str, Any] = {
        "place": make_place(**there),
        "node": "n7",
        "job_id": 17,
        "waited_seconds": 1.0,
        "began_at": 999.0,
        "ended_at": 1001.0,
    }
    return NodeVisit(**{**values, **changes})


def make_site(*, fields: dict[str, str] | None = None, **changes: Any) -> SlurmFacts:
    values: dict[str, Any] = {
        "config": make_cluster(fields={**FIELDS, **(fields or {})}),
        "config_seconds": 0.1,
        "partitions": (make_partition(fields={"OverSubscribe": "NO", "GraceTime": "0", "PreemptMode": "OFF"}),),
        "accounting": (),
    }
    return SlurmFacts(**{**values, **changes})


def make_evidence(**changes: Any) -> Evidence:
    values: dict[str, Any] = {
        "run_directory": RUN,
        "slurm": make_site(),
        "login": make_place(),
        "visit": None,
        "chain": None,
        "launcher": None,
        "partition": None,
    }
    return Evidence(**{**values, **changes})


def judge(evidence: Evidence, check: str, place: str | None = None) -> Line:
    """The line of one check, of one place when several have it."""
    lines = [line for one in CHECKS for line in one(evidence) if line.check == check and place in (None, line.place)]
    assert len(lines) == 1, lines
    return lines[0]
