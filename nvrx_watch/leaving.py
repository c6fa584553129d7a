"""When a chain of `--all-mine` is let go: nothing is left of it, and what there was to say has been said.

Touches nothing."""

from __future__ import annotations

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_watch.history_model import History, IncidentState
from nvrx_watch.model import Queue, Snapshot
from nvrx_watch.run_pass import PassResult

QUIET_PASSES_BEFORE_LEAVING = 5
"""A chain that has a verdict and no job left is looked at this often again, then let go."""

_SAYS_THE_END = frozenset({"chain_exhausted", "chain_held"})
"""What is found of a chain that has no verdict and no job left."""


class Leaving:
    """Counts for how long each chain has been over. `dry_seconds` is for chains that ended without a verdict."""

    def __init__(self, clock: Clock, *, dry_seconds: float, disabled: frozenset[str]) -> None:
        self._clock = clock
        self._dry_seconds = dry_seconds
        self._disabled = disabled
        self._over: dict[str, int] = {}
        self._dry: dict[str, tuple[int, float]] = {}

    def may_leave(self, result: PassResult) -> bool:
        """Take in one pass over one chain; whether that was the last one."""
        key, snapshot = result.snapshot.subject.key, result.snapshot
        now = self._clock.monotonic()
        if not _is_empty(snapshot):
            # The queue was not seen, or shows something: the count begins anew.
            self._forget(key)
            return False
        if snapshot.verdict is not None:
            self._over[key] = self._over.get(key, 0) + 1
            leaves = self._over[key] >= QUIET_PASSES_BEFORE_LEAVING
        else:
            if result.is_degraded:
                self._forget(key)
                return False
            passes, since = self._dry.get(key, (0, now))
            self._dry[key] = passes + 1, since
            lasts = passes + 1 >= QUIET_PASSES_BEFORE_LEAVING and now - since >= self._dry_seconds
            leaves = lasts and self._says_the_end(result) and _was_told(result.history)
        if leaves:
            self._forget(key)
        return leaves

    def _says_the_end(self, result: PassResult) -> bool:
        said = {finding.detector for finding in result.run.findings}
        return bool(said & _SAYS_THE_END) or "chain_exhausted" in self._disabled

    def _forget(self, key: str) -> None:
        self._over.pop(key, None)
        self._dry.pop(key, None)


def _is_empty(snapshot: Snapshot) -> bool:
    """Whether the queue was seen and shows nothing live of the chain, and whether it has a verdict is known."""
    queue = snapshot.queue
    if not isinstance(queue, Queue) or isinstance(snapshot.verdict, Unobserved):
        return False
    if queue.doubtful or (queue.foreign and snapshot.verdict is None):
        return False
    return not any(queue.alive(one.array_job_id) for one in snapshot.generations)


def _was_told(history: History) -> bool:
    """Whether each incident was there in an earlier pass too, and no sink still owes us an answer."""
    firing = [one for one in history.incidents.values() if one.state is IncidentState.FIRING]
    return not history.refusals and all(one.first_seen_at != one.last_seen_at for one in firing)
