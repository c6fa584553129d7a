"""What `nvrx-chain status` says, as values with a stable JSON form. Pure.

Docs: docs/cli.md lists the fields. A field is never renamed or removed while `schema` is the same.
"""

from __future__ import annotations

import enum

import msgspec

from nvrx_chain.records.control import (
    ChainOutcome,
    DrainedNode,
    Ending,
    Hold,
)
from nvrx_chain.records.manifest import Shape
from nvrx_chain.records.outcome import Outcome


class ChainState(str, enum.Enum):
    """How a chain is."""

    ENDED = "ended"
    """It has a verdict, or was to end with a generation that is gone."""
    ENDING = "ending"
    """A task of it holds a node, and nothing will follow that generation."""
    RUNNING = "running"
    """A task of it holds a node."""
    HELD = "held"
    """Nothing runs, and the queued generations wait for a release."""
    QUEUED = "queued"
    """Nothing runs, and a generation waits in the queue."""
    RAN_DRY = "ran_dry"
    """Slurm answered and has nothing of it any more, and there is no verdict."""
    NOT_SUBMITTED = "not_submitted"
    """No array job is on record."""
    UNKNOWN = "unknown"
    """Slurm could not be read, and the files do not tell."""


class GenerationState(str, enum.Enum):
    """How a generation is in the queue."""

    RUNNING = "running"
    COMPLETING = "completing"
    QUEUED = "queued"
    ENDED = "ended"
    UNRESOLVED = "unresolved"
    """sbatch was called and no array job id is on record."""
    UNKNOWN = "unknown"


class DrainedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that runs on nodes that Slurm is asked to free. `excluded`: a spare can take its place."""

    array_task_id: int
    nodes: tuple[DrainedNode, ...]
    seen_at: str
    excluded: bool


class GenerationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One generation. Counts are None when Slurm could not be read, empty when it lists none.

    An iteration is None when there was no checkpoint (yet), -1 when it could not be read. `iteration_now` is given
    while the generation trains. `problem`: why its rows in the queue are not believed.
    """

    sequence: int
    array_job_id: int | None
    state: GenerationState
    tasks: dict[str, int] | None
    pending_reasons: dict[str, int] | None
    phase: str | None
    outcome: Outcome | None
    exit_code: int | None
    closed_by: str | None
    evidence: tuple[str, ...]
    iteration_at_start: int | None
    iteration_at_end: int | None
    iteration_now: int | None
    cycles: int | None
    submitted_at: str | None
    started_at: str | None
    ended_at: str | None
    problem: str | None
    drained: tuple[DrainedTask, ...] = ()


class ChainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A chain. `no_answer`: why Slurm could not be read, and then only the files speak; None when it was read."""

    schema: int = 1
    chain_id: str
    name: str
    user: str
    cluster: str | None
    run_directory: str
    submitted_at: str
    read_at: str
    state: ChainState
    verdict: ChainOutcome | None
    hold: Hold | None
    shape: Shape
    chain_depth: int
    iteration: int | None
    target_iteration: int | None
    generations: tuple[GenerationStatus, ...]
    strays: tuple[int, ...]
    no_answer: str | None
    problems: tuple[str, ...]
    ending: Ending | None = None

    @property
    def is_held(self) -> bool:
        """Whether a hold is in force: not released, and the chain has not ended."""
        return self.verdict is None and self.hold is not None and self.hold.released_at is None
