"""Two tasks and two generations never share a container; without an image srun is told nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.launchers.container import container_name, container_options
from nvrx_chain.records.manifest import Container

CONTAINER = Container(image="nvcr.io#nvidia/pytorch:25.01-py3", mounts=("/a b:/a b", "/data:/d:ro"))


def options(job: int, task: int, container: Container | None = CONTAINER) -> tuple[str, ...]:
    return container_options(container, array_job_id=job, array_task_id=task, work_directory="/a b/run")


def test_two_tasks_and_two_generations_have_four_names() -> None:
    names = [word for job in (77, 78) for task in (0, 1) for word in options(job, task) if "-name=" in word]
    assert names == [f"--container-name=nvrx-{job}-{task}" for job in (77, 78) for task in (0, 1)]


@given(st.sets(st.tuples(st.integers(1, 2**31), st.integers(0, 4_000_000))))
def test_no_two_tasks_ever_share_a_name(tasks: set[tuple[int, int]]) -> None:
    assert len({container_name(*task) for task in tasks}) == len(tasks)


def test_all_that_pyxis_is_told_is_one_word_each() -> None:
    assert options(77, 1) == (
        "--container-image=nvcr.io#nvidia/pytorch:25.01-py3",
        "--container-name=nvrx-77-1",
        "--container-mounts=/a b:/a b,/data:/d:ro",
        "--container-workdir=/a b/run",
    )


def test_without_an_image_srun_is_told_nothing() -> None:
    assert options(77, 1, None) == ()
