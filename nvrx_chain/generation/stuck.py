"""A task 0 that is frozen but not dead: no lease, no log, no checkpoint for a long time. Pure but for file sizes.

Touches: the size of this task's launcher log, the checkpoint iteration file.
"""

from __future__ import annotations

import logging
from pathlib import Path

from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.session import StopCause, StopOrder
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.records.progress import read_iteration

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0


class StuckWatch:
    """For how long nothing at all has moved, on the reader's monotonic clock."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._looked_at = context.clock.monotonic()
        self._moved_at = self._looked_at
        self._signs: tuple[object, ...] | None = None

    def tick(self, snapshot: Snapshot) -> StopOrder | None:
        """A StopOrder when lease, log and checkpoint have all stood still for `stuck` seconds."""
        now = self._context.clock.monotonic()
        lease = snapshot.leases.get(0)
        if lease is None or lease.still_seconds < self._context.thresholds.lease_timeout:
            self._moved_at = now
            return None
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            signs = self._read_signs()
            if signs != self._signs:
                self._signs, self._moved_at = signs, now
        stuck = now - self._moved_at
        if stuck < self._context.thresholds.stuck:
            return None
        return StopOrder(cause=StopCause.STUCK, reason=f"task 0 is not dead but nothing has moved for {stuck:.0f} s")

    def _read_signs(self) -> tuple[object, ...]:
        iteration = read_iteration(self._context.iteration_file)
        logs = self._context.board.directory.logs
        return (iteration, *(_size(logs / name.name) for name in sorted(_entries(logs))))


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError as error:
        log.warning("the logs cannot be listed: %s", error)
        return []


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
