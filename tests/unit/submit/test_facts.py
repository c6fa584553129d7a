"""What a submit looks at, once: Slurm until it does not answer, and what the interpreters can import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.submit import interpreters
from nvrx_chain.submit.facts import SubmitFacts, gather_facts, launcher_version
from nvrx_chain.submit.interpreters import ModuleProbe, probe_interpreters
from tests.unit.submit.chains import NASTY, Site, make_config, make_facts


def gather(site: Site, **flags: object) -> SubmitFacts:
    return gather_facts(site.config(**flags), site.slurm, user=site.slurm.user, uid=0, probe=False)


def test_a_silent_slurm_is_asked_once(site: Site) -> None:
    site.slurm.always("config", Unobserved("scontrol did not answer"))
    seen = gather(site)
    assert seen.cluster == seen.partitions == seen.queue == Unobserved("scontrol did not answer")
    assert [call.operation for call in site.slurm.calls] == ["config"]


def test_the_queue_of_the_user_alone_is_read(site: Site) -> None:
    gather(site)
    assert [call.arguments for call in site.slurm.asked("queue")] == [(site.slurm.user,)]


def test_looking_changes_nothing_and_makes_no_directory(site: Site) -> None:
    gather(site)
    assert not site.directory.exists()
    assert {call.operation for call in site.slurm.calls} == {"config", "partitions", "queue"}


@pytest.mark.parametrize("there", [True, False])
def test_a_script_is_looked_for(site: Site, tmp_path: Path, there: bool) -> None:
    script = tmp_path / "train.py"
    if there:
        script.touch()
    assert gather(site, launcher="torchrun", launcher_command=None, command=(str(script),)).program_exists is there
    assert gather(site).program_exists is None


def test_the_real_interpreter_can_import_nvrx_chain_isolated() -> None:
    (isolated,) = probe_interpreters(make_config(launcher="command", launcher_command="x"))
    assert isinstance(isolated, ModuleProbe)
    assert (isolated.interpreter, isolated.needed) == (sys.executable, ("nvrx_chain",))


def test_torchrun_is_found_with_its_version_in_the_interpreter_of_the_launcher() -> None:
    before = "torch" in sys.modules
    probes = probe_interpreters(make_config(launcher="torchrun"))
    seen = probes[1]
    assert isinstance(seen, ModuleProbe)
    assert set(seen.needed) == {"torch", "nvrx_chain"}
    version = launcher_version(make_facts(probes=probes), LauncherKind.TORCHRUN)
    assert version == seen.found.get("torch")
    assert ("torch" in sys.modules) == before


def stand_in(tmp_path: Path, body: str) -> str:
    program = tmp_path / NASTY
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo first >&2; echo broken library >&2; exit 3", "ended with 3: broken library"),
        ("echo hello", "no answer of ours"),
        ("exec sleep 60", "no answer within 1 s"),
    ],
)
def test_an_interpreter_that_does_not_work_is_unobserved_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    monkeypatch.setattr(interpreters, "PROBE_TIMEOUT_SECONDS", 1.0)
    config = make_config(interpreter=stand_in(tmp_path, body), launcher="command", launcher_command="x")
    (seen,) = probe_interpreters(config)
    assert isinstance(seen, Unobserved)
    assert reason in seen.reason


def test_an_interpreter_that_is_not_there_is_unobserved(tmp_path: Path) -> None:
    config = make_config(interpreter=str(tmp_path / "none"), launcher="command", launcher_command="x")
    (seen,) = probe_interpreters(config)
    assert isinstance(seen, Unobserved)
    assert "No such file" in seen.reason


@pytest.mark.parametrize(
    ("launcher", "needed"),
    [("ft_launcher", ("torch", "nvidia_resiliency_ext")), ("torchrun", ("torch",))],
)
def test_each_launcher_needs_its_packages(tmp_path: Path, launcher: str, needed: tuple[str, ...]) -> None:
    python = stand_in(tmp_path, "echo '{}'")
    probes = probe_interpreters(make_config(launcher=launcher, python=python, command=("bash", "x")))
    assert probes[1] == ModuleProbe(interpreter=python, needed=needed, found={})


def test_a_launcher_that_nobody_looked_for_has_no_version() -> None:
    assert launcher_version(make_facts(probes=None), LauncherKind.FT_LAUNCHER) is None
    assert launcher_version(make_facts(), LauncherKind.COMMAND) is None
