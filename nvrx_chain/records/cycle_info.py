"""Cycle records in NVRx's format, as ft_launcher 0.7.0 writes them into `cycle_infos/`: one file a restart cycle.

The write counter in these files, their field `generation`, is no generation of a chain (docs/glossary.md).
Touches: the cycle_infos directory, reads only.
"""

from __future__ import annotations

import re

from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import GenerationDirectory

_CYCLE = re.compile(r"cycle_info\.(?P<job>[^./]*)\.(?P<attempt>\d{1,9})\.(?P<cycle>\d{1,9})", re.ASCII)


def parse_cycle_name(name: str) -> tuple[int, int] | None:
    """`cycle_info.<job>.<attempt>.<cycle>` -> (attempt, cycle); None for the link `.current`, `*.tmp` and the rest."""
    match = _CYCLE.fullmatch(name)
    return (int(match["attempt"]), int(match["cycle"])) if match else None


def count_cycles(directory: GenerationDirectory) -> int | None:
    """Restart cycles that the launcher has recorded so far, the first included; None when it records none."""
    names = list_names(directory.cycle_infos)
    if not isinstance(names, tuple):
        return None
    return sum(parse_cycle_name(name) is not None for name in names) or None
