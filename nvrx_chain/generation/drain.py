"""Drained nodes: which array tasks lie on one, and which of these a spare can replace. Pure.

A drain is a wish for the node, no fault: training is not disturbed for it unless the chain was told to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from nvrx_chain.clock import format_time
from nvrx_chain.records.control import DrainedNode
from nvrx_chain.slurm.model import Node


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
