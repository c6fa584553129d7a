"""The node on which a task's batch script runs: run-task lives there, and with it the rendezvous of task 0.

Touches: Slurm (one sinfo).
"""

from __future__ import annotations

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.nodelist import expand_nodes


def read_batch_node(client: SlurmClient, row: QueuedTask | Unobserved | None) -> Node | Unobserved | None:
    """The first node of a task that has not ended; None when it has none, or Slurm does not know the node."""
    if not isinstance(row, QueuedTask) or row.state.is_terminal or not row.nodelist:
        return None
    try:
        names = expand_nodes(row.nodelist)
    except ValueError as error:
        return Unobserved(str(error))
    if not names:
        return None
    nodes = client.nodes([names[0]])
    return nodes if isinstance(nodes, Unobserved) else nodes.get(names[0])
