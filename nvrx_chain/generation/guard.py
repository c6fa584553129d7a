"""What task 0 watches while training runs: dead peers, empty seats, drained nodes, a no-restart verdict, a lost signal.

Touches: Slurm (one squeue per self-check, an inquiry about a silent peer, the drain poll), the rendezvous file.
"""

from __future__ import annotations

import logging
import random
import threading

from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.generation import rendezvous
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.drain_watch import DrainWatch
from nvrx_chain.generation.inquiry import Inquirer
from nvrx_chain.generation.link import HostLink
from nvrx_chain.generation.session import StopCause, StopOrder
from nvrx_chain.generation.stall import StallWatch
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.liveness import Life, lease_is_stale
from nvrx_chain.records.control import Rendezvous
from nvrx_chain.slurm.identity import verify_task
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 60.0
POLL_SECONDS = 2.0
BACK_OFF_SECONDS = 5.0


class PeerGuard:
    """The tick of task 0's session. Cancels nothing but a peer that is proven dead."""

    def __init__(self, context: TaskContext, drain: DrainWatch | None = None) -> None:
        self._context = context
        self._drain = drain or DrainWatch(context)
        self._inquirer = Inquirer(context)
        self._burial: Background[bool] = Background(context.spawn, "burial")
        self._reseating: Background[Rendezvous] = Background(context.spawn, "reseating")
        self._asked_at: dict[int, float] = {}
        self._dead: frozenset[int] = frozenset()
        self._burying: int | None = None
        self._members: tuple[int, ...] | None = None
        self._self_check = SelfCheck(context)
        self._stall = StallWatch(context, context.link) if isinstance(context.link, HostLink) else None

    def tick(self, snapshot: Snapshot) -> StopOrder | None:
        """One look; a StopOrder when this generation cannot go on."""
        if self._stall is not None:
            self._stall.tick()
        if snapshot.no_restart is not None:
            return StopOrder(cause=StopCause.NO_RESTART, reason=snapshot.no_restart.cause)
        lost = self._self_check.tick()
        if lost is not None:
            return StopOrder(cause=StopCause.LOST_SIGNAL, reason=lost)
        self.tend(snapshot)
        self._reseat(snapshot)
        return None

    def tend(self, snapshot: Snapshot) -> None:
        """Look after the peers, also while the generation assembles: a dead one keeps its slot from a spare."""
        self._bury()
        self._suspect(snapshot)
        self._drain.tick(snapshot)

    def _bury(self) -> None:
        """Cancel a peer whose death is proven, so that a cold spare can start in its slot."""
        buried = self._burial.take()
        if buried is not None and self._burying is not None:
            if buried.value is not True:
                # It stays suspect: the next inquiry finds it dead again and cancels again.
                self._dead -= {self._burying}
            self._burying = None
        if self._burial.busy:
            return
        taken = self._inquirer.take()
        if taken is None or taken[1].life is not Life.DEAD:
            return
        task, judgement = taken
        self._dead |= {task}
        self._burying = task
        log.warning("peer is dead, cancelling task=%s evidence=%s", task, judgement.evidence)
        self._burial.start(lambda: cancel_dead_peer(self._context, task))

    def _suspect(self, snapshot: Snapshot) -> None:
        if self._inquirer.busy:
            return
        now = self._context.clock.monotonic()
        for task, view in snapshot.leases.items():
            if task == 0 or task in snapshot.left or task in self._dead:
                continue
            stale = lease_is_stale(view.still_seconds, view.interval_seconds, self._context.thresholds.lease_timeout)
            if stale and now - self._asked_at.get(task, -ASK_AGAIN_SECONDS) >= ASK_AGAIN_SECONDS:
                self._asked_at[task] = now
                self._inquirer.ask(task)
                return

    def _reseat(self, snapshot: Snapshot) -> None:
        """With a launcher of fixed seats, hand the seat of a task that left or died to a waiting spare."""
        current = snapshot.rendezvous
        if self._context.takes_hot_spares or current is None or current.started_at is None:
            return
        done = self._reseating.take()
        if done is not None and not isinstance(done.value, Unobserved):
            # Remembered here: the snapshot shows the new members only after the next read of the directory.
            self._members = done.value.members
        gone = tuple({*snapshot.left, *self._dead})
        train_tasks = self._context.manifest.shape.train_tasks
        seated = self._members or current.members
        members = rendezvous.choose_members(snapshot.joined, gone, seated, train_tasks)
        if members != seated and len(members) == train_tasks:
            self._reseating.start(lambda: rendezvous.reseat(self._context, current, members))


def cancel_dead_peer(context: TaskContext, task: int) -> bool:
    """Cancel one task of this generation by verified id, until the queue shows that it no longer blocks its slot.

    False when that was not seen within the teardown time.
    """
    never = threading.Event()
    deadline = context.clock.monotonic() + context.thresholds.teardown
    while context.clock.monotonic() < deadline:
        reading = context.client.queue(context.manifest.user)
        if isinstance(reading, Unobserved):
            context.clock.wait(never, BACK_OFF_SECONDS)
            continue
        row = reading.task(context.array_job_id, task)
        if row is None or row.state.is_terminal or row.state is JobState.COMPLETING:
            return True
        foreign = verify_task(row, context.chain_identity())
        if foreign is not None:
            log.error("not cancelling task=%s: %s", task, foreign)
            return False
        try:
            context.client.cancel([row.spec])
        except NvrxError as error:
            log.warning("cancel failed, it is tried again task=%s error=%s", row.spec, error)
        context.clock.wait(never, POLL_SECONDS)
    return False


class SelfCheck:
    """Whether Slurm is ending task 0 without a signal having arrived: a frozen slurmd delivers none."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._work: Background[str | None] = Background(context.spawn, "self-check")
        self._next_at = context.clock.monotonic() + self._pause()

    def tick(self) -> str | None:
        """What Slurm says that should not be, None while all is well or Slurm does not answer."""
        done = self._work.take()
        if done is not None and isinstance(done.value, str):
            log.warning("%s", done.value)
            return done.value
        if not self._work.busy and self._context.clock.monotonic() >= self._next_at:
            self._next_at = self._context.clock.monotonic() + self._pause()
            self._work.start(self._look)
        return None

    def _pause(self) -> float:
        return self._context.thresholds.self_check * random.uniform(0.8, 1.2)

    def _look(self) -> str | None:
        reading = self._context.client.queue(self._context.manifest.user)
        if isinstance(reading, Unobserved):
            return None
        row = reading.task(self._context.array_job_id, 0)
        if row is None or verify_task(row, self._context.chain_identity()) is not None:
            return None
        if row.state is JobState.COMPLETING or row.state.is_terminal:
            return f"Slurm shows this task as {row.raw_state} while it runs"
        return None
