"""Node lists as Slurm prints and takes them (`n[01-03,7]`), through ClusterShell. Pure.

ClusterShell is imported at the first use: it costs more start-up time than a command line may take.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

# What Slurm prints where there is no node.
_NONE = frozenset({"", "(null)", "None assigned", "N/A", "n/a", "None"})
# ClusterShell also knows groups, wildcards and set operators; none of them is a node list of Slurm's.
_BRACKETED = r"\[\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*\]"
_WRITTEN = re.compile(rf"(?:[\w.-]|{_BRACKETED})+(?:,(?:[\w.-]|{_BRACKETED})+)*", re.ASCII)
_NAME = re.compile(rf"(?:[\w.-]|{_BRACKETED})+", re.ASCII)
_PLAIN = re.compile(r"\w[\w.-]*", re.ASCII)
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)-(\d+)", re.ASCII)
# A list can come from a file that somebody else wrote: `n[1-999999999]` must not eat the memory of a watcher.
_MOST_NODES = 100_000


def expand_nodes(text: str) -> tuple[str, ...]:
    """The names in a node list, each once, in the order written (of a job: the batch host is the first).

    () where Slurm printed that there is none. Raises ValueError for text that is no node list (one that was cut
    short, say) or that holds over 100,000 names.
    """
    stripped = text.strip()
    if stripped in _NONE:
        return ()
    if _PLAIN.fullmatch(stripped) is not None:
        # The usual case of one node needs no library.
        return (stripped,)
    if _WRITTEN.fullmatch(stripped) is None:
        raise ValueError(f"read the node list {text[:80]!r}: not a list of node names")
    parts = _NAME.findall(stripped)
    if sum(_size(part) for part in parts) > _MOST_NODES:
        raise ValueError(f"read the node list {text[:80]!r}: more than {_MOST_NODES} nodes")
    library = _library()
    try:
        sets = [library.NodeSet(part, resolver=library.RESOLVER_NOGROUP) for part in parts]
    except library.NodeSetException as error:
        raise ValueError(f"read the node list {text[:80]!r}: {error}") from error
    return tuple(dict.fromkeys(str(name) for nodes in sets for name in nodes))


def fold_nodes(names: Iterable[str]) -> str:
    """One node list for these names, as short as Slurm writes it; empty for no names.

    Raises ValueError for a name that is no node name.
    """
    listed = list(names)
    for name in listed:
        if _PLAIN.fullmatch(name) is None:
            raise ValueError(f"fold node names: {name[:80]!r} is no node name")
    if not listed:
        return ""
    library = _library()
    return str(library.NodeSet.fromlist(listed, resolver=library.RESOLVER_NOGROUP))


def is_node_name(name: str) -> bool:
    """Whether a name can stand in a node list by itself."""
    return _PLAIN.fullmatch(name) is not None


def _size(name: str) -> int:
    """No fewer names than this one can stand for: the product of what its brackets hold."""
    size = 1
    for held in _BRACKET.findall(name):
        widths = [int(last) - int(first) + 1 for first, last in _RANGE.findall(held)]
        size *= max(1, sum(width for width in widths if width > 0) + held.count(","))
    return size


@functools.cache
def _library() -> Any:
    from ClusterShell import NodeSet as library

    return library
