"""While the launcher of this task runs: what makes it stop, and the proof that its ranks are gone afterwards.

The loop reads only memory (snapshots, flags, the lease writer's clock), so it can stop the ranks while the shared file
system or Slurm hangs. Touches: the launcher process of this task.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass

from nvrx_chain.errors import ExitCode, NvrxError
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.launcher_process import LauncherProcess
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.liveness import self_fence_seconds
from nvrx_chain.records.control import LauncherExit
from nvrx_chain.records.outcome import Outcome

log = logging.getLogger(__name__)

LOOP_SECONDS = 0.2
KILL_SECONDS = 35.0
"""The wrapper's own kill (30 s for a process that touches much memory) and a little more."""
EXCUSE_SECONDS = 3.0
"""How often wrappers are told that a lease which stands still is excused."""
EXIT_FILES_SECONDS = 5.0
"""How long srun may still run after every wrapper wrote its exit: 26.05 waits for the controller, ranks are gone."""


class StopCause(str, enum.Enum):
    """Why a launcher was stopped, or that it ended by itself."""

    LAUNCHER_ENDED = "launcher_ended"
    STOPPED = "stopped"
    """Its wrapper was told to stop, and not by this task: a signal to the step alone."""
    CLOSED = "closed"
    SELF_FENCED = "self_fenced"
    TERMINATED = "terminated"
    WALLTIME = "walltime"
    NODE_FAILED = "node_failed"
    NO_RESTART = "no_restart"
    LOST_SIGNAL = "lost_signal"
    HOST_DEAD = "host_dead"
    DRAINED = "drained"
    HOST_SILENT = "host_silent"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """Stop the launcher now; `gentle` lets it end by itself for the drain time first."""

    cause: StopCause
    reason: str
    gentle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """How the launcher of this task ended. `exit_code` is the highest of its nodes, None when none was seen."""

    cause: StopCause
    reason: str
    exit_code: int | None
    ranks_gone: bool
    run_seconds: float


Tick = Callable[[Snapshot], "StopOrder | None"]
OnStop = Callable[[StopOrder], None]


def _nothing(_order: StopOrder) -> None:
    return None


