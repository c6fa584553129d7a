"""A host that its peers do not reach while its lease goes on: each peer says so, and enough of them may close.

A launcher may not notice a silent host for as long as its collectives wait. Over the link each peer notices within
seconds. One that is itself cut off says the same, so it takes the majority of all peers and as many as half of the
training tasks. `out_of_reach` is pure. Touches: `control/silence.<k>.json`.
"""

from __future__ import annotations

from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.watcher import Snapshot

SILENT_SECONDS = 20.0
"""A network that comes back sooner, as after the failover of a switch, costs nothing."""


def lease_goes_on(snapshot: Snapshot, lease_timeout: float) -> bool:
    """Whether task 0 still writes its lease. One that does not may be dead, which is another question."""
    lease = snapshot.leases.get(0)
    return lease is not None and lease.still_seconds < lease_timeout / 2


def out_of_reach(snapshot: Snapshot, train_tasks: int, lease_timeout: float) -> str | None:
    """Why the generation is to be closed although task 0 lives; None while it is not."""
    if not lease_goes_on(snapshot, lease_timeout):
        return None
    peers = snapshot.live_peers()
    cut = sorted(set(peers) & {*snapshot.silenced, *snapshot.lost_hosts()})
    if 2 * len(cut) < train_tasks or 2 * len(cut) <= len(peers):
        return None
    if not set(cut) & {*snapshot.silenced}:
        # Launchers lose a host at the very moment of its death, when its lease still seems to go on. Only who has
        # been without an answer for a while, and saw the lease move meanwhile, knows better.
        return None
    return f"task 0 answers none of tasks {tuple(cut)} over the network, its lease goes on"


class HostSilence:
    """Keeps this peer's word on the board true."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._said = False
        self._work: Background[bool] = Background(context.spawn, "say that task 0 is silent")

    def tick(self, snapshot: Snapshot) -> None:
        """Write when it changes; in the background, since the directory may hang."""
        done = self._work.take()
        if done is not None and isinstance(done.value, bool):
            self._said = done.value
        seconds = self._context.link.host_silent_seconds()
        silent = seconds > SILENT_SECONDS and lease_goes_on(snapshot, self._context.thresholds.lease_timeout)
        if silent != self._said and not self._work.busy:
            self._work.start(lambda: self._say(silent, seconds))

    def _say(self, silent: bool, seconds: float) -> bool:
        self._context.board.say_silent(silent, seconds)
        return silent
