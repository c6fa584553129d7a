"""Doing something to the queue and believing only what a later reading of it shows. Touches: Slurm.

scancel and `scontrol hold` report success also when nothing happened, so every command acts, reads again, and repeats
until the reading shows it done or its time is up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.ops.chain import OpenChain, Operator, read_chain_queue
from nvrx_chain.slurm.chain_queue import ChainQueue
from nvrx_chain.slurm.client import SlurmClient

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
DEADLINE_SECONDS = 120.0
"""How long a command repeats itself; a controller that restarts is back within a minute or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What an operator's command works with, handed in. `say` shows a line of progress at once.

    `is_interactive`: a person sits there who can answer a question.
    """

    client: SlurmClient
    clock: Clock
    operator: Operator
    say: Callable[[str], None]
    is_interactive: bool


class Chore(Protocol):
    """Something that is to be true of the queue."""

    def is_done(self, queue: ChainQueue) -> bool:
        """Whether this reading shows it."""
        ...

    def act(self, queue: ChainQueue, passes: int) -> None:
        """Ask Slurm for what is missing; `passes` counts the earlier calls. Never raises for a refusal."""
        ...


def settle(chain: OpenChain, desk: Desk, chore: Chore, seconds: float) -> ChainQueue | Unobserved:
    """Act and read again until the chore is done, at most about `seconds`. The last reading, or why there is none.

    It acts once at least, and the returned reading is younger than its last act.
    """
    give_up_at = desk.clock.monotonic() + seconds
    never = threading.Event()
    passes, said = 0, ""
    while True:
        queue = read_chain_queue(chain, desk.client)
        overdue = desk.clock.monotonic() > give_up_at
        if isinstance(queue, Unobserved):
            if overdue:
                return queue
            if queue.reason != said:
                said = queue.reason
                desk.say(f"Slurm could not be read, it is asked again: {said}")
        else:
            if chore.is_done(queue) or (passes and overdue):
                return queue
            chore.act(queue, passes)
            passes += 1
        desk.clock.wait(never, POLL_SECONDS)
