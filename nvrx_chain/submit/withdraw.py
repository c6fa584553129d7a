"""Taking back array jobs that this submit has queued: by verified id, last generation first, until a re-read agrees.

Touches: Slurm (squeue, scancel).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from nvrx_chain.clock import Clock
from nvrx_chain.errors import IdentityError, SlurmError, Unobserved
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.identity import ChainIdentity, verify_array
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.slurm.states import JobState

DEADLINE_SECONDS = 60.0
_PAUSE_SECONDS = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """What came of it: `gone` is what the queue no longer shows alive; `remaining` has a reason for each other job."""

    gone: tuple[int, ...]
    remaining: Mapping[int, str]

    def describe(self) -> str:
        parts = [f"cancelled {' '.join(map(str, self.gone))}"] if self.gone else []
        parts += [f"job {job} may still be queued: {reason}" for job, reason in self.remaining.items()]
        return "; ".join(parts) or "nothing had been queued"


def withdraw(
    client: SlurmClient, clock: Clock, manifest: ChainManifest, submitted_at: Mapping[int, datetime | None]
) -> Withdrawal:
    """Cancel these array jobs of the chain, and repeat until the queue shows none of them alive or the deadline passes.

    The last generation goes first: cancelling an earlier one would start its successor.
    """
    identity = ChainIdentity(
        chain_id=manifest.chain_id, job_name=manifest.job_name, user=manifest.user, submitted_at=submitted_at
    )
    alive: dict[int, str] = dict.fromkeys(sorted(submitted_at, reverse=True), "not looked at")
    give_up_at = clock.monotonic() + DEADLINE_SECONDS
    never = threading.Event()
    while True:
        alive = _cancel_once(client, identity, tuple(alive))
        if not alive or clock.monotonic() >= give_up_at:
            break
        clock.wait(never, _PAUSE_SECONDS)
    gone = tuple(job for job in sorted(submitted_at) if job not in alive)
    return Withdrawal(gone=gone, remaining=alive)


def _cancel_once(client: SlurmClient, identity: ChainIdentity, jobs: Sequence[int]) -> dict[int, str]:
    """Cancel what is alive of these and say what was, with the reason; empty when the queue shows none alive."""
    queue = client.queue(identity.user)
    if isinstance(queue, Unobserved):
        return dict.fromkeys(jobs, queue.reason)
    alive: dict[int, str] = {}
    for job in jobs:
        try:
            reason = _cancel_job(client, queue, job, identity)
        except (IdentityError, SlurmError) as error:
            _log.warning("scancel failed job=%s error=%s", job, error)
            reason = str(error)
        if reason is not None:
            alive[job] = reason
    return alive


def _cancel_job(client: SlurmClient, queue: QueueReading, job: int, identity: ChainIdentity) -> str | None:
    """None when no task of the job is alive. A task in COMPLETING is on its way out and is not cancelled again."""
    tasks = verify_array(queue, job, identity)
    states = {task.state for task in tasks if not task.state.is_terminal and task.state is not JobState.COMPLETING}
    if not states:
        return None
    client.cancel((str(job),))
    return ", ".join(sorted(state.value for state in states))
