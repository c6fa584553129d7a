"""The checkpoint iteration that a workload publishes, as a watcher needs it. Touches: that file."""

from __future__ import annotations

import os
from pathlib import Path

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.files import read_bytes
from nvrx_chain.records.progress import parse_iteration

_RELEASED = b"release"
"""What Megatron-LM writes beside weights that no training of this chain has saved: they have no iteration."""


def read_tracker(path: Path) -> int | Unobserved | None:
    """The newest iteration; None while this training has saved nothing, Unobserved for what is neither."""
    try:
        content = read_bytes(path, max_bytes=4096)
    except ValueError as error:
        return Unobserved(f"reading the checkpoint iteration {os.fspath(path)[:200]!r}: {error}")
    if content is None or isinstance(content, Unobserved):
        return content
    return None if content.strip() == _RELEASED else parse_iteration(content)
