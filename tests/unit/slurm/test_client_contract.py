"""The contract of every SlurmClient, held by the fake that the other tests stand on, and by the PySlurm client.

The latter asks a real child process, which imports a stand-in for PySlurm that shows the fake's jobs as the real one
was recorded to. What PySlurm cannot do goes to the fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.pyslurm_client import PySlurmClient
from nvrx_chain.slurm.pyslurm_jobs import NOT_SHOWN
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.fakes.pyslurm_bench import StandIn
from tests.fakes.pyslurm_world import pyslurm_world
from tests.unit.slurm.client_contract import Bench, SlurmClientContract


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=[True, False], ids=["accounting", "no-accounting"])
def slurm(request: pytest.FixtureRequest, clock: FakeClock) -> FakeSlurm:
    return FakeSlurm(clock, accounting=request.param)


def make_bench(client: SlurmClient, clock: FakeClock, directory: Path, **more: str) -> Bench:
    script = directory / "a job.sbatch"
    script.write_text("#!/bin/bash\nsleep 600\n")

    def wait_until(condition: Callable[[], bool]) -> None:
        for _second in range(60):
            if condition():
                return
            clock.advance(1)
        pytest.fail("the condition did not come true in 60 s")

    return Bench(
        client=client,
        user="alice",
        name="contract",
        script=str(script),
        work_dir="/work dir",
        wait_until=wait_until,
        **more,
    )


class TestFakeSlurm(SlurmClientContract):
    @pytest.fixture
    def bench(self, slurm: FakeSlurm, clock: FakeClock, tmp_path: Path) -> Bench:
        return make_bench(slurm, clock, tmp_path)


class TestPySlurmClient(SlurmClientContract):
    @pytest.fixture
    def bench(self, slurm: FakeSlurm, clock: FakeClock, tmp_path: Path) -> Iterator[Bench]:
        stand_in = StandIn(tmp_path, lambda: pyslurm_world(slurm))
        client = PySlurmClient(clock=clock, process=stand_in, commands=slurm)
        yield make_bench(client, clock, tmp_path, waiting_singleton=NOT_SHOWN)
        stand_in.close()
