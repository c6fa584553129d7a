"""Chains of the queue that are not watched yet: tried with a deadline, again with growing pauses, and counted.

A chain that cannot be resolved is not watched, and a watcher that says nothing of it would call a run healthy that
nobody looks at. Touches: threads; what resolving touches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.errors import IdentityError, NvrxError
from nvrx_watch.hang_guard import HangGuard
from nvrx_watch.resolve.all_mine import Mine
from nvrx_watch.resolve.watched import Watched

log = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 1800.0
"""Resolving costs questions to Slurm and a look at a directory: what failed is not tried in each pass."""

RESOLVE_SECONDS = 60.0
"""For all new chains of a pass together, each one half of what is left: a run directory may lie on a dead mount, and
the first one must not leave the others without a look in each run of cron."""

_SHORTEST_TRY_SECONDS = 0.02

MOST_HANGING = 8
"""So many tries may hang at once; while they do, no other is started."""


class _Trouble(msgspec.Struct):
    """A chain that could not be resolved: why, how often it was tried, and when it is tried again."""

    why: str
    guard: HangGuard
    tries: int = 0
    again_at: float = 0.0


class Discovery:
    """Turns chains of the queue into watched ones. `resolve` finds the chain of a job, and raises NvrxError."""

    def __init__(
        self, resolve: Callable[[int], Watched], clock: Clock, *, deadline_seconds: float = RESOLVE_SECONDS
    ) -> None:
        self._resolve = resolve
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._troubles: dict[str, _Trouble] = {}
        self._left: set[str] = set()

    @property
    def unwatched(self) -> Mapping[str, str]:
        """Why a chain of the queue is not watched, by chain id."""
        return {chain: trouble.why for chain, trouble in self._troubles.items()}

    def leave(self, chain_id: str) -> None:
        """Nothing more is to be said of this chain unless a live job of it is seen."""
        self._left.add(chain_id)

    def find(self, found: Sequence[Mine]) -> list[Watched]:
        """The chains that can be watched from now on, of all that the queue shows and nobody watches.

        To be called with what was observed only: a chain that is not in `found` is forgotten.
        """
        shown = {mine.chain_id for mine in found}
        # Ended jobs stay in the queue for minutes: a chain that was let go must not come back by them.
        self._left &= shown
        self._troubles = {chain: trouble for chain, trouble in self._troubles.items() if chain in shown}
        until = self._clock.monotonic() + self._deadline_seconds
        wanted = [mine for mine in found if mine.is_live or mine.chain_id not in self._left]
        watched = (self._try(mine, until) for mine in wanted)
        return [one for one in watched if one is not None]

    def _try(self, mine: Mine, until: float) -> Watched | None:
        trouble = self._troubles.get(mine.chain_id)
        if trouble is None:
            guard = HangGuard(f"finding the chain of job {mine.array_job_id}")
            trouble = self._troubles[mine.chain_id] = _Trouble(why="not looked for yet", guard=guard)
        now = self._clock.monotonic()
        if now < trouble.again_at:
            return None
        seconds = (until - now) / 2
        if (
            seconds < _SHORTEST_TRY_SECONDS
            or sum(one.guard.is_hanging() for one in self._troubles.values()) >= MOST_HANGING
        ):
            log.warning("a chain of the queue is not looked for, others took all the time chain_id=%s", mine.chain_id)
            return None
        try:
            watched = trouble.guard.run(lambda: self._resolve(mine.array_job_id), seconds)
        except NvrxError as error:
            self._note(mine, trouble, error)
            return None
        del self._troubles[mine.chain_id]
        self._left.discard(mine.chain_id)
        return watched

    def _note(self, mine: Mine, trouble: _Trouble, error: NvrxError) -> None:
        if isinstance(error, IdentityError) and not mine.is_live:
            # The directory of an ended chain holds a newer one: nothing is left of it to be looked at.
            log.info("an ended chain is not watched chain_id=%s why=%s", mine.chain_id, error)
            del self._troubles[mine.chain_id]
            self._left.add(mine.chain_id)
            return
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(trouble.tries, 16))
        trouble.tries += 1
        trouble.why = str(error)
        trouble.again_at = self._clock.monotonic() + wait
        log.warning(
            "a chain of the queue cannot be watched, no heartbeat is sent chain_id=%s job=%s again_in_seconds=%.0f"
            " error=%s",
            mine.chain_id,
            mine.array_job_id,
            wait,
            error,
        )
