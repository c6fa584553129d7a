"""Drained nodes: which array tasks lie on one, which of these a spare can replace, and which marker is believed. Pure.

A drain is a wish for the node, no fault: training is not disturbed for it unless the chain was told to. Whatever is in
doubt fails open: the task takes part.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.clock import format_time
from nvrx_chain.records.control import Drained, DrainedNode, Rendezvous
from nvrx_chain.slurm.model import Node

STALE_POLLS = 10
"""An answer older than so many polls is believed no more: what was drained then may long be back in service."""


SHORTEST_BELIEF_SECONDS = 120.0
"""However often Slurm is asked: a marker is not renewed any more while the ranks of its task end."""


def stale_after_seconds(poll_seconds: float) -> float:
    """The age from which on an answer is not believed any more."""
    return max(STALE_POLLS * poll_seconds, SHORTEST_BELIEF_SECONDS)


def find_drained(tasks: Mapping[int, Sequence[str]], nodes: Mapping[str, Node]) -> dict[int, tuple[DrainedNode, ...]]:
    """The tasks with a drained node, and these nodes. A task is its nodes: one that goes takes the task with it.

    A node that Slurm did not show is none: it is not known to be drained.
    """
    found = {
        task: tuple(_describe(nodes[name]) for name in names if name in nodes and nodes[name].state.is_drained)
        for task, names in tasks.items()
    }
    return {task: drained for task, drained in found.items() if drained}


def _describe(node: Node) -> DrainedNode:
    return DrainedNode(
        node=node.name,
        state=node.raw_state,
        reason=node.reason,
        by=node.reason_by,
        since=None if node.reason_at is None else format_time(node.reason_at),
    )


def choose_excluded(live: Collection[int], drained: Collection[int], train_tasks: int) -> frozenset[int]:
    """The drained tasks that may go: never so many that fewer than `train_tasks` live ones are left.

    Task 0 stays, for the rendezvous goes with it. The highest first: they are the spares more often than not, and a
    drained spare that trained in the place of another drained task would have gained nothing.
    """
    spare = max(0, len(set(live)) - train_tasks)
    candidates = sorted({task for task in drained if task in live and task != 0}, reverse=True)
    return frozenset(candidates[:spare])


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
