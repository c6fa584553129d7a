"""Did sbatch queue the job although it gave no clear answer? Ask the queue for the stamp before anything is repeated.

Touches: Slurm (squeue). A controller that was too busy for sbatch may be too busy for squeue, so it is asked several
times; a request that was still on its way is found by a later look.
"""

from __future__ import annotations

import logging
import threading

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import QueueReading

AFTER_SBATCH_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0)
AFTER_CRASH_SECONDS = (0.0, 1.0, 2.0)
"""Pauses before each look: right after an sbatch without an answer, and for an intent that an earlier submit left."""

_log = logging.getLogger(__name__)


def stamped_array_jobs(queue: QueueReading, *, stamp: str, user: str, name: str) -> tuple[int, ...]:
    """The array jobs with exactly this stamp, name and user, oldest first; ended ones that Slurm still lists too."""
    return tuple(
        sorted(
            {
                task.array_job_id
                for task in queue.tasks
                if task.comment == stamp and task.user == user and task.name == name
            }
        )
    )


def await_stamp(
    client: SlurmClient, clock: Clock, *, stamp: str, user: str, name: str, pauses: tuple[float, ...]
) -> tuple[int, ...] | Unobserved:
    """Look for the stamp, once after each pause, until it is found; () when the last look saw the queue without it.

    `Unobserved` when the last look got no answer: then nobody knows, and nothing may be submitted again.
    """
    answer: tuple[int, ...] | Unobserved = Unobserved("the queue was not read")
    never = threading.Event()
    for seconds in pauses:
        clock.wait(never, seconds)
        queue = client.queue(user)
        if isinstance(queue, Unobserved):
            _log.warning("squeue gave no answer stamp=%s reason=%s", stamp, queue.reason)
            answer = queue
            continue
        answer = stamped_array_jobs(queue, stamp=stamp, user=user, name=name)
        if answer:
            return answer
    return answer
