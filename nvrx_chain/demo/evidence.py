"""What a demo has seen so far, as one value, and what follows from it. Pure: `gather` reads it, tests write it.

The ranks' own event lines are the witnesses: when a rank lived, what it trained, which checkpoint it started from. All
nodes of a sandbox are this one machine, so the monotonic clock of every event and of the demo is the same one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome, Closed, NoRestart
from nvrx_chain.sandbox import FaultKind
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.states import NodeState
from nvrx_chain.workloads.events import Event, EventKind


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSeen:
    """One generation of the chain. `has_run`: a task of it ran, by the directory that it makes before anything else."""

    sequence: int
    array_job_id: int
    has_run: bool = False
    closed: Closed | None = None
    no_restart: NoRestart | None = None

    @property
    def label(self) -> str:
        return f"generation {self.sequence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSample:
    """The checkpoint iteration on disk from `at` (monotonic seconds) on; None while there is no checkpoint."""

    at: float
    iteration: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDone:
    """A fault that the demo did and verified: `at` is the instant before the first signal, in monotonic seconds."""

    kind: FaultKind
    target: str
    node: str
    array_job_id: int
    at: float
    verified: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One reading of everything. `queue` and `nodes` are None before Slurm has answered for the first time.

    `events` are in the order of time; `reference` has the loss of each iteration of an undisturbed run, as hexadecimal
    text, once there is one. Seconds are monotonic.
    """

    at: float
    generations: tuple[GenerationSeen, ...] = ()
    events: tuple[Event, ...] = ()
    tracker: tuple[TrackerSample, ...] = ()
    faults: tuple[FaultDone, ...] = ()
    outcome: ChainOutcome | None = None
    queue: tuple[QueuedTask, ...] | None = None
    nodes: Mapping[str, Node] | None = None
    reference: Mapping[int, str] | Unobserved | None = None

    def generation(self, array_job_id: int | None) -> GenerationSeen | None:
        """The generation with this array job id."""
        return next((seen for seen in self.generations if seen.array_job_id == array_job_id), None)

    def fault(self, kind: FaultKind) -> FaultDone | None:
        """The first fault of this kind that was done."""
        return next((fault for fault in self.faults if fault.kind is kind), None)

    def steps(self) -> tuple[Event, ...]:
        """The lines that report training steps."""
        return tuple(event for event in self.events if event.event is EventKind.STEP)

    def iteration(self, *, at: float | None = None) -> int:
        """The last iteration that any rank had reported, at that moment if one is given; 0 before the first."""
        # Not the highest: what a run that starts again from a checkpoint reports is less.
        reported = [event for event in self.steps() if at is None or event.monotonic <= at]
        return reported[-1].iteration if reported else 0

    def tracked(self, *, at: float | None = None) -> int | None:
        """The checkpoint iteration on disk, at that moment if one is given."""
        # A reading can come late, and a rank can be killed before it says that its save is done: both are asked.
        said = [(event.monotonic, event.iteration) for event in self.events if event.event is EventKind.SAVE_FINISHED]
        known = [*said, *((sample.at, sample.iteration) for sample in self.tracker)]
        past = [(when, iteration) for when, iteration in known if at is None or when <= at]
        return max(past, key=lambda item: item[0])[1] if past else None

    def alive(self) -> tuple[QueuedTask, ...]:
        """The chain's tasks that Slurm has not ended, pending ones too."""
        return tuple(task for task in self.queue or () if not task.state.is_terminal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process that was a rank: from its start to its last line, in monotonic seconds.

    `starts_from` is the iteration that it resumed at, None when it never came so far as to say it.
    """

    array_job_id: int | None
    rank: int
    host: str
    restart_count: int | None
    began_at: float
    last_seen_at: float
    announced_at: float | None
    starts_from: int | None
    first_step_at: float | None


def find_lives(events: Iterable[Event]) -> tuple[Life, ...]:
    """The lives in a stream of events, in the order in which they began."""
    lines: dict[tuple[object, ...], list[Event]] = {}
    for event in events:
        # A pid alone names no process: every node counts its own, and every generation starts anew.
        key = (event.host, event.pid, event.array_job_id, event.restart_count, event.rank)
        lines.setdefault(key, []).append(event)
    return tuple(sorted((_life(own) for own in lines.values()), key=lambda life: life.began_at))


def _life(lines: list[Event]) -> Life:
    start = next((event for event in lines if event.event is EventKind.START), None)
    step = next((event for event in lines if event.event is EventKind.STEP), None)
    first = lines[0]
    age = start.since_process_start_seconds if start else None
    return Life(
        array_job_id=first.array_job_id,
        rank=first.rank,
        host=first.host,
        restart_count=first.restart_count,
        began_at=start.monotonic - age if start and age is not None else first.monotonic,
        last_seen_at=lines[-1].monotonic,
        announced_at=start.monotonic if start else None,
        starts_from=start.iteration if start else None,
        first_step_at=step.monotonic if step else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Training after a fault: who took over, from which checkpoint, when the first step was done.

    `tracked` is what the checkpoint tracker said when the ranks had read it; `reached` is how far training had come at
    the fault. `seconds` is from the fault to the first step, None while there is none.
    """

    array_job_id: int | None
    iteration: int
    tracked: int | None
    reached: int
    seconds: float | None

    @property
    def steps_lost(self) -> int:
        """Steps that have to be done again."""
        return self.reached - self.iteration


def find_resumption(evidence: Evidence, at: float, *, until: float | None = None) -> Resumption | None:
    """How training went on after the moment `at`; None before a rank that started after it has said so.

    A surviving rank may still report a step that was done before the blow, so only lives that began later count.
    `until` is the last moment of a training that was not cut off but told to end.
    """
    later = [life for life in find_lives(evidence.events) if life.began_at > at and life.announced_at is not None]
    if not later:
        return None
    first = min(later, key=lambda life: life.announced_at or 0.0)
    assert first.announced_at is not None
    assert first.starts_from is not None
    steps = [life.first_step_at for life in later if life.first_step_at is not None]
    return Resumption(
        array_job_id=first.array_job_id,
        iteration=first.starts_from,
        tracked=evidence.tracked(at=first.announced_at),
        reached=evidence.iteration(at=at if until is None else until),
        seconds=min(steps) - at if steps else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reign:
    """From the start of the first rank's process of a generation to the last sign of any of its ranks."""

    array_job_id: int | None
    began_at: float
    last_seen_at: float


def find_reigns(events: Iterable[Event]) -> tuple[Reign, ...]:
    """The reigns of all generations that had ranks, in the order in which they began."""
    lives = sorted(find_lives(events), key=lambda life: life.array_job_id or 0)
    reigns = []
    for array_job_id, own in itertools.groupby(lives, key=lambda life: life.array_job_id):
        members = list(own)
        reigns.append(
            Reign(
                array_job_id=array_job_id,
                began_at=min(life.began_at for life in members),
                last_seen_at=max(life.last_seen_at for life in members),
            )
        )
    return tuple(sorted(reigns, key=lambda reign: reign.began_at))


def find_losses(events: Iterable[Event]) -> dict[int, tuple[str, ...]]:
    """Iteration -> every different loss that was ever reported for it, as hexadecimal text, bit for bit."""
    found: dict[int, dict[str, None]] = {}
    for event in events:
        if event.event is EventKind.STEP and event.loss_hex is not None:
            found.setdefault(event.iteration, {})[event.loss_hex] = None
    return {iteration: tuple(losses) for iteration, losses in found.items()}


def find_repeated(events: Iterable[Event]) -> tuple[int, ...]:
    """The iterations that were trained in more than one life of the same rank."""
    lives: dict[tuple[int, int], set[tuple[object, ...]]] = {}
    for event in events:
        if event.event is EventKind.STEP:
            life = (event.host, event.pid, event.array_job_id, event.restart_count)
            lives.setdefault((event.rank, event.iteration), set()).add(life)
    return tuple(sorted({iteration for (_, iteration), seen in lives.items() if len(seen) > 1}))


def is_free(node: Node) -> bool:
    """Whether Slurm could start a job on the node now."""
    return node.state is NodeState.IDLE and node.responding
