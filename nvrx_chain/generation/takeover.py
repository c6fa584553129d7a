"""After a generation was closed over the head of its task 0: no task of it may keep singleton from the next one.

The winner of the closed file clears the queue; every other peer waits until that was verified, and takes over in its
turn, so that a dead winner delays and never blocks. A running task is cancelled only when it is task 0 (proven dead),
on a node that does not answer with a lease that stands still, or when it had its time to leave. Touches: Slurm,
control/.
"""

from __future__ import annotations

import logging
import threading

from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.generation import teardown
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.inquiry import InquiryWatch
from nvrx_chain.generation.session import LOOP_SECONDS
from nvrx_chain.generation.teardown import Cancels
from nvrx_chain.liveness import LeaseWatch, is_unreachable, stillness_seconds
from nvrx_chain.records.outcome import TEARDOWN, Outcome, TeardownAction
from nvrx_chain.slurm.model import QueuedTask, QueueReading
from nvrx_chain.slurm.nodelist import expand_nodes

log = logging.getLogger(__name__)

_OVER_THE_HEAD = frozenset({Outcome.LEASE_LOST, Outcome.RENDEZVOUS_LOST, Outcome.STUCK})
DEFAULT_KILL_WAIT_SECONDS = 30.0
CLEARING = "clearing"
WAITING_SECONDS = 6.0
"""How long the queue is not read while others still have the time to leave: one of them may be on a dead node."""
LAST_STEPS_SECONDS = 3.0
"""What a task 0 may take to end after it wrote that it left, before it is taken for one that cannot tell Slurm so."""


def clear_generation(context: TaskContext, outcome: Outcome, *, winner: bool) -> None:
    """Clear the queue of this generation as winner, or wait for whoever does and take over in turn."""
    if outcome not in _OVER_THE_HEAD:
        return
    if not winner and not _is_my_turn(context):
        return
    fence_stuck = outcome is Outcome.STUCK and context.manifest.fence_stuck
    action = TeardownAction.CANCEL_GENERATION if fence_stuck else TEARDOWN[outcome]
    proven = frozenset({0}) if fence_stuck or outcome is Outcome.LEASE_LOST else frozenset()
    clearing = _OverTheHead(context, proven, host_is_cut_off=outcome is Outcome.RENDEZVOUS_LOST)
    if teardown.carry_out(context, action, seconds=context.thresholds.teardown, clearing=clearing):
        why = f"nothing of generation {context.array_job_id} is left to cancel"
        context.board.clear(why, leases=context.leases_seen())


def _is_my_turn(context: TaskContext) -> bool:
    """Wait for the marker, or for the own turn with nobody at work. True when this peer has to clear."""
    own = context.identity.array_task_id
    peers = sorted({*context.watcher.latest().joined, own} - {0})
    turn = (peers.index(own) + 1) * context.thresholds.inquiry_turn
    others = InquiryWatch(context)
    began = context.clock.monotonic()
    deadline = began + context.thresholds.teardown
    while context.clock.monotonic() < deadline:
        snapshot = context.watcher.latest()
        if snapshot.cleared or context.signals.terminated:
            return False
        others.observe(snapshot.inquiry)
        quiet = others.quiet_seconds()
        # In turn after the quiet time too: a winner that died would otherwise be followed by everybody at once.
        calm = quiet is None or quiet > context.thresholds.inquiry_quiet + turn
        if calm and context.clock.monotonic() - began > turn:
            return True
        context.pause(LOOP_SECONDS)
    return False


