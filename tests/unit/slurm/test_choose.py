"""PySlurm is used only where somebody asked for it, and where it fits the cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_chain.slurm.choose import check_release, make_client
from nvrx_chain.slurm.client_kind import SlurmClientKind, describe_unproven
from nvrx_chain.slurm.command_client import CommandLineClient
from nvrx_chain.slurm.parse.scontrol import parse_config
from nvrx_chain.slurm.pyslurm_client import PySlurmClient
from tests.fakes.fake_clock import FakeClock
from tests.fakes.pyslurm_bench import STAND_IN, recorded
from tests.unit.slurm.programs import FakePrograms


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with the stand-in for PySlurm installed, and a cluster of the release that it was recorded on."""
    monkeypatch.setattr(sys, "path", [str(STAND_IN), *sys.path])
    world = tmp_path / "world.json"
    world.write_text(json.dumps(recorded("running")))
    programs = FakePrograms(tmp_path / "bin")
    programs.put_plain("scontrol", "echo 'ClusterName = c'; echo 'SLURM_VERSION = 25.11.7'")
    return {**programs.environ, "FAKE_PYSLURM": str(world)}


def test_the_default_kind_runs_programs_and_has_nothing_to_say() -> None:
    client = make_client(SlurmClientKind.COMMAND, clock=FakeClock(), environ={})
    assert isinstance(client, CommandLineClient)
    assert describe_unproven(SlurmClientKind.COMMAND) is None


def test_pyslurm_is_used_where_it_was_asked_for_and_fits(environ: dict[str, str]) -> None:
    client = make_client(SlurmClientKind.PYSLURM, clock=FakeClock(), environ=environ)
    assert isinstance(client, PySlurmClient)
    reading = client.queue()
    assert not isinstance(reading, Unobserved)
    assert len(reading.tasks) == 10
    client.close()


def test_a_pyslurm_of_another_release_is_refused_with_what_to_install(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        make_client(SlurmClientKind.PYSLURM, clock=FakeClock(), environ={**environ, "FAKE_PYSLURM_VERSION": "24.11.0"})
    assert "PySlurm 24.11.0 is of another release than this cluster's Slurm 25.11.7" in str(caught.value)
    assert "pyslurm==25.11.*" in str(caught.value)


def test_a_pyslurm_that_is_not_installed_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="No module named 'pyslurm'"):
        make_client(SlurmClientKind.PYSLURM, clock=FakeClock(), environ={})


def test_a_slurm_that_is_down_now_is_no_reason_to_refuse() -> None:
    check_release("25.11.2", Unobserved("no answer"))
    config = parse_config("ClusterName = c\nSLURM_VERSION = 25.11.7\n")
    check_release("", config)
    check_release("25.11.2", config)


def test_what_is_said_names_what_was_recorded() -> None:
    said = describe_unproven(SlurmClientKind.PYSLURM)
    assert said is not None
    assert "recorded behaviour only" in said
    assert "\n" not in said
