"""The gate of a peer: wait until task 0 has started the rendezvous and has a seat for this task, or until it is no use.

A rendezvous file proves nothing by itself: its task 0 may be dead. It is believed when this peer saw task 0 move, by
its lease or by the start of the rendezvous. Touches: control/, Slurm through the question whether task 0 lives.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass

from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.drain_notice import DrainNotice
from nvrx_chain.generation.inquiry import HostQuestion
from nvrx_chain.generation.session import LOOP_SECONDS
from nvrx_chain.generation.sight import BLIND_SECONDS
from nvrx_chain.generation.silence import HostSilence
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.liveness import Judgement, Life, lease_is_stale
from nvrx_chain.records.control import Rendezvous

log = logging.getLogger(__name__)


class GateAnswer(str, enum.Enum):
    """What a peer does next."""

    GO = "go"
    LEAVE = "leave"
    HOST_DEAD = "host_dead"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The answer, why, and the rendezvous to join for GO."""

    answer: GateAnswer
    why: str
    rendezvous: Rendezvous | None = None


class Gate:
    """Waits for one seat. Made anew for each wait."""

    def __init__(
        self, context: TaskContext, drain: DrainNotice | None = None, silence: HostSilence | None = None
    ) -> None:
        self._context = context
        self._drain = drain or DrainNotice(context)
        self._silence = silence or HostSilence(context)
        self._question = HostQuestion(context)
        self._began = context.clock.monotonic()
        self._moved_at = self._began
        self._first_counter: int | None = None
        self._seen_assembling = False
        self._seen_alive = False

    def wait(self) -> GateResult:
        """Block until there is an answer. Waits without a limit only while task 0 is seen to live."""
        context = self._context
        if self._is_late():
            # A spare that started because a slot got free: maybe it is task 0's slot.
            self._question.raise_("this task starts late")
        while True:
            snapshot = context.watcher.latest()
            self._observe(snapshot)
            self._silence.tick(snapshot)
            result = self._leave(snapshot) or self._go(snapshot) or self._doubt(snapshot)
            if result is not None:
                log.info("gate: %s (%s)", result.answer.value, result.why)
                return result
            context.pause(LOOP_SECONDS)

    def _is_late(self) -> bool:
        return self._context.identity.array_task_id >= self._context.manifest.shape.throttle

    def _observe(self, snapshot: Snapshot) -> None:
        """Remember whether task 0 was seen to move."""
        lease, now = snapshot.leases.get(0), self._context.clock.monotonic()
        if lease is not None:
            if self._first_counter is None:
                self._first_counter = lease.counter
            elif lease.counter != self._first_counter:
                self._first_counter = lease.counter
                self._seen_alive = True
                self._moved_at = now
                self._question.drop()
        rendezvous = snapshot.rendezvous
        if rendezvous is None:
            return
        # Either way task 0 did something after this task was there: it still assembles, or it saw this task join.
        if rendezvous.started_at is None or self._context.identity.array_task_id in rendezvous.present:
            self._seen_assembling = True

    def _leave(self, snapshot: Snapshot) -> GateResult | None:
        if self._context.signals.terminated:
            return GateResult(answer=GateAnswer.TERMINATED, why="terminated by a signal")
        if snapshot.closed is not None:
            return GateResult(answer=GateAnswer.LEAVE, why=f"closed as {snapshot.closed.outcome.value}")
        if snapshot.over is not None:
            return GateResult(answer=GateAnswer.LEAVE, why=f"the chain is over: {snapshot.over.verdict.value}")
        if snapshot.later_generation is not None:
            return GateResult(answer=GateAnswer.LEAVE, why=f"generation {snapshot.later_generation} has published")
        if self._context.signals.walltime_warned:
            return GateResult(answer=GateAnswer.LEAVE, why="the time limit is near")
        drained = self._drain.why_excluded(snapshot)
        if drained is not None:
            return GateResult(answer=GateAnswer.LEAVE, why=drained)
        return None

    def _go(self, snapshot: Snapshot) -> GateResult | None:
        rendezvous = snapshot.rendezvous
        if rendezvous is None or rendezvous.started_at is None:
            return None
        if self._context.identity.array_task_id not in rendezvous.members:
            return None
        if not (self._seen_alive or self._seen_assembling):
            return None
        return GateResult(answer=GateAnswer.GO, why="task 0 has started the rendezvous", rendezvous=rendezvous)

    def _doubt(self, snapshot: Snapshot) -> GateResult | None:
        """Ask about a task 0 that does not move; give up after the gate timeout."""
        context, now = self._context, self._context.clock.monotonic()
        if now - snapshot.taken_at > BLIND_SECONDS:
            # Whoever cannot look has not seen task 0 stand still; once it can, time has to pass again.
            self._moved_at = now
        lease = snapshot.leases.get(0)
        still = now - self._moved_at
        interval = lease.interval_seconds if lease else None
        if lease_is_stale(still, interval, context.thresholds.lease_timeout):
            self._question.raise_(f"task 0 has not been seen to move for {still:.0f} s")
        judgement: Judgement | None = self._question.tick(snapshot)
        if judgement is not None and judgement.life is Life.DEAD:
            return GateResult(answer=GateAnswer.HOST_DEAD, why=judgement.evidence)
        if still > context.thresholds.gate_timeout:
            return GateResult(answer=GateAnswer.TIMED_OUT, why=f"task 0 did not move for {still:.0f} s")
        return None
