"""Which chains of a user are in the queue and not watched yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.model import QueueReading
from nvrx_watch.model import Subject


class Known(Protocol):
    """Anything that is about a chain."""

    @property
    def subject(self) -> Subject: ...


class Mine(msgspec.Struct, frozen=True, kw_only=True):
    """A chain in the queue, and a job to find it by. `is_live`: Slurm has not ended all of its jobs."""

    chain_id: str
    array_job_id: int
    is_live: bool


def find_mine(reading: QueueReading, user: str, known: Mapping[str, Known]) -> list[Mine]:
    """Each chain of nvrx-chain that the queue still shows a job of, ended ones too; by chain id.

    A chain whose last job has just ended is the one that somebody has to hear about. The array job is the newest live
    one, else the newest: its run directory holds that chain, if it holds any of them. `known` are the chains watched
    already, by any key.
    """
    watched = {one.subject.chain_id for one in known.values()}
    best: dict[str, tuple[bool, int]] = {}
    for task in reading.tasks:
        stamp = parse_comment(task.comment)
        if stamp is None or task.user != user or stamp[0] in watched:
            continue
        best[stamp[0]] = max((not task.state.is_terminal, task.array_job_id), best.get(stamp[0], (False, 0)))
    return [Mine(chain_id=chain, array_job_id=job, is_live=live) for chain, (live, job) in sorted(best.items())]