class Session:
    """One life of this task's launcher. `on_stop` runs right after the launcher was told to stop."""

    def __init__(self, context: TaskContext, tick: Tick, on_stop: OnStop = _nothing) -> None:
        self._context = context
        self._tick = tick
        self._on_stop = on_stop
        self._announcement: Background[None] = Background(context.spawn, "announce the time limit")
        self._announced = False
        self._saying: Background[None] = Background(context.spawn, "say why it stops")
        self._excused_at: float | None = None
        self._save_asked_at: float | None = None
        self._node_failed_at: float | None = None

    def run(self) -> SessionEnd:
        """Start the launcher, watch it, and return when its ranks are gone or cannot be shown to be."""
        context = self._context
        started = context.clock.monotonic()
        try:
            process = context.start_launcher()
        except NvrxError as error:
            log.error("the launcher could not be started: %s", error)
            return _never_started(str(error))
        context.lease.phase = "running"
        try:
            order = self._watch(process)
        except BaseException:
            # The ranks must not train on behind a loop that steers nobody any more.
            process.stop(gentle=False)
            self._await_end(process)
            raise
        if order is None:
            order = StopOrder(cause=StopCause.LAUNCHER_ENDED, reason=f"the launcher ended with {process.poll()}")
        else:
            log.info("stopping ranks cause=%s reason=%s", order.cause.value, order.reason)
            context.lease.phase = "draining"
            self._stop(process, order)
        gone = self._ranks_are_gone()
        if order.cause is StopCause.LAUNCHER_ENDED:
            order = self._outside_order() or order
        return SessionEnd(
            cause=order.cause,
            reason=order.reason,
            exit_code=self._exit_code(process),
            ranks_gone=gone,
            run_seconds=context.clock.monotonic() - started,
        )

    def _watch(self, process: LauncherProcess) -> StopOrder | None:
        while process.poll() is None:
            # One picture for all of them: what they decide must not rest on different moments.
            snapshot = self._snapshot()
            self._pass_excuse_on(process)
            order = self._common_order(snapshot) or self._walltime_order(process, snapshot) or self._tick(snapshot)
            if order is not None:
                return order
            self._context.pause(LOOP_SECONDS)
        return None

    def _common_order(self, snapshot: Snapshot) -> StopOrder | None:
        context = self._context
        terminated = self._terminated_order()
        if terminated is not None:
            return terminated
        if snapshot.closed is not None:
            outcome = snapshot.closed.outcome
            return StopOrder(
                cause=StopCause.CLOSED,
                reason=f"the generation was closed as {outcome.value} by {snapshot.closed.closed_by}",
                gentle=outcome is Outcome.COMPLETED,
            )
        excused = context.link.excused_seconds()
        unread = min(context.clock.monotonic() - snapshot.taken_at, excused)
        if unread > 2 * context.thresholds.self_fence:
            # Its reader hangs: a closed generation would not be noticed.
            return StopOrder(
                cause=StopCause.SELF_FENCED, reason=f"the control directory could not be read for {unread:.0f} s"
            )
        unwritten = min(context.lease.seconds_since_written(), excused)
        if unwritten > self._fence_seconds():
            return StopOrder(
                cause=StopCause.SELF_FENCED, reason=f"the own lease could not be written for {unwritten:.0f} s"
            )
        return self._node_order(snapshot)

    def _fence_seconds(self) -> float:
        return self_fence_seconds(self._context.lease.interval_seconds, self._context.thresholds.self_fence)

    def _pass_excuse_on(self, process: LauncherProcess) -> None:
        """Tell the wrappers, who watch the lease themselves, as long as a lease that stands still is excused."""
        context, now = self._context, self._context.clock.monotonic()
        overdue = context.lease.seconds_since_written() > 2 * context.lease.interval_seconds
        told = self._excused_at is not None and now - self._excused_at < EXCUSE_SECONDS
        excused = context.link.excused_seconds()
        if overdue and not told and excused < self._fence_seconds():
            self._excused_at = now
            process.excuse(excused)

    def _terminated_order(self) -> StopOrder | None:
        signals = self._context.signals
        if not signals.terminated:
            return None
        who = "the batch shell died" if signals.parent_died else "terminated by a signal"
        return StopOrder(cause=StopCause.TERMINATED, reason=who)

    def _outside_order(self) -> StopOrder | None:
        """Why a launcher that seemed to end by itself did not; None when it did.

        Slurm ends the ranks before or without this process (a node that it gave up): ranks that save and leave then
        exit 0, which must not be taken for the end of training.
        """
        stopped = sorted(e.node for e in self._own_exits() if e.asked_to_stop)
        reason = f"the launcher's wrapper on {', '.join(stopped)} was told to stop by somebody else"
        return self._terminated_order() or (StopOrder(cause=StopCause.STOPPED, reason=reason) if stopped else None)

    def _node_order(self, snapshot: Snapshot) -> StopOrder | None:
        """One node of this task failed: the others get the drain time, then they are stopped."""
        own = [e for e in snapshot.launcher_exits if e.array_task_id == self._context.identity.array_task_id]
        failed = [e for e in own if e.exit_code != 0]
        if not failed or len(self._context.identity.nodes) == 1:
            return None
        now = self._context.clock.monotonic()
        if self._node_failed_at is None:
            self._node_failed_at = now
        if now - self._node_failed_at < self._context.thresholds.drain:
            return None
        first = failed[0]
        return StopOrder(
            cause=StopCause.NODE_FAILED, reason=f"the launcher on {first.node} exited with {first.exit_code}"
        )

    def _walltime_order(self, process: LauncherProcess, snapshot: Snapshot) -> StopOrder | None:
        """Forward the warning of the time limit once; stop when the time to save is over."""
        context, now = self._context, self._context.clock.monotonic()
        if context.signals.walltime_warned and not self._announced:
            # The ranks save together, and only one task may have been warned: tell all of them.
            self._announced = True
            self._announcement.start(context.board.warn_of_walltime)
        if self._save_asked_at is None and (context.signals.walltime_warned or snapshot.walltime):
            self._save_asked_at = now
            log.info("time limit near: asking the ranks to save seconds=%.0f", save_seconds(context))
            process.save()
        if self._save_asked_at is None or now - self._save_asked_at < save_seconds(context):
            return None
        return StopOrder(cause=StopCause.WALLTIME, reason="the time to save before the time limit is over")

    def _stop(self, process: LauncherProcess, order: StopOrder) -> None:
        process.stop(gentle=order.gentle)
        # In the background: what is said on the way, to a directory that may hang, must not keep us from the kill.
        self._saying.start(lambda: self._on_stop(order))
        self._await_end(process)

    def _await_end(self, process: LauncherProcess) -> None:
        context = self._context
        deadline = context.clock.monotonic() + 2 * context.thresholds.drain + KILL_SECONDS
        exits_at: float | None = None
        while process.poll() is None and context.clock.monotonic() < deadline:
            if exits_at is None and self._all_exits_written():
                exits_at = context.clock.monotonic()
            if exits_at is not None and context.clock.monotonic() - exits_at > EXIT_FILES_SECONDS:
                break
            context.pause(LOOP_SECONDS)
        process.kill()

    def _ranks_are_gone(self) -> bool:
        """Whether every wrapper of this task wrote that nothing is left below it."""
        context = self._context
        deadline = context.clock.monotonic() + EXIT_FILES_SECONDS
        while not self._all_exits_written():
            if context.clock.monotonic() > deadline:
                log.warning("no proof that all ranks are gone: a wrapper left no exit file")
                return False
            context.pause(LOOP_SECONDS)
        return True

    def _all_exits_written(self) -> bool:
        nodes = {e.node for e in self._own_exits()}
        return nodes >= set(self._context.identity.nodes)

    def _exit_code(self, process: LauncherProcess) -> int | None:
        exits = self._own_exits()
        code = max((e.exit_code for e in exits), default=process.poll())
        # A zero counts only when every node says so: srun of 22.05 returns 0 when a node of its step dies.
        if code == 0 and not self._all_exits_written():
            return None
        return code

    def _own_exits(self) -> list[LauncherExit]:
        task = self._context.identity.array_task_id
        return [e for e in self._snapshot().launcher_exits if e.array_task_id == task]

    def _snapshot(self) -> Snapshot:
        return self._context.watcher.latest()


def _never_started(why: str) -> SessionEnd:
    return SessionEnd(
        cause=StopCause.LAUNCHER_ENDED,
        reason=f"the launcher could not be started: {why}",
        exit_code=int(ExitCode.FAILED),
        ranks_gone=True,
        run_seconds=0.0,
    )


def save_seconds(context: TaskContext) -> float:
    """How long the ranks may save after the warning: what the limit leaves after the drain and the teardown."""
    thresholds = context.thresholds
    warning = thresholds.walltime_warning
    return max(warning / 3, warning - thresholds.drain - thresholds.fence_margin)
