"""Which chains of a user are in the queue and not watched yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.model import QueueReading
from nvrx_watch.model import Subject


class Known(Protocol):
    """Anything that is about a chain."""

    @property
    def subject(self) -> Subject: ...


def find_mine(reading: QueueReading, user: str, known: Mapping[str, Known]) -> list[tuple[str, int]]:
    """(chain id, array job id) of each chain of nvrx-chain with a job that Slurm has not ended; by chain id.

    The array job is the newest of the chain: its run directory holds that chain, if it holds any of them. `known` are
    the chains watched already, by any key.
    """
    watched = {one.subject.chain_id for one in known.values()}
    newest: dict[str, int] = {}
    for task in reading.tasks:
        stamp = parse_comment(task.comment)
        if stamp is None or task.user != user or task.state.is_terminal or stamp[0] in watched:
            continue
        newest[stamp[0]] = max(task.array_job_id, newest.get(stamp[0], 0))
    return sorted(newest.items())
