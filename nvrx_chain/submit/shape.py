"""The sizes of one generation, as settings ask for them and as sbatch reads them. Pure."""

from __future__ import annotations

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import Shape
from nvrx_chain.submit.settings import Settings


def build_shape(settings: Settings) -> Shape:
    """The shape that was asked for. Raises UsageError without --train-tasks: there is no sensible default for it."""
    train_tasks = settings.optional_count("train-tasks")
    if train_tasks is None:
        raise UsageError(
            "reading the shape: the number of training tasks is not set",
            hint="give --train-tasks N, NVRX_TRAIN_TASKS=N, or train-tasks = N in nvrx-chain.toml",
        )
    gpus = settings.count("gpus-per-node")
    return Shape(
        train_tasks=train_tasks,
        hot_spares=settings.count("hot-spares"),
        cold_spares=settings.count("cold-spares"),
        nodes_per_task=settings.count("nodes-per-task"),
        gpus_per_node=gpus,
        procs_per_node=settings.optional_count("procs-per-node") or gpus or 1,
        segment=settings.optional_count("segment"),
    )


def array_argument(shape: Shape) -> str:
    """The value of --array: the elements, and how many of them may run at once."""
    return f"0-{shape.total - 1}%{shape.throttle}"


def describe_shape(shape: Shape) -> str:
    """The shape in words, for people."""
    tasks = f"{shape.train_tasks} training + {shape.hot_spares} hot + {shape.cold_spares} cold"
    return f"{shape.total} array tasks ({tasks}; at most {shape.throttle} at once)"