class _OverTheHead:
    """Which running tasks may be taken, as time passes and Slurm looks at their nodes."""

    def __init__(self, context: TaskContext, proven: frozenset[int], *, host_is_cut_off: bool) -> None:
        self._context = context
        self._proven = proven
        self._host_is_cut_off = host_is_cut_off
        self._host_left_at: float | None = None
        self._silent: frozenset[int] = frozenset()
        self._began = context.clock.monotonic()
        self._patience: float | None = None
        self._watch = LeaseWatch()
        self._nudged: set[int] = set()

    def spared(self) -> frozenset[int]:
        """The caller, and every task that wrote that it left and still moves: they end by themselves."""
        left = self._context.board.indexed("left")
        gone = () if isinstance(left, Unobserved) else left
        self._see_host_leave(gone)
        taken = self._proven | self._silent | (frozenset({0}) if self._host_is_cut_off else frozenset())
        return frozenset({self._context.identity.array_task_id, *gone}) - taken

    def may_take(self, reading: QueueReading) -> frozenset[int] | None:
        """Proven and silent tasks; None when everybody had the time to leave."""
        context = self._context
        waited = context.clock.monotonic() - self._began
        context.board.note_inquiry(0, CLEARING, f"clearing the queue for {waited:.0f} s")
        self._silent = self._silent_tasks(reading)
        if waited > context.thresholds.drain and waited > self._patience_seconds():
            return None
        return self._proven | self._silent

    def pause(self, cancels: Cancels, seconds: float) -> None:
        """Whoever is only waited for says on the board that he left; the controller is not asked meanwhile."""
        context, never = self._context, threading.Event()
        if cancels.pending_arrays or not cancels.waiting:
            context.clock.wait(never, seconds)
            return
        deadline = context.clock.monotonic() + WAITING_SECONDS
        awaited = {int(spec.rpartition("_")[2]) for spec in cancels.waiting}
        while context.clock.monotonic() < deadline:
            left = context.board.indexed("left")
            if not isinstance(left, Unobserved):
                self._see_host_leave(left)
                if awaited <= {*left} and not (self._host_is_cut_off and 0 in awaited - self._proven):
                    # Slurm hears of it a moment later.
                    context.clock.wait(never, seconds)
                    return
            context.board.note_inquiry(0, CLEARING, "waiting for the others to leave")
            context.clock.wait(never, teardown.POLL_SECONDS)

    def _patience_seconds(self) -> float:
        if self._patience is None:
            self._patience = self._context.thresholds.drain + _kill_wait(self._context)
        return self._patience

    def _see_host_leave(self, gone: tuple[int, ...]) -> None:
        """A task 0 that nobody reaches ends, and Slurm does not hear of it. Its ranks are gone, so it may be taken."""
        if not self._host_is_cut_off or 0 not in gone:
            return
        now = self._context.clock.monotonic()
        if self._host_left_at is None:
            self._host_left_at = now
        elif now - self._host_left_at >= LAST_STEPS_SECONDS:
            self._proven |= {0}

    def _silent_tasks(self, reading: QueueReading) -> frozenset[int]:
        """Tasks whose lease stands still on a node that Slurm, made to look, calls silent."""
        suspects = self._suspects(reading)
        hosts = {}
        for task, row in suspects.items():
            if task not in self._nudged:
                self._nudged.add(task)
                self._nudge(row.spec)
            host = _batch_host(row)
            if host is not None:
                hosts[task] = host
        if not hosts:
            return frozenset()
        nodes = self._context.client.nodes(sorted(set(hosts.values())))
        if isinstance(nodes, Unobserved):
            return frozenset()
        return frozenset(task for task, host in hosts.items() if is_unreachable(nodes.get(host)))

    def _suspects(self, reading: QueueReading) -> dict[int, QueuedTask]:
        """Tasks that may block the next generation and whose counter stood still for two intervals under our eyes.

        One that left is among them: its node may have died after it wrote so. One that is proven dead is not: looking
        at its silent node once more takes ten seconds, which the others would wait for.
        """
        context = self._context
        rows = {
            row.array_task_id: row
            for row in reading.of(context.array_job_id)
            if row.array_task_id is not None
            and row.array_task_id != context.identity.array_task_id
            and row.array_task_id not in self._proven
            and row.nodelist
            and teardown.blocks_singleton(row)
        }
        known = context.watcher.latest().leases
        began = context.clock.monotonic()
        self._watch.observe(context.board.leases(tuple(rows)), context.clock.monotonic())
        found = {}
        for task, row in rows.items():
            still, interval = self._watch.still_seconds(task, began), self._watch.interval(task)
            view = known.get(task)
            if still is not None and view is not None and view.counter == self._watch.counter(task):
                # Most clearings follow a proof of death, during which a second dead task stood still as well.
                still = max(still, view.still_seconds)
            if still is not None and interval is not None and still >= stillness_seconds(interval):
                found[task] = row
        return found

    def _nudge(self, spec: str) -> None:
        try:
            self._context.client.nudge(spec)
        except NvrxError as error:
            log.warning("nudge failed task=%s error=%s", spec, error)


def _batch_host(row: QueuedTask) -> str | None:
    try:
        names = expand_nodes(row.nodelist)
    except ValueError as error:
        log.warning("%s", error)
        return None
    return names[0] if names else None


def _kill_wait(context: TaskContext) -> float:
    config = context.client.config()
    if isinstance(config, Unobserved) or config.kill_wait_seconds is None:
        return DEFAULT_KILL_WAIT_SECONDS
    return float(config.kill_wait_seconds)
