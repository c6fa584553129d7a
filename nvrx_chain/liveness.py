"""Is a task dead? The one rule by which anybody may take something away from it. Pure; shared with nvrx_watch.

Proof is a terminal state from the closed list, or, after Slurm was made to look, a batch host that is DOWN or does not
answer while the task's lease counter stood still for two intervals. A lease that is merely old is never proof, a state
that we do not list counts as alive, and a Slurm that does not answer leaves everything as it is.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.states import NodeState


class Life(str, enum.Enum):
    """What the evidence says about one task."""

    DEAD = "dead"
    ALIVE = "alive"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict and the sentence that a person reads about it."""

    life: Life
    evidence: str


def is_unreachable(node: Node | None) -> bool:
    """A node that Slurm itself calls down or that does not answer it. An unknown node is reachable."""
    return node is not None and (node.state is NodeState.DOWN or not node.responding)


def stillness_seconds(interval_seconds: float) -> float:
    """How long a counter must be seen to stand still before that says anything: it moves once an interval."""
    return 2 * interval_seconds


def judge_task(
    row: QueuedTask | Unobserved | None,
    node: Node | Unobserved | None,
    lease_before: int | Unobserved | None,
    lease_after: int | Unobserved | None,
    *,
    still_seconds: float,
    interval_seconds: float,
) -> Judgement:
    """Judge one task from its queue row, its batch host and two reads of its lease counter.

    `lease_before` was read before Slurm was asked and `lease_after` after it answered; `still_seconds` is for how long
    the counter is known to have stood still, `interval_seconds` how often its task writes it. A lease that was never
    written (both None) cannot have moved; one that cannot be read may well have.
    """
    if isinstance(row, Unobserved):
        return Judgement(life=Life.UNKNOWN, evidence=f"Slurm did not answer: {row.reason}")
    if row is None:
        return Judgement(life=Life.UNKNOWN, evidence="Slurm does not list the task")
    name = row.spec
    if row.state.is_terminal:
        return Judgement(life=Life.DEAD, evidence=f"Slurm shows {name} as {row.raw_state}")
    if row.state.is_pending:
        return Judgement(life=Life.ALIVE, evidence=f"{name} is pending")
    if isinstance(node, Unobserved):
        return Judgement(life=Life.UNKNOWN, evidence=f"the node of {name} could not be read: {node.reason}")
    if not is_unreachable(node):
        where = f" on {node.name} ({node.raw_state})" if node else ""
        return Judgement(life=Life.ALIVE, evidence=f"{name} is {row.raw_state}{where}")
    assert node is not None
    where = f"{node.name} is {node.raw_state}"
    for lease in (lease_before, lease_after):
        if isinstance(lease, Unobserved):
            return Judgement(life=Life.UNKNOWN, evidence=f"{where} but the lease of {name}: {lease.reason}")
    if lease_before != lease_after:
        return Judgement(life=Life.ALIVE, evidence=f"{where} but the lease of {name} moves")
    # Two reads within one interval show the same counter of a task that is well: its slurmd alone may have died.
    if still_seconds < stillness_seconds(interval_seconds):
        seen = f"the lease of {name} was watched for {still_seconds:.0f} s only"
        return Judgement(life=Life.UNKNOWN, evidence=f"{where} but {seen}")
    return Judgement(
        life=Life.DEAD,
        evidence=f"{where} and the lease of {name} stands still at {lease_after} for {still_seconds:.0f} s",
    )


@dataclass(slots=True)
class _Seen:
    counter: int
    changed_at: float
    interval_seconds: float


@dataclass(slots=True)
class LeaseWatch:
    """For how long each task's lease counter has stood still, on the reader's own monotonic clock.

    The first sight of a counter starts its time at zero: nothing is known about the time before.
    """

    _seen: dict[int, _Seen] = field(default_factory=dict)

    def observe(self, counters: Mapping[int, tuple[int, float]], now: float) -> None:
        """Take in (counter, interval in seconds) per task, read before `now`.

        `now` is the time after the read: a read that hung would otherwise make a fresh counter look old.
        """
        for task, (counter, interval) in counters.items():
            seen = self._seen.get(task)
            if seen is None or seen.counter != counter:
                self._seen[task] = _Seen(counter=counter, changed_at=now, interval_seconds=interval)

    def counter(self, task: int) -> int | None:
        """The last counter seen, None when there was none."""
        seen = self._seen.get(task)
        return seen.counter if seen else None

    def interval(self, task: int) -> float | None:
        """The interval in seconds at which the task says it writes."""
        seen = self._seen.get(task)
        return seen.interval_seconds if seen else None

    def still_seconds(self, task: int, now: float) -> float | None:
        """How long the counter has stood still at `now`, a time before the last read; None when it was never seen."""
        seen = self._seen.get(task)
        return max(0.0, now - seen.changed_at) if seen else None

    def tasks(self) -> tuple[int, ...]:
        """Every task whose lease was ever seen."""
        return tuple(sorted(self._seen))


def lease_is_stale(still_seconds: float | None, interval_seconds: float | None, timeout_seconds: float) -> bool:
    """Whether a counter stood still long enough to ask about it; peers of big arrays write more slowly."""
    if still_seconds is None:
        return False
    return still_seconds >= max(timeout_seconds, 4 * (interval_seconds or 0.0))


def self_fence_seconds(interval_seconds: float, self_fence: float) -> float:
    """After how long without a written lease a task stops its own ranks. Never under four intervals."""
    return max(self_fence, 4 * interval_seconds)


def fenced_after_seconds(interval_seconds: float, self_fence: float, drain: float, margin: float) -> float:
    """How long a counter must stand still before the task's ranks are certainly gone by their own fence."""
    return self_fence_seconds(interval_seconds, self_fence) + drain + margin
