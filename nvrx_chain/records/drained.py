"""Drained nodes in words, for logs, records and `status`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nvrx_chain.records.control import DrainedNode


def name_drained(nodes: Sequence[DrainedNode]) -> str:
    """The nodes with Slurm's reason, in words: `n2 (draining since 2026-08-03T01:02:03Z, "bad disk" by root)`."""
    return ", ".join(_name(node) for node in nodes)


def _name(node: DrainedNode) -> str:
    since = f" since {node.since}" if node.since else ""
    by = f" by {node.by}" if node.by else ""
    why = f'"{node.reason}"{by}' if node.reason else f"no reason{by}"
    return f"{node.node} ({node.state}{since}, {why})"
