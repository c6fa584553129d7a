"""A submit answers soon, however large the chain: whoever waits for it types the next command."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.case_tools import submit_argv
from tests.integration.cluster import Cluster
from tests.integration.harness import NASTY_NAME, TORCHRUN, Shape
from tests.integration.measure import Figures

DEPTH = 8
LARGE = Shape(train=4, hot=1, cold=60)
TRIES = 5


def processor_seconds() -> float:
    """What children of this process have used: the command and all that it started."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture
def run_dirs(tmp_path: Path, cluster: Cluster) -> Iterator[list[Path]]:
    """Run directories; whatever is queued is cancelled at the end."""
    yield [tmp_path / str(number) / NASTY_NAME for number in range(TRIES)]
    cluster.cancel(*{row.job for row in cluster.live_rows()})


def test_eight_generations_of_sixty_five_tasks_are_queued_within_three_seconds(
    cluster: Cluster, figures: Figures, run_dirs: list[Path]
) -> None:
    seconds, cpu = [], []
    # A generation that starts would take two cores away from the submit that is timed.
    with cluster.occupied(tuple(cluster.node_states())):
        for run_dir in run_dirs:
            run_dir.parent.mkdir(parents=True)
            script = run_dir.parent / "train.py"
            script.write_text("import time\ntime.sleep(600)\n")
            argv = [*submit_argv(run_dir, TORCHRUN, LARGE, DEPTH), "--export=ALL,HF_TOKEN", "--", str(script)]
            used, began = processor_seconds(), time.monotonic()
            done = cluster.run(argv, environ={"HF_TOKEN": "hunter2"})
            seconds.append(time.monotonic() - began)
            cpu.append(processor_seconds() - used)
            jobs = set(json.loads(done.stdout)["array_job_ids"])
            rows = [row for row in cluster.live_rows() if row.job in jobs]
            assert (len(jobs), len(rows)) == (DEPTH, DEPTH * LARGE.total)
            cluster.cancel(*jobs)
    # Other work on the machine only ever adds to a run.
    detail = f"{DEPTH} generations of {LARGE.total} tasks, best of {TRIES}, {min(cpu):.2f} s of CPU"
    figure = figures.add("submit", TORCHRUN.name, min(seconds), detail)
    assert figure.is_within, seconds
