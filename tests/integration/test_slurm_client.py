"""The contract of every SlurmClient, held by the client that runs Slurm's programs, on a real cluster.

The PySlurm client holds it, too, with a stand-in for PySlurm that asks scontrol.
"""

from __future__ import annotations

import os
import pwd
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.command_client import CommandLineClient
from nvrx_chain.slurm.model import AccountedTask
from nvrx_chain.slurm.pyslurm_client import PySlurmClient
from nvrx_chain.slurm.pyslurm_jobs import NOT_SHOWN
from nvrx_chain.slurm.pyslurm_process import PySlurmProcess
from nvrx_chain.slurm.states import JobState
from tests.integration.cluster import Cluster, ClusterPool, wait_for
from tests.unit.slurm.client_contract import Bench, SlurmClientContract

_SCONTROL_PYSLURM = Path(__file__).parents[1] / "fakes" / "scontrol_pyslurm"
_SMALL = {"nodes": 3, "kill_wait_seconds": 5}
pytestmark = [pytest.mark.integration, pytest.mark.cluster(**_SMALL)]

_SCRIPT = """\
#!/bin/bash
while :; do sleep 0.2; done
"""


_PATIENCE_SECONDS = 90.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again, as long as a busy machine may need. Fails the test when it does not come true."""
    wait_for(condition, _PATIENCE_SECONDS, "the condition of the contract")


# Slurm's own output must not change with what a site or a login shell exports.
_HOSTILE = {"SQUEUE_STATES": "COMPLETED", "SCANCEL_STATE": "PENDING", "SLURM_TIME_FORMAT": "%s", "TZ": "Asia/Tokyo"}


@pytest.fixture
def bench(cluster: Cluster, tmp_path: Path) -> Iterator[Bench]:
    client = CommandLineClient(clock=SystemClock(), environ={**os.environ, **cluster.environ, **_HOSTILE})
    yield from _make_bench(client, tmp_path)


def _make_bench(client: SlurmClient, tmp_path: Path, **more: str) -> Iterator[Bench]:
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
        **more,
    )
    yield bench
    _cancel_everything(bench)


@pytest.fixture
def odd_cluster(cluster: Cluster, cluster_pool: ClusterPool) -> Iterator[None]:
    """The cluster is ended after the test: the harness does not read names with newlines, which the queue keeps."""
    yield
    cluster_pool.discard(cluster)


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
    @pytest.mark.usefixtures("odd_cluster")
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


@pytest.mark.slow
class TestPySlurmClientOverScontrol(SlurmClientContract):
    """Not against PySlurm, which cannot be built for this Slurm: its attributes are made from scontrol's output."""

    @pytest.fixture
    def bench(self, cluster: Cluster, tmp_path: Path) -> Iterator[Bench]:
        environ = {**os.environ, **cluster.environ, **_HOSTILE}
        clock = SystemClock()
        client = PySlurmClient(
            clock=clock,
            process=PySlurmProcess(environ, search_path=(str(_SCONTROL_PYSLURM),)),
            commands=CommandLineClient(clock=clock, environ=environ),
        )
        yield from _make_bench(client, tmp_path, waiting_singleton=NOT_SHOWN)
        client.close()


_EXITS_93 = """\
#!/bin/bash
srun bash -c 'exit 93'
exit 221
"""


@pytest.mark.cluster(accounting=True, **_SMALL)
@pytest.mark.usefixtures("odd_cluster")
def test_sacct_is_read_with_steps_odd_names_and_the_tasks_asked_for_alone(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "exits 93.sbatch"
    script.write_text(_EXITS_93)
    name = f"{bench.name}|x\n1_0|y"
    before = datetime.now(timezone.utc) - timedelta(minutes=1)
    options = ["--parsable", "--output=/dev/null", "--no-requeue", "--exclusive"]
    job = bench.client.submit([*options, f"--job-name={name}", "--array=0-1", str(script)]).array_job_id
    rest = bench.submit(array="0-3%1")

    def look(*jobs: int) -> tuple[AccountedTask, ...]:
        rows = bench.client.accounting(jobs, before)
        assert not isinstance(rows, Unobserved), rows.reason
        return rows

    wait_until(lambda: len([row for row in look(job) if row.state is JobState.FAILED and row.step_exit_codes]) == 2)
    first = next(row for row in look(job) if row.array_task_id == 0)
    assert (first.name, first.user, first.step_exit_codes) == (name, bench.user, (93,))
    assert first.exit_code in {221, 221 & 127}, "sacct before 26 cuts the highest bit off"
    bench.wait_for(rest, JobState.RUNNING, [0])
    bench.client.cancel([str(rest)])
    wait_until(lambda: {row.state for row in look(rest)} == {JobState.CANCELLED})
    assert {row.array_task_id for row in look(rest)} == {0, None}
    assert {row.array_job_id for row in look(first.job_id or 0, rest)} == {rest}
    assert bench.client.accounting([job], before + timedelta(hours=1)) == ()
