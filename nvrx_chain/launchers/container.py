"""The container around the launcher of a task, as options of srun for pyxis. Pure.

srun starts the container, in it run-launcher, and in that the launcher: the wrapper has to see and end the ranks as its
own descendants. run-task and every Slurm program stay outside, in the batch step.
"""

from __future__ import annotations

from nvrx_chain.records.manifest import Container


def container_name(array_job_id: int, array_task_id: int) -> str:
    """One name for each task of each generation: a container of that name that is there is taken as it was left."""
    return f"nvrx-{array_job_id}-{array_task_id}"


def container_options(
    container: Container | None, *, array_job_id: int, array_task_id: int, work_directory: str
) -> tuple[str, ...]:
    """What srun is told; () without a container."""
    if container is None:
        return ()
    return (
        f"--container-image={container.image}",
        f"--container-name={container_name(array_job_id, array_task_id)}",
        f"--container-mounts={','.join(container.mounts)}",
        f"--container-workdir={work_directory}",
    )
