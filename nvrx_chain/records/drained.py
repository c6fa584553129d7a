"""Drained nodes: which marker of one is believed, and how they are named in logs, records and `status`. Pure.

Whatever is in doubt fails open: the task takes part.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from nvrx_chain.records.control import Drained, DrainedNode, Rendezvous

STALE_POLLS = 10
"""An answer older than so many polls is believed no more: what was drained then may long be back in service."""


SHORTEST_BELIEF_SECONDS = 120.0
"""However often Slurm is asked: a marker is not renewed any more while the ranks of its task end."""


def stale_after_seconds(poll_seconds: float) -> float:
    """The age from which on an answer is not believed any more."""
    return max(STALE_POLLS * poll_seconds, SHORTEST_BELIEF_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads a marker: a task with its nodes, and the rendezvous that it has joined or is going to join."""

    task: int
    nodes: tuple[str, ...]
    rendezvous: Rendezvous | None


class Doubt(enum.Enum):
    """Why a marker is not believed."""

    OTHER_TASK = "it is about another task"
    OTHER_NODES = "it is about other nodes"
    OTHER_HOST = "it was not written by the task 0 that published the rendezvous"
    STALE = "it rests on too old an answer of Slurm"


def find_doubt(marker: Drained, reader: Reader, still_seconds: float) -> Doubt | None:
    """Why a marker that was read says nothing about this task; None when it does.

    `still_seconds`: for how long this reader has seen the same `poll` in it, by its own clock.
    """
    if marker.task != reader.task:
        return Doubt.OTHER_TASK
    if set(marker.task_nodes) != set(reader.nodes):
        # Of an earlier start of the task, on other nodes.
        return Doubt.OTHER_NODES
    host = reader.rendezvous
    if host is None or (marker.boot_id, marker.pid, marker.pid_started_at) != (
        host.boot_id,
        host.pid,
        host.pid_started_at,
    ):
        # A job id can be given out again, and its directory with it.
        return Doubt.OTHER_HOST
    limit = stale_after_seconds(marker.poll_seconds)
    # Written this way round, so that a NaN counts as too old.
    if not (marker.answer_age_seconds <= limit and still_seconds <= limit):
        return Doubt.STALE
    return None


def name_drained(nodes: Sequence[DrainedNode]) -> str:
    """The nodes with Slurm's reason, in words: `n2 (draining since 2026-08-03T01:02:03Z, "bad disk" by root)`."""
    return ", ".join(_name(node) for node in nodes)


def _name(node: DrainedNode) -> str:
    since = f" since {node.since}" if node.since else ""
    by = f" by {node.by}" if node.by else ""
    why = f'"{node.reason}"{by}' if node.reason else f"no reason{by}"
    return f"{node.node} ({node.state}{since}, {why})"
