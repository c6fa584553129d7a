"""Which generation is the current one."""

from __future__ import annotations

import pytest

from tests.unit.watch.build import ago, generation, generations, queue, queued_rows, row, running_rows, snapshot


def test_the_current_generation_is_the_newest_that_has_begun() -> None:
    current = snapshot().current()
    assert current is not None
    assert current.array_job_id == 11


@pytest.mark.parametrize("started_at", [None, ago(60)])
def test_a_generation_that_was_cancelled_while_it_waited_has_not_begun(started_at: object) -> None:
    """Slurm shows the time of the cancel as start and end of a task that never ran."""
    gone = tuple(row(13, task, "CANCELLED", nodelist="", started_at=started_at) for task in range(5))
    seen = snapshot(queue=queue(*running_rows(11), *queued_rows(12), *gone))
    current = seen.current()
    assert current is not None
    assert current.array_job_id == 11


def test_a_generation_whose_tasks_ended_on_a_node_has_begun() -> None:
    rows = tuple(row(11, task, "FAILED", nodelist="n1") for task in range(3))
    seen = snapshot(generations=generations(g11=generation(11)), queue=queue(*rows, *queued_rows(12)))
    current = seen.current()
    assert current is not None
    assert current.array_job_id == 11
