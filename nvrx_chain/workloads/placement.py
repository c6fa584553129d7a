"""Who this rank is: what the launcher and Slurm say in the environment. Pure: the environment is handed in."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_chain.errors import UsageError

_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One rank of the job. The array fields are None outside a Slurm array, `restart_count` outside torchelastic."""

    rank: int
    local_rank: int
    world_size: int
    host: str
    array_job_id: int | None
    array_task_id: int | None
    restart_count: int | None
    node: int | None = None
    """Counted through the array: task x nodes per task + node of the task."""


def read_placement(environment: Mapping[str, str]) -> Placement:
    """The rank that a launcher's variables describe; without any of them a single process, rank 0 of 1.

    The variables are those of torch's `env://`: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and LOCAL_RANK (0 when
    absent). Raises UsageError when only some are there, or when they contradict each other.
    """
    missing = [name for name in _RENDEZVOUS if name not in environment]
    if missing and len(missing) < len(_RENDEZVOUS):
        raise UsageError(
            "reading the launcher's environment: some of env:// is missing",
            part=", ".join(missing),
            hint="start it under torchrun or ft_launcher, or with none of these set as a single process",
        )
    rank = _read_count(environment, "RANK") or 0
    world_size = _read_count(environment, "WORLD_SIZE")
    world_size = 1 if world_size is None else world_size
    if rank >= world_size:
        raise UsageError(
            f"reading the launcher's environment: RANK {rank} is not below WORLD_SIZE {world_size}",
            hint="start it with a launcher that sets both, for example torchrun",
        )
    array_task_id = _read_count(environment, "SLURM_ARRAY_TASK_ID")
    return Placement(
        rank=rank,
        local_rank=_read_count(environment, "LOCAL_RANK") or 0,
        world_size=world_size,
        host=socket.gethostname(),
        array_job_id=_read_count(environment, "SLURM_ARRAY_JOB_ID"),
        array_task_id=array_task_id,
        restart_count=_read_count(environment, "TORCHELASTIC_RESTART_COUNT"),
        node=None if array_task_id is None else _node(environment, array_task_id),
    )


def _node(environment: Mapping[str, str], array_task_id: int) -> int:
    nodes = _read_count(environment, "SLURM_NNODES") or 1
    return array_task_id * nodes + (_read_count(environment, "SLURM_NODEID") or 0)


def _read_count(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"reading the launcher's environment: {name}={text!r} is not a whole number",
            hint="start it with a launcher that sets it, for example torchrun",
        )
    return int(text)
