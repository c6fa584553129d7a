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
_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)-(\d+)", re.ASCII)
# A list can come from a file that somebody else wrote: `n[1-999999999]` must not eat the memory of a watcher.
_MOST_NODES = 100_000


def expand_nodelist(text: str) -> tuple[str, ...]:
    """The names in a node list, each once, sorted by name and number; () where Slurm printed that it has none.

    Raises ValueError for text that is no node list (one that was cut short, say) or that holds over 100,000.
    """
    stripped = text.strip()
    if stripped in _NONE:
        return ()
    if _WRITTEN.fullmatch(stripped) is None:
        raise ValueError(f"read the node list {text!r}: not a list of node names")
    if sum(_size(name) for name in _NAME.findall(stripped)) > _MOST_NODES:
        raise ValueError(f"read the node list {text[:80]!r}: more than {_MOST_NODES} nodes")
    library = _library()
    try:
        return tuple(library.NodeSet(stripped, resolver=library.RESOLVER_NOGROUP))
    except library.NodeSetException as error:
        raise ValueError(f"read the node list {text!r}: {error}") from error


def fold_nodelist(names: Iterable[str]) -> str:
    """One node list for these names, as short as Slurm writes it; empty for no names.

    Raises ValueError for a name that is no node name.
    """
    listed = list(names)
    for name in listed:
        if _PLAIN.fullmatch(name) is None:
            raise ValueError(f"fold node names: {name!r} is no node name")
    library = _library()
    return str(library.NodeSet.fromlist(listed, resolver=library.RESOLVER_NOGROUP))


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
