"""Assembling: task 0 waits until enough tasks have joined, and says what the missing ones wait for.

Array elements start one by one on a busy cluster, and a launcher's own join time-out would end a generation that only
had to wait. Touches: Slurm (the reasons of pending tasks), the rendezvous file.
"""

from __future__ import annotations

import logging
from collections import Counter

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.liveness import lease_is_stale

log = logging.getLogger(__name__)

REPORT_SECONDS = 30.0


class Assembly:
    """Counts the tasks at the gate. `is_complete` and `report` are asked by task 0's loop."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._started_at = context.clock.monotonic()
        self._reported_at: float | None = None
        self._question: Background[str] = Background(context.spawn, "reasons of pending tasks")
        self._known = ""

    def present(self, snapshot: Snapshot) -> tuple[int, ...]:
        """The tasks at the gate, task 0 included. One that died there joined too, and its lease stands still."""
        return tuple(
            task for task in snapshot.joined if task not in snapshot.left and not self._is_silent(task, snapshot)
        )

    def _is_silent(self, task: int, snapshot: Snapshot) -> bool:
        lease = snapshot.leases.get(task)
        if task == 0 or lease is None:
            return False
        return lease_is_stale(lease.still_seconds, lease.interval_seconds, self._context.thresholds.lease_timeout)

    def is_complete(self, snapshot: Snapshot) -> bool:
        """Whether the training tasks are all there."""
        return len(self.present(snapshot)) >= self._context.manifest.shape.train_tasks

    def is_overdue(self) -> bool:
        """Whether `--assemble-timeout` is over; 0 waits for as long as the allocation lasts."""
        limit = self._context.thresholds.assemble_timeout
        return limit > 0 and self._context.clock.monotonic() - self._started_at > limit

    def report(self, snapshot: Snapshot) -> None:
        """Say from time to time how many have come and why the others have not."""
        now = self._context.clock.monotonic()
        if self._reported_at is not None and now - self._reported_at < REPORT_SECONDS:
            return
        self._reported_at = now
        needed = self._context.manifest.shape.train_tasks
        self._context.lease.phase = f"assembling ({len(self.present(snapshot))} of {needed}{self._reasons(now)})"
        log.info("%s", self._context.lease.phase)

    def _reasons(self, now: float) -> str:
        # Not at the very start: an idle cluster assembles within a second, without a question to the controller.
        if now - self._started_at < REPORT_SECONDS:
            return ""
        # In the background: a TERM that comes while the controller hangs must still be answered within KillWait.
        asked = self._question.take()
        if asked is not None:
            self._known = "; Slurm does not say why" if isinstance(asked.value, Unobserved) else asked.value
        self._question.start(self._ask)
        return self._known

    def _ask(self) -> str:
        reading = self._context.client.queue(self._context.manifest.user)
        if isinstance(reading, Unobserved):
            return "; Slurm does not say why"
        rows = reading.of(self._context.array_job_id)
        reasons = Counter(row.reason for row in rows if row.state.is_pending)
        return "; pending: " + ", ".join(f"{n} {reason}" for reason, n in reasons.items()) if reasons else ""
