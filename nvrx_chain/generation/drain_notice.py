"""What a task makes of the marker that task 0 published about its nodes. In doubt it takes part."""

from __future__ import annotations

import logging

from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.records.drained import Doubt, Reader, find_doubt, name_drained

log = logging.getLogger(__name__)


class DrainNotice:
    """Remembers for how long the marker has been the same; says each doubt once."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._poll: int | None = None
        self._poll_seen_at = 0.0
        self._said: set[Doubt] = set()

    def why_excluded(self, snapshot: Snapshot) -> str | None:
        """Why this task takes no part any more; None while it does."""
        marker, now = snapshot.drained, self._context.clock.monotonic()
        if marker is None:
            return None
        if marker.poll != self._poll:
            self._poll, self._poll_seen_at = marker.poll, now
        if not (marker.is_active and marker.excluded):
            return None
        identity = self._context.identity
        reader = Reader(task=identity.array_task_id, nodes=identity.nodes, rendezvous=snapshot.rendezvous)
        doubt = find_doubt(marker, reader, now - self._poll_seen_at)
        if doubt is None:
            return f"its node is drained: {name_drained(marker.drained_nodes)}"
        if doubt not in self._said:
            self._said.add(doubt)
            log.warning(
                "a drain marker is not believed, this task takes part why=%s task=%s nodes=%s poll=%s",
                doubt.value,
                marker.task,
                ",".join(marker.task_nodes),
                marker.poll,
            )
        return None
