"""The contract of every SlurmClient, held by the fake that the other tests stand on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.slurm.client_contract import Bench, SlurmClientContract


@pytest.fixture(params=[True, False], ids=["accounting", "no-accounting"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    script = tmp_path / "a job.sbatch"
    script.write_text("#!/bin/bash\nsleep 600\n")
    clock = FakeClock()

    def wait_until(condition: Callable[[], bool]) -> None:
        for _second in range(60):
            if condition():
                return
            clock.advance(1)
        pytest.fail("the condition did not come true in 60 s")

    return Bench(
        client=FakeSlurm(clock, accounting=request.param),
        user="alice",
        name="contract",
        script=str(script),
        work_dir="/work dir",
        wait_until=wait_until,
    )


class TestFakeSlurm(SlurmClientContract):
    pass
