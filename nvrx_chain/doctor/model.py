"""A finding of the doctor, its grade, and the evidence that checks look at. Pure vocabulary."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nvrx_chain.doctor.facts import ChainFacts, Place
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import AccountedTask, ClusterConfig, Partition

LOGIN = "login"
CLUSTER = "cluster"


class Grade(str, enum.Enum):
    """From good to bad; `unknown` is "could not look" and ends no command with 1."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARN = "warn"
    BAD = "bad"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: what was looked at, where (login, cluster or the name of a node), what was seen, how to mend it."""

    check: str
    place: str
    grade: Grade
    seen: str
    mend: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor --json` prints."""

    schema: int = 1
    read_at: str
    host: str
    node: str | None
    run_directory: str
    grade: Grade
    counts: dict[str, int]
    seconds: float
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    """What the controller and the database said, and how long the controller took."""

    config: ClusterConfig | Unobserved
    config_seconds: float
    partitions: tuple[Partition, ...] | Unobserved
    accounting: tuple[AccountedTask, ...] | Unobserved


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVisit:
    """What came of looking at a compute node. `problem` is bad, `place` Unobserved without one is unknown.

    `began_at` and `ended_at` are of the login node's clock; `left` says that the job may still be there.
    """

    place: Place | Unobserved
    node: str | None = None
    job_id: int | None = None
    waited_seconds: float | None = None
    problem: str | None = None
    mend: str | None = None
    left: str | None = None
    began_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the checks may know. `visit` None: no node was asked for."""

    run_directory: Path
    slurm: SlurmFacts
    login: Place
    visit: NodeVisit | None
    chain: ChainFacts | Unobserved | None
    launcher: str | None
    partition: str | None


Check = Callable[[Evidence], Iterator[Line]]


def ok(check: str, place: str, seen: str) -> Line:
    return Line(check=check, place=place, grade=Grade.OK, seen=seen)


def warn(check: str, place: str, seen: str, mend: str) -> Line:
    return Line(check=check, place=place, grade=Grade.WARN, seen=seen, mend=mend)


def bad(check: str, place: str, seen: str, mend: str) -> Line:
    return Line(check=check, place=place, grade=Grade.BAD, seen=seen, mend=mend)


def unknown(check: str, place: str, seen: str, mend: str | None = None) -> Line:
    return Line(check=check, place=place, grade=Grade.UNKNOWN, seen=seen, mend=mend)


def places(evidence: Evidence) -> Iterator[tuple[str, Place]]:
    """The login node, and the compute node when it was seen, by the name that lines give them."""
    yield LOGIN, evidence.login
    if evidence.visit is not None and isinstance(evidence.visit.place, Place):
        yield evidence.visit.node or "node", evidence.visit.place


def worst(lines: tuple[Line, ...]) -> Grade:
    order = list(Grade)
    return max((line.grade for line in lines), key=order.index, default=Grade.OK)
