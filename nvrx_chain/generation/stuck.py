"""A task 0 that is frozen but not dead: no lease, no log, no checkpoint for a long time. Pure but for file sizes.

Touches: the sizes of the generation's logs, the checkpoint iteration file, read in the background.
"""

from __future__ import annotations

from pathlib import Path

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.session import StopCause, StopOrder
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import is_task_log
from nvrx_chain.records.progress import read_iteration

LOOK_SECONDS = 30.0

Signs = tuple[object, ...]


class StuckWatch:
    """For how long nothing at all has moved, on the reader's monotonic clock."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._looked_at = context.clock.monotonic()
        self._moved_at = self._looked_at
        self._signs: Signs | None = None
        self._look: Background[Signs] = Background(context.spawn, "look for signs of life")

    def tick(self, snapshot: Snapshot) -> StopOrder | None:
        """A StopOrder when lease, log and checkpoint have all stood still for `stuck` seconds."""
        now = self._context.clock.monotonic()
        lease = snapshot.leases.get(0)
        if lease is None or lease.still_seconds < self._context.thresholds.lease_timeout:
            self._moved_at = now
            return None
        looked = self._look.take()
        if looked is not None and looked.value != self._signs:
            # Signs that cannot be read are no signs of a standstill either.
            self._signs = None if isinstance(looked.value, Unobserved) else looked.value
            self._moved_at = now
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look.start(self._read_signs)
        stuck = now - self._moved_at
        if stuck < self._context.thresholds.stuck:
            return None
        return StopOrder(cause=StopCause.STUCK, reason=f"task 0 is not dead but nothing has moved for {stuck:.0f} s")

    def _read_signs(self) -> Signs:
        """The checkpoint and the sizes of what launchers and ranks log. What run-task itself logs is no sign of life:
        peers that ask about task 0 write about it."""
        iteration = read_iteration(self._context.iteration_file)
        logs = self._context.board.directory.logs
        names = list_names(logs)
        listed = names if isinstance(names, tuple) else ()
        return (iteration, *((name, _size(logs / name)) for name in listed if not is_task_log(name)))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
