"""The contract of every SlurmClient, held by the client that runs Slurm's programs, on a real cluster."""

from __future__ import annotations

import os
import pwd
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.command_client import CommandLineClient
from nvrx_chain.slurm.states import JobState
from tests.unit.slurm.client_contract import Bench, SlurmClientContract

pytestmark = pytest.mark.integration

_SCRIPT = """\
#!/bin/bash
while :; do sleep 0.2; done
"""


_PATIENCE_SECONDS = 90.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again, as long as a busy machine may need. Fails the test when it does not come true."""
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if clock.monotonic() > deadline:
            pytest.fail(f"the condition did not come true in {_PATIENCE_SECONDS:.0f} s")
        clock.wait(never, 0.2)


class RealCluster(Protocol):
    """What is asked of the fixture `real_cluster`: a running cluster of three nodes or more."""

    environ: dict[str, str]


@pytest.fixture
def bench(real_cluster: RealCluster, tmp_path: Path) -> Iterator[Bench]:
    # Slurm's own output must not change with what a site or a login shell exports.
    hostile = {"SQUEUE_STATES": "COMPLETED", "SCANCEL_STATE": "PENDING", "SLURM_TIME_FORMAT": "%s", "TZ": "Asia/Tokyo"}
    client = CommandLineClient(clock=SystemClock(), environ={**os.environ, **real_cluster.environ, **hostile})
    work_dir = tmp_path / "work dir & #1 100%"
    work_dir.mkdir()
    script = work_dir / "run 'til cancelled.sbatch"
    script.write_text(_SCRIPT)
    bench = Bench(
        client=client,
        user=pwd.getpwuid(os.geteuid()).pw_name,
        name=f"contract-{uuid.uuid4().hex[:8]}",
        script=str(script),
        work_dir=str(work_dir),
        wait_until=wait_until,
    )
    yield bench
    _cancel_everything(bench)


def _cancel_everything(bench: Bench) -> None:
    def are_ended() -> bool:
        reading = bench.client.queue(bench.user)
        assert not isinstance(reading, Unobserved), reading.reason
        return all(task.state.is_terminal for task in reading.tasks if task.name == bench.name)

    reading = bench.client.queue(bench.user)
    assert not isinstance(reading, Unobserved), reading.reason
    ours = {str(task.array_job_id) for task in reading.tasks if task.name == bench.name}
    bench.client.cancel(sorted(ours))
    wait_until(are_ended)


class TestCommandLineClient(SlurmClientContract):
    def test_names_with_separators_and_newlines_stay_whole(self, bench: Bench) -> None:
        name = f"{bench.name}|a b\x1f,%j\n1|1|0|RUNNING"
        job = bench.submit(f"--job-name={name}", array=None)
        bench.wait_for(job, JobState.RUNNING, [0])
        (task,) = bench.tasks(job)
        bench.client.cancel([task.spec])
        assert task.name == name
        details = bench.client.show_job(job)
        assert details is not None
        assert not isinstance(details, Unobserved)
        assert details[0].name == name

    def test_a_name_that_fakes_an_owner_does_not_get_one(self, bench: Bench) -> None:
        fake = f"{bench.name} UserId=nobody(65534) GroupId=nogroup(65534) MCS_label=N/A Priority=1"
        job = bench.submit(f"--job-name={fake}", array=None)
        details = bench.client.show_job(job)
        bench.client.cancel([str(job)])
        assert isinstance(details, Unobserved)
        assert [task.user for task in bench.tasks(job)] == [bench.user]

    def test_the_job_gets_the_time_zone_of_its_user(self, bench: Bench, tmp_path: Path) -> None:
        script = tmp_path / "environment.sbatch"
        script.write_text('#!/bin/bash\nenv > "$1.part"\nmv "$1.part" "$1"\n')
        written = tmp_path / "environment"
        bench.client.submit(
            ["--parsable", f"--job-name={bench.name}", "--export=ALL", "--output=/dev/null", str(script), str(written)]
        )
        wait_until(written.exists)
        seen = written.read_text().splitlines()
        assert "TZ=Asia/Tokyo" in seen
        assert not [line for line in seen if line.startswith(("SLURM_BITSTR_LEN", "SLURM_TIME_FORMAT", "SQUEUE_"))]
