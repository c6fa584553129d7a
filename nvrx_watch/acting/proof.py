"""The proof of death of a task 0, from outside of its job. Touches: Slurm (squeue, sinfo, one harmless signal), leases.

Slurm notices a silent node only after two thirds of SlurmdTimeout, so it is made to look, and only after the lease was
seen to stand still. Every doubt is an answer of "alive" or "unknown"; `nvrx_chain.liveness` judges.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.errors import SlurmError, Unobserved
from nvrx_chain.liveness import Judgement, Life, judge_task, stillness_seconds
from nvrx_chain.records.control import Lease, LeaseSeen
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.slurm.batch_node import read_batch_node
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0
SHORTEST_INTERVAL_SECONDS = 1.0
LONGEST_INTERVAL_SECONDS = 30.0
LONGEST_PROBE_SECONDS = 120.0
"""A manifest and a lease may say anything; a pass must end."""

_RUNS = frozenset({JobState.RUNNING, JobState.COMPLETING})
"""A suspended task, one whose node boots, and any state that we do not list rightly write no lease: they live."""

ReadRow = Callable[[], QueuedTask | Unobserved | None]


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, the row that it is about, and the lease as it was seen standing still."""

    judgement: Judgement
    row: QueuedTask | None = None
    lease: LeaseSeen | None = None
    needs_nudge: bool = False
    """All that is missing is that Slurm is made to look."""

    @property
    def is_dead(self) -> bool:
        return self.judgement.life is Life.DEAD


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """Where a proof looks. `read_row` is identity-checked; `may_nudge` False asks for a look without a touch."""

    client: SlurmClient
    clock: Clock
    read_row: ReadRow
    read_lease: Callable[[], Lease | Unobserved | None]
    thresholds: Thresholds
    may_nudge: bool = True


def prove_death(witness: Witness) -> Proof:
    """Ask until there is proof, a sign of life, or no time left. Never raises for a silent Slurm."""
    row = witness.read_row()
    if not isinstance(row, QueuedTask) or row.state.is_terminal or row.state.is_pending:
        judgement = judge_task(row, None, None, None, still_seconds=0.0, interval_seconds=1.0)
        return Proof(judgement=judgement, row=row if isinstance(row, QueuedTask) else None)
    if row.state not in _RUNS:
        return Proof(judgement=_alive(f"{row.spec} is {row.raw_state}, which counts as alive"), row=row)
    eye = _LeaseEye(witness)
    doubt = _wait_for_stillness(witness, eye)
    if doubt is not None:
        return Proof(judgement=doubt, row=row)
    judgement, is_open = _judge_again(witness, eye, row)
    if judgement.life is not Life.DEAD and is_open:
        if not witness.may_nudge:
            text = f"{judgement.evidence}; its lease stands still, and Slurm was not made to look at its node"
            return Proof(judgement=Judgement(life=Life.UNKNOWN, evidence=text), row=row, needs_nudge=True)
        judgement = _probe(witness, eye, row)
    return Proof(judgement=judgement, row=row, lease=eye.seen())


def _wait_for_stillness(witness: Witness, eye: _LeaseEye) -> Judgement | None:
    """Watch the lease for as long as its standing still needs to mean something; why there is no use in going on."""
    if eye.interval_seconds > LONGEST_INTERVAL_SECONDS:
        text = f"task 0 writes its lease every {eye.interval_seconds:.0f} s, too slowly to be watched here"
        return Judgement(life=Life.UNKNOWN, evidence=text)
    never = threading.Event()
    while not eye.stood_long_enough:
        witness.clock.wait(never, POLL_SECONDS)
        eye.look()
        if eye.doubt is not None:
            return eye.doubt
    return None


def _probe(witness: Witness, eye: _LeaseEye, row: QueuedTask) -> Judgement:
    """Make Slurm look at the node, then read until there is proof, a sign of life, or no probe time left."""
    try:
        witness.client.nudge(row.spec)
    except SlurmError as error:
        log.warning("nudge failed task=%s error=%s", row.spec, error)
    deadline = witness.clock.monotonic() + min(witness.thresholds.probe, LONGEST_PROBE_SECONDS)
    never = threading.Event()
    judgement, is_open = Judgement(life=Life.UNKNOWN, evidence="there was no time to look"), True
    while is_open and witness.clock.monotonic() < deadline:
        witness.clock.wait(never, POLL_SECONDS)
        judgement, is_open = _judge_again(witness, eye, row)
        if judgement.life is Life.DEAD:
            break
    return judgement


