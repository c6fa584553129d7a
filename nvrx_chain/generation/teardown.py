"""Carrying out a TeardownAction on the queue: by verified id, repeated until a fresh reading shows that it is done.

scancel's success proves nothing (it is silent when nothing matched), so success is what the queue shows afterwards.
`choose_cancels` is pure. Touches: Slurm.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Protocol

from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.hooks import Hook, switched_off
from nvrx_chain.records.outcome import TeardownAction
from nvrx_chain.slurm.identity import ChainIdentity, verify_task
from nvrx_chain.slurm.model import QueuedTask, QueueReading
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
QUICK_POLLS = 4
SLOW_POLL_SECONDS = 3.0
BACK_OFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancels:
    """What to cancel next: arrays whose pending tasks go, single tasks that go in any state, and what is waited for."""

    pending_arrays: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Nothing is left to cancel or to wait for."""
        return not (self.pending_arrays or self.tasks or self.waiting)


def choose_cancels(
    action: TeardownAction,
    reading: QueueReading,
    identity: ChainIdentity,
    array_job_id: int,
    *,
    spared: frozenset[int],
    may_take: frozenset[int] | None,
) -> Cancels:
    """What the queue still holds that `action` wants gone. Rows that are not ours are left alone.

    `spared` are tasks that leave by themselves (and the caller); `may_take` are the tasks that may be cancelled while
    they run, None for all. Pending ones come first: a freed slot must not start another spare.
    """
    if action is TeardownAction.LEAVE:
        return Cancels()
    ours = [row for row in reading.tasks if verify_task(row, identity) is None]
    if action is not TeardownAction.CANCEL_REST:
        ours = [row for row in ours if row.array_job_id == array_job_id]
    pending = tuple(sorted({row.array_job_id for row in ours if row.state.is_pending}))
    if pending or action in (TeardownAction.CANCEL_REST, TeardownAction.RELEASE_SPARES):
        return Cancels(pending_arrays=pending)
    blocking = [row for row in ours if blocks_singleton(row) and row.array_task_id not in spared]
    tasks = tuple(row.spec for row in blocking if may_take is None or row.array_task_id in may_take)
    return Cancels(tasks=tasks, waiting=tuple(row.spec for row in blocking if row.spec not in tasks))


def blocks_singleton(row: QueuedTask) -> bool:
    """It keeps singleton from starting the next generation; a COMPLETING task does not."""
    return not row.state.is_terminal and not row.state.is_pending and row.state is not JobState.COMPLETING


class Clearing(Protocol):
    """Which running tasks of a closed generation may be touched, asked anew with each reading of the queue."""

    def spared(self) -> frozenset[int]:
        """Tasks that end by themselves, the caller among them."""
        ...

    def may_take(self, reading: QueueReading) -> frozenset[int] | None:
        """Tasks that may be cancelled while they run; None for all."""
        ...

    def pause(self, cancels: Cancels, seconds: float) -> None:
        """Wait before the next reading of the queue: about so long."""
        ...


class _NobodyRunning:
    """For the actions that touch pending tasks only."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def pause(self, cancels: Cancels, seconds: float) -> None:
        self._context.clock.wait(threading.Event(), seconds)

    def spared(self) -> frozenset[int]:
        return frozenset()

    def may_take(self, reading: QueueReading) -> frozenset[int] | None:
        return frozenset()


def carry_out(
    context: TaskContext,
    action: TeardownAction,
    *,
    seconds: float,
    clearing: Clearing | None = None,
) -> bool:
    """Cancel until a reading of the queue shows nothing left, at most `seconds`. True when it is done."""
    if action is TeardownAction.LEAVE or switched_off(Hook.NO_RELEASE):
        return True
    clearing = clearing or _NobodyRunning(context)
    deadline = context.clock.monotonic() + seconds
    polls = 0
    while True:
        cancels = Cancels()
        reading = _read_queue(context, action)
        if isinstance(reading, Unobserved):
            log.warning("the queue could not be read: %s", reading.reason)
            pause = BACK_OFF_SECONDS
        else:
            cancels = choose_cancels(
                action,
                reading,
                context.chain_identity(),
                context.array_job_id,
                spared=clearing.spared(),
                may_take=clearing.may_take(reading),
            )
            if cancels.done:
                log.info("teardown verified action=%s", action.value)
                return True
            polls += 1
            pause = POLL_SECONDS if polls < QUICK_POLLS else SLOW_POLL_SECONDS
            _send(context, cancels)
        if context.clock.monotonic() + pause > deadline:
            log.error("teardown not verified within seconds=%.0f action=%s", seconds, action.value)
            return False
        clearing.pause(cancels, pause)


def _read_queue(context: TaskContext, action: TeardownAction) -> QueueReading | Unobserved:
    """The queue; `Unobserved` also while it is not known which of its jobs are ours."""
    known = context.chain.list_generations()
    if action is TeardownAction.CANCEL_REST and isinstance(known, Unobserved):
        # The rest of the chain would look like jobs of somebody else, and so like nothing to do.
        return known
    return context.client.queue(context.manifest.user)


def _send(context: TaskContext, cancels: Cancels) -> None:
    try:
        if cancels.pending_arrays:
            log.info("cancelling pending tasks of arrays=%s", cancels.pending_arrays)
            context.client.cancel([str(job) for job in cancels.pending_arrays], pending_only=True)
        if cancels.tasks:
            log.info("cancelling tasks=%s", cancels.tasks)
            context.client.cancel(cancels.tasks)
    except NvrxError as error:
        log.warning("cancel failed, it is tried again: %s", error)
