"""The server that ranks are forked from, and the undisturbed runs that every other run must equal bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.workloads.lives import Job, start_server

TARGET = 40


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    start_server()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "run 1 & 50% 'x'")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[int, str]]:
    """Number of ranks to the losses of a run to iteration 40 that nothing happened to."""
    losses = {}
    for world_size in (1, 2, 3):
        job = Job(tmp_path_factory.mktemp(f"undisturbed-{world_size}"), world_size=world_size)
        assert job.run(f"--target-iteration={TARGET}", "--save-interval=0") == [0] * world_size
        assert job.errors() == ""
        assert list(job.losses()) == list(range(1, TARGET + 1))
        losses[world_size] = job.losses()
    return losses
