"""The checkpoint iteration that a workload publishes: one integer in a file. Touches: that file.

Megatron-style: a number, or the word `release`. Anything else is unknown, which is neither progress nor the lack of it.
"""

from __future__ import annotations

import re
from pathlib import Path

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.files import read_bytes

UNREADABLE = -1
"""How a record states an iteration that could not be read."""

_NUMBER = re.compile(rb"\s*(\d{1,15})\s*")


def parse_iteration(content: bytes) -> int | Unobserved:
    """The iteration, or why it is unknown."""
    match = _NUMBER.fullmatch(content)
    if match:
        return int(match.group(1))
    return Unobserved(f"the checkpoint iteration is not a number: {content[:40]!r}")


def read_iteration(path: Path) -> int | Unobserved | None:
    """The newest checkpointed iteration; None when there is no checkpoint yet."""
    content = read_bytes(path, max_bytes=4096)
    if content is None or isinstance(content, Unobserved):
        return content
    return parse_iteration(content)


def recorded_iteration(value: int | Unobserved | None) -> int | None:
    """As a record states it: None for no checkpoint, `UNREADABLE` for one that could not be read."""
    return UNREADABLE if isinstance(value, Unobserved) else value
