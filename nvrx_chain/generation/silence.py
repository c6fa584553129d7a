"""A host that its peers do not reach while its lease goes on: each peer says so, and enough of them may close.

A launcher may not notice a silent host for as long as its collectives wait. Over the link each peer notices within
seconds. One that is itself cut off says the same, so it takes the majority of all peers and as many as half of the
training tasks; and only one whose own way to task 0 is broken reads what the others say, and closes. A statement is
renewed while it holds, for its writer may die (see votes). `out_of_reach` is pure. Touches:
`control/silence.<k>.json`, the rendezvous port by a connection.
"""

from __future__ import annotations

import logging
import socket

from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.votes import renew_seconds
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.records.control import Rendezvous

log = logging.getLogger(__name__)

DOUBT_SECONDS = 10.0
"""From then on a peer reads what the others say, so that it sees their statements come and change."""
SILENT_SECONDS = 20.0
"""A network that comes back sooner, as after the failover of a switch, costs nothing."""
AGAIN_SECONDS = 2.0
PROBE_SECONDS = 3.0


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
        self._next_at = 0.0
        self._renew_at = 0.0
        self._renew_seconds = renew_seconds(context.manifest.shape.total)
        self._may_close = False
        self._work: Background[bool] = Background(context.spawn, "say that task 0 is silent")

    def tick(self, snapshot: Snapshot) -> None:
        """Write when it changes, and again while it lasts; in the background, since the directory may hang."""
        done = self._work.take()
        if done is not None and isinstance(done.value, bool):
            self._said = done.value
        seconds = self._context.link.host_silent_seconds()
        silent = seconds > SILENT_SECONDS and lease_goes_on(snapshot, self._context.thresholds.lease_timeout)
        lost = self._context.identity.array_task_id in snapshot.lost_hosts()
        self._context.watcher.read_votes(lost or seconds > DOUBT_SECONDS)
        self._may_close = lost or (silent and self._said)
        now, said = self._context.clock.monotonic(), self._said
        due = silent != said or (silent and now >= self._renew_at)
        if due and not self._work.busy and now >= self._next_at:
            # However fast it changes or fails: a write every two seconds at most.
            self._next_at, self._renew_at = now + AGAIN_SECONDS, now + self._renew_seconds
            self._work.start(lambda: self._say(silent, said, seconds, snapshot.rendezvous))

    @property
    def may_close(self) -> bool:
        """Whether this peer does not reach task 0 itself: it said so, or its launcher ended for it."""
        return self._may_close

    def _say(self, silent: bool, said: bool, seconds: float, rendezvous: Rendezvous | None) -> bool:
        if silent and rendezvous is not None and _answers(rendezvous):
            # A firewall that lost the link's connection and lets no new one through: the ranks have theirs.
            log.warning("task 0 does not answer over the link, and its rendezvous does seconds=%.0f", seconds)
            if not said:
                return False
            silent = False
        self._context.board.say_silent(silent, seconds)
        return silent


def _answers(rendezvous: Rendezvous) -> bool:
    address = (rendezvous.rendezvous_host, rendezvous.rendezvous_port)
    try:
        with socket.create_connection(address, timeout=PROBE_SECONDS):
            return True
    except OSError:
        return False
