"""Binds each rank to the NUMA node of its GPUs: the words before its command line. Touches: PATH, /sys (reads)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import UsageError

VARIABLE = "NVRX_GPUS_PER_NUMA"
_NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaBinding:
    """`strict`: memory comes from that node alone, else from wherever the rank runs."""

    gpus_per_numa: int
    strict: bool = True

    def prefix(self, local_rank: int) -> tuple[str, ...]:
        """The words before the command of a rank."""
        node = local_rank // self.gpus_per_numa
        memory = f"--membind={node}" if self.strict else "--localalloc"
        return ("numactl", f"--cpunodebind={node}", memory)


def make_numa_binding(
    gpus_per_numa: str | int | None, environ: Mapping[str, str], *, strict: bool
) -> NumaBinding | None:
    """What was asked for by the option or else by NVRX_GPUS_PER_NUMA; None for no binding. Raises UsageError."""
    asked = gpus_per_numa if gpus_per_numa is not None else environ.get(VARIABLE) or None
    if asked is None:
        return None
    try:
        count = int(asked)
    except ValueError:
        count = 0
    if count < 1:
        raise UsageError(
            "binding ranks to NUMA nodes",
            part=f"{asked!r} GPUs per NUMA node",
            hint="--gpus-per-numa and NVRX_GPUS_PER_NUMA take a whole number of at least 1",
        )
    return NumaBinding(gpus_per_numa=count, strict=strict)


def require_numa(binding: NumaBinding, procs_per_node: int, environ: Mapping[str, str], nodes: Path = _NODES) -> None:
    """Raises UsageError when the ranks of this node cannot be bound so: else each start of one would fail."""
    if shutil.which("numactl", path=environ.get("PATH")) is None:
        raise UsageError(
            "binding ranks to NUMA nodes",
            part="numactl is not in PATH",
            hint="install numactl on the nodes (in the image), or leave out --gpus-per-numa and NVRX_GPUS_PER_NUMA",
        )
    highest = (procs_per_node - 1) // binding.gpus_per_numa
    if nodes.is_dir() and not (nodes / f"node{highest}").is_dir():
        there = sum(1 for entry in nodes.glob("node[0-9]*"))
        raise UsageError(
            "binding ranks to NUMA nodes",
            part=f"{procs_per_node} ranks at {binding.gpus_per_numa} per NUMA node need node {highest}",
            hint=f"this machine has {there} NUMA nodes; raise --gpus-per-numa",
        )
