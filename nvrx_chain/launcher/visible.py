"""Which GPUs the ranks of this node may use, by CUDA_VISIBLE_DEVICES. Pure.

NVML counts all devices of the machine; on a shared node the others are none of our business. What CUDA understands:
indices, UUIDs or a unique beginning of one (`GPU-8932f9`), MIG UUIDs, and `MIG-GPU-<uuid>/<gi>/<ci>` of drivers before
470. The list ends at the first -1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"

_NOTHING = frozenset({"", "-1", "NoDevFiles", "none", "void"})
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{36})/(\d{1,4})/(\d{1,4})", re.ASCII)
_INDEX = re.compile(r"\d{1,5}", re.ASCII)


def visible_devices(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The words of CUDA_VISIBLE_DEVICES, each once; None when it is not set: all devices are ours."""
    text = environ.get(VARIABLE)
    if text is None:
        return None
    if text.strip() in _NOTHING:
        return ()
    words = [word.strip() for word in text.split(",")]
    kept = words[: next((place for place, word in enumerate(words) if word in _NOTHING), len(words))]
    return tuple(dict.fromkeys(kept))


def parse_index(word: str) -> int | None:
    """The index of a device, None when the word is something else."""
    return int(word) if _INDEX.fullmatch(word) else None


def parse_old_mig(word: str) -> tuple[str, int, int] | None:
    """UUID of the GPU, GPU instance and compute instance; None when the word is something else."""
    match = _OLD_MIG.fullmatch(word)
    return (match[1], int(match[2]), int(match[3])) if match else None


def find_by_beginning(word: str, uuids: Sequence[str]) -> str | None:
    """The one UUID that begins so; None when none does, or several."""
    found = [uuid for uuid in uuids if uuid.lower().startswith(word.lower())]
    return found[0] if len(found) == 1 else None
