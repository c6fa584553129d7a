"""sinfo: nodes with their states, and the gpus of a partition's nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.slurm.model import Node
from nvrx_chain.slurm.nodelist import fold_nodes
from nvrx_chain.slurm.parse.rows import split_rows
from nvrx_chain.slurm.parse.values import parse_number, parse_slurm_time, parse_text
from nvrx_chain.slurm.states import parse_node_state

NODE_COLUMNS = (("name", "%N"), ("state", "%T"), ("reason_by", "%u"), ("reason_at", "%H"), ("reason", "%E"))
_NODE_NAMES = tuple(name for name, _code in NODE_COLUMNS)
_GRES_COLUMNS = (("partition", "%R"), ("gres", "%G"))
_ITEM = re.compile(r"(?:[^,(]|\([^)]*\))+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedNodes:
    """Nodes by name, and the lines that are none."""

    nodes: Mapping[str, Node]
    junk: tuple[str, ...]


def node_arguments(separator: str, names: Sequence[str]) -> tuple[str, ...]:
    """Arguments for the named nodes, one a line, hidden partitions too. Raises ValueError for a bad name."""
    wanted = separator.join(code for _name, code in NODE_COLUMNS)
    arguments = ("--noheader", "--all", "--Node", f"--format={wanted}")
    return (*arguments, f"--nodes={fold_nodes(names)}") if names else arguments


def parse_nodes(text: str, separator: str, columns: Sequence[str] = _NODE_NAMES) -> ParsedNodes:
    """Nodes by name; sinfo prints a node once for each of its partitions, with one and the same state.

    A node that is DOWN and drained is printed as `drained` (`drained*` when it is silent too).
    """
    rows = split_rows(text, columns, separator)
    nodes: dict[str, Node] = {}
    for record in rows.records:
        state, responding = parse_node_state(record["state"])
        reason = parse_text(record.get("reason", ""))
        by = parse_text(record.get("reason_by", ""))
        nodes[record["name"]] = Node(
            name=record["name"],
            state=state,
            raw_state=record["state"],
            responding=responding,
            reason="" if reason == "none" else reason,
            # Where nobody set a reason, sinfo prints the user as "Unknown", like the time.
            reason_by="" if by == "Unknown" else by,
            reason_at=parse_slurm_time(record.get("reason_at", "")),
        )
    return ParsedNodes(nodes=nodes, junk=rows.junk)


def gres_arguments(separator: str) -> tuple[str, ...]:
    """Arguments for the generic resources of every partition's nodes."""
    return ("--noheader", "--all", "--format=" + separator.join(code for _name, code in _GRES_COLUMNS))


def parse_gpus(text: str, separator: str) -> dict[str, int]:
    """The gpus that every node of a partition has, by partition: the fewest where its nodes differ."""
    rows = split_rows(text, tuple(name for name, _code in _GRES_COLUMNS), separator)
    fewest: dict[str, int] = {}
    for record in rows.records:
        count = count_gpus(record["gres"])
        fewest[record["partition"]] = min(count, fewest.get(record["partition"], count))
    return fewest


def count_gpus(gres: str) -> int:
    """The gpus in a list of generic resources such as `gpu:h100:8(S:0-1),nvme:1`."""
    total = 0
    for item in _ITEM.findall(gres):
        kind, *rest = item.partition("(")[0].split(":")
        if kind == "gpu":
            count = parse_number(rest[-1]) if rest else None
            total += 1 if count is None else count
    return total
