"""The NVLink domain of this node for segment mode: the ClusterUUID of its GPUs. Touches: NVML through `GpuLibrary`,
and one file in tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nvrx_chain.errors import NvrxError, UsageError
from nvrx_chain.launcher.gpu_facts import GpuLibrary

VARIABLE = "NVRX_CHAIN_NVLINK_DOMAIN"
FILE_VARIABLE = "NVRX_CHAIN_NVLINK_DOMAIN_FILE"
DOMAIN_SECONDS = 60.0
"""The first question to NVML of a launcher: without persistence mode the driver starts every device first."""

_HINT = (
    "segment mode needs GPUs in an NVLink domain (nvidia-smi -q shows their ClusterUUID); "
    f"leave out --segment, or name the domain in {VARIABLE}"
)


def parse_segment(text: str | int | None) -> int | None:
    """Nodes of a segment; None, for unset or empty, is simple mode. Raises UsageError."""
    if text is None or (isinstance(text, str) and not text.strip()):
        return None
    try:
        nodes = int(text)
    except ValueError:
        nodes = 0
    if nodes < 1:
        raise UsageError(
            "reading --segment", part=repr(text), hint="it is the number of nodes of a segment, 1 or more, or empty"
        )
    return nodes


def read_domain(
    segment: int | None, node: str, environ: Mapping[str, str], gpus: GpuLibrary | None, seconds: float = DOMAIN_SECONDS
) -> str | None:
    """The domain of `node`, None in simple mode. `gpus` is None on a machine without any. Raises NvrxError."""
    if segment is None:
        return None
    named = environ.get(VARIABLE, "").strip()
    if named:
        return named
    path = environ.get(FILE_VARIABLE, "").strip()
    if path:
        return _read_file(Path(path), node)
    if gpus is None:
        raise NvrxError("finding the NVLink domain", part=f"{node} has no NVIDIA GPU", hint=_HINT)
    return _ask_gpus(gpus, node, seconds)


def _ask_gpus(gpus: GpuLibrary, node: str, seconds: float) -> str:
    try:
        found = gpus.domains(seconds)
    except NvrxError as error:
        raise NvrxError("finding the NVLink domain", part=f"NVML on {node}: {error}", hint=_HINT) from error
    missing = next((device for device in found if device.cluster_uuid is None), None)
    if missing is not None:
        raise NvrxError(
            "finding the NVLink domain",
            part=f"{missing.name} on {node} has no ClusterUUID: {missing.reason}",
            hint=_HINT,
        )
    domains = sorted({device.cluster_uuid for device in found if device.cluster_uuid is not None})
    if len(domains) != 1:
        part = f"the GPUs of {node} are in {', '.join(domains)}" if domains else f"no GPU of {node} is ours"
        raise NvrxError("finding the NVLink domain", part=part, hint=_HINT)
    return domains[0]


def _read_file(path: Path, node: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"reading {FILE_VARIABLE}", part=str(path), hint=str(error)) from error
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[0] == node:
            return words[1]
    raise UsageError(f"reading {FILE_VARIABLE}", part=str(path), hint=f"it has no line `{node} DOMAIN`")
