"""The environment of a rank, as torchrun and ft_launcher give it (torch.distributed.elastic; NVRx 0.7.0). Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.launcher.events import Hosted

SECRET = "NVRX_CHAIN_LAUNCH_SECRET"
"""What proves a launcher to the others of its job. Never given to a rank."""
MARK = "NVRX_CHAIN_AGENT"
"""In the environment of every process below a rank: whose it is when its parent is gone."""
STARTED_AT = "NVRX_CHAIN_RANK_STARTED_AT"
"""When the rank was started or made of a parked worker, in seconds since the epoch: its process may be older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The numbers that stay for a whole job."""

    run_id: str
    role: str
    nodes: int
    procs_per_node: int
    max_restarts: int
    uses_agent_store: bool = True
    cycle_record: Callable[[int], Path] | None = None
    """Path of the record of a cycle; None without records."""

    @property
    def size(self) -> int:
        return self.nodes * self.procs_per_node


def node_environment(launcher: Mapping[str, str], world: World, agent_id: str, local_rank: int) -> dict[str, str]:
    """What is known before a round: the whole environment of a parked worker."""
    found = {name: value for name, value in launcher.items() if name != SECRET}
    found.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if world.procs_per_node > 1:
        found.setdefault("OMP_NUM_THREADS", "1")
    found |= {
        MARK: agent_id,
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(world.procs_per_node),
        "WORLD_SIZE": str(world.size),
        "GROUP_WORLD_SIZE": str(world.nodes),
        "ROLE_NAME": world.role,
        "ROLE_WORLD_SIZE": str(world.size),
        "TORCHELASTIC_MAX_RESTARTS": str(world.max_restarts),
        "TORCHELASTIC_RUN_ID": world.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(world.uses_agent_store),
    }
    return found


def round_environment(world: World, hosted: Hosted, group_rank: int, local_rank: int) -> dict[str, str]:
    """What a round adds to it."""
    rank = group_rank * world.procs_per_node + local_rank
    found = {
        "RANK": str(rank),
        "GROUP_RANK": str(group_rank),
        "ROLE_RANK": str(rank),
        "MASTER_ADDR": hosted.address,
        "MASTER_PORT": str(hosted.port),
        "TORCHELASTIC_RESTART_COUNT": str(hosted.round),
    }
    if world.cycle_record is not None:
        # Not the link, which moves on to the next cycle below a rank that still runs.
        found["NVRX_CURRENT_CYCLE_INFO"] = str(world.cycle_record(hosted.round))
    return found


def interpreter(environ: Mapping[str, str]) -> str:
    """The Python of the ranks: PYTHON_EXEC as torchrun has it, else our own."""
    return environ.get("PYTHON_EXEC") or sys.executable
