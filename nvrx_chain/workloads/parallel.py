"""How ranks, parallelism and batch fit together, as Megatron-LM computes it. Pure.

The world is that of the training tasks: hot spares join the rendezvous and never enlarge it.
"""

from __future__ import annotations

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import Shape


def data_parallel_size(shape: Shape, *, tensor: int, pipeline: int, context: int) -> int:
    """Replicas of the model. Raises UsageError when the world does not divide into them."""
    model = tensor * pipeline * context
    if shape.world_size % model:
        raise UsageError(
            f"fitting the model into the training tasks: {_world(shape)} do not divide by {model} ranks of a replica"
            f" (tensor {tensor} x pipeline {pipeline} x context {context})",
            hint=_nearest("world sizes that do", shape.world_size, model),
        )
    return shape.world_size // model


def check_batch(shape: Shape, replicas: int, *, micro_batch: int, global_batch: int) -> None:
    """Raise UsageError, with the nearest batches that fit, when the replicas cannot share the global batch."""
    unit = micro_batch * replicas
    if global_batch % unit:
        raise UsageError(
            f"fitting the batch: global batch {global_batch} does not divide by {unit}"
            f" (micro batch {micro_batch} x data parallel {replicas}, of {_world(shape)})",
            hint=_nearest("global batches that do", global_batch, unit),
        )


def _world(shape: Shape) -> str:
    return (
        f"{shape.world_size} ranks in {shape.train_tasks} training tasks x {shape.nodes_per_task} nodes"
        f" x {shape.procs_per_node} ranks"
    )


def _nearest(what: str, value: int, unit: int) -> str:
    below = value // unit * unit
    return f"nearest {what}: " + (f"{below} or {below + unit}" if below else str(unit))
