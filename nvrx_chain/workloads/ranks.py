"""The ranks of a job as one thing to sum over: gloo or NCCL, or nothing for a single process. Imports torch.

Touches: the rendezvous that the launcher put into the environment (`env://`) and the network between the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as distributed

from nvrx_chain.errors import UsageError
from nvrx_chain.workloads.options import DeviceChoice
from nvrx_chain.workloads.placement import Placement


class Ranks:
    """What the ranks do together. All ranks call the same methods in the same order, or wait for each other."""

    def __init__(self, placement: Placement, device: torch.device) -> None:
        self._world_size = placement.world_size
        self.device = device

    def average(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by its mean over the ranks, added up in an order that depends on their number alone."""
        if self._world_size > 1:
            distributed.all_reduce(tensor)
            tensor.div_(self._world_size)

    def copy_from_first(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by that of rank 0."""
        if self._world_size > 1:
            distributed.broadcast(tensor, src=0)

    def tell_from_first(self, number: int) -> int:
        """The number that rank 0 gave."""
        told = torch.tensor([number], dtype=torch.int64, device=self.device)
        self.copy_from_first(told)
        return int(told.item())

    def collect(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The CPU tensors of all ranks, in rank order; they have the same shape."""
        if self._world_size == 1:
            return [tensor]
        mine = tensor.to(self.device)
        collected = [torch.empty_like(mine) for _ in range(self._world_size)]
        distributed.all_gather(collected, mine)
        return [each.cpu() for each in collected]

    def meet(self) -> None:
        """Come back when every rank has come here."""
        self.average(torch.zeros(1, device=self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def joined_ranks(placement: Placement, choice: DeviceChoice, timeout_seconds: float) -> Iterator[Ranks]:
    """Join the job, and leave it tidily at the end. Raises UsageError when there is no device for this rank.

    After an error the group is left as it is: taking it down would wait for ranks that wait for this one.
    """
    device = _choose_device(placement, choice)
    if placement.world_size == 1:
        yield Ranks(placement, device)
        return
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method="env://",
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device if device.type == "cuda" else None,
    )
    yield Ranks(placement, device)
    distributed.destroy_process_group()


def _choose_device(placement: Placement, choice: DeviceChoice) -> torch.device:
    found = torch.cuda.device_count() if choice is not DeviceChoice.CPU else 0
    if choice is DeviceChoice.CPU or (choice is DeviceChoice.AUTO and found == 0):
        return torch.device("cpu")
    if placement.local_rank >= found:
        raise UsageError(
            f"choosing a device: local rank {placement.local_rank} needs its own GPU and torch sees {found}",
            part="--device",
            hint="start at most one rank per GPU, or use --device cpu",
        )
    device = torch.device("cuda", placement.local_rank)
    torch.cuda.set_device(device)
    return device