def _judge_again(witness: Witness, eye: _LeaseEye, row: QueuedTask) -> tuple[Judgement, bool]:
    """The verdict of a new look at everything, and whether a further look can still change it."""
    now = witness.read_row()
    if isinstance(now, QueuedTask) and not _same_life(now, row):
        return _alive(f"{row.spec} was started anew"), False
    if isinstance(now, QueuedTask) and not now.state.is_terminal and now.state not in _RUNS:
        return _alive(f"{now.spec} is {now.raw_state}, which counts as alive"), False
    node = read_batch_node(witness.client, now)
    judgement = eye.judge(now, node)
    return judgement, isinstance(now, QueuedTask) and not now.state.is_terminal and eye.doubt is None


def _same_life(now: QueuedTask, row: QueuedTask) -> bool:
    return (now.job_id, now.started_at) == (row.job_id, row.started_at)


class _LeaseEye:
    """Task 0's lease under our own eyes. What was known of it before does not count: watching it takes seconds."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._first = witness.read_lease()
        self._began = witness.clock.monotonic()
        self._last = self._first
        self.still_seconds = 0.0
        self.has_moved = False
        written = self._first.interval_seconds if isinstance(self._first, Lease) else 0.0
        # The longest of all claims: a shorter one would let a task that is well look still. Never NaN, see _larger.
        self.interval_seconds = _larger(witness.thresholds.lease_interval, written, SHORTEST_INTERVAL_SECONDS)

    @property
    def needed_seconds(self) -> float:
        """How long it has to stand still."""
        return stillness_seconds(self.interval_seconds)

    @property
    def stood_long_enough(self) -> bool:
        """Whether its standing still says anything."""
        return self.still_seconds >= self.needed_seconds

    @property
    def doubt(self) -> Judgement | None:
        """Why there is no use in going on."""
        if self.has_moved:
            return _alive("the lease of task 0 moves")
        if isinstance(self._last, Unobserved):
            return Judgement(life=Life.UNKNOWN, evidence=f"the lease of task 0: {self._last.reason}")
        return None

    def look(self) -> None:
        """Read the lease again."""
        looked_at = self._witness.clock.monotonic()
        self._last = self._witness.read_lease()
        self.still_seconds = looked_at - self._began
        if not isinstance(self._last, Unobserved) and _life(self._last) != _life(self._first):
            # For good: a counter that comes back to an old value was written all the same.
            self.has_moved = True

    def judge(self, row: QueuedTask | Unobserved | None, node: Node | Unobserved | None) -> Judgement:
        """Look once more and judge."""
        self.look()
        if self.has_moved and not (isinstance(row, QueuedTask) and row.state.is_terminal):
            return _alive("the lease of task 0 moves")
        return judge_task(
            row,
            node,
            _counter(self._first),
            _counter(self._last),
            still_seconds=self.still_seconds,
            interval_seconds=self.interval_seconds,
        )

    def seen(self) -> LeaseSeen | None:
        """For the closed file: a successor counts the time of our watching as well."""
        if not isinstance(self._last, Lease) or self.has_moved:
            return None
        return LeaseSeen(
            counter=self._last.counter, still_seconds=self.still_seconds, interval_seconds=self.interval_seconds
        )


def _counter(lease: Lease | Unobserved | None) -> int | Unobserved | None:
    return lease.counter if isinstance(lease, Lease) else lease


def _life(lease: Lease | Unobserved | None) -> tuple[object, ...] | Unobserved | None:
    """The counter and who wrote it: a task that was started anew counts from the beginning."""
    if not isinstance(lease, Lease):
        return lease
    return (lease.counter, lease.restart_count, lease.boot_id, lease.pid, lease.pid_started_at)


def _alive(evidence: str) -> Judgement:
    return Judgement(life=Life.ALIVE, evidence=evidence)


def _larger(*seconds: float) -> float:
    """The largest of durations that a file may have made up; endless when one of them is no number."""
    return math.inf if any(math.isnan(one) for one in seconds) else max(seconds)
