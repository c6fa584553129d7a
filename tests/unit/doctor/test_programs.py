"""Slurm's programs as a machine has them: real ones, wrappers, broken ones, none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.doctor import programs
from nvrx_chain.doctor.facts import Program, SlurmPrograms
from nvrx_chain.doctor.programs import NAMES, read_programs
from tests.unit.slurm.programs import FakePrograms

VERSION = 'if [ "$1" = --version ]; then echo "slurm-wlm 22.05.8"; exit; fi'


@pytest.fixture
def fake(tmp_path: Path) -> FakePrograms:
    """A Slurm whose queue is empty."""
    fake = FakePrograms(tmp_path / "bin & dir")
    for name in NAMES:
        fake.put_plain(name, VERSION)
    return fake


def look(fake: FakePrograms) -> SlurmPrograms:
    return read_programs(fake.environ, SystemClock(), "alice")


def program(seen: SlurmPrograms, name: str) -> Program:
    return next(one for one in seen.programs if one.name == name)


def test_paths_and_versions_are_told_and_scripts_are_known(fake: FakePrograms) -> None:
    seen = look(fake)
    assert {one.version for one in seen.programs} == {"22.05.8"}
    assert program(seen, "squeue").path == str(fake.path("squeue"))
    assert program(seen, "squeue").is_script
    assert (seen.queue_problem, seen.typed_problem) == (None, None)


def test_a_program_of_the_machine_is_no_script(fake: FakePrograms) -> None:
    fake.path("sinfo").unlink()
    fake.path("sinfo").symlink_to("/bin/true")
    seen = program(look(fake), "sinfo")
    assert not seen.is_script
    assert "--version printed" in (seen.problem or "")


def test_a_missing_program_is_a_problem(fake: FakePrograms) -> None:
    fake.path("sacct").unlink()
    assert program(look(fake), "sacct").problem == "not on PATH"


def test_a_wrapper_that_refuses_our_options_is_told_apart_from_one_that_refuses_others(fake: FakePrograms) -> None:
    fake.put_plain("squeue", f'{VERSION}\ncase "$*" in *-r*) echo "invalid option -- r" >&2; exit 1;; esac')
    seen = look(fake)
    assert seen.queue_problem is None
    assert seen.typed_problem == "invalid option -- r"
    fake.put_plain("squeue", f'{VERSION}\ncase "$*" in *--states*) echo "what is --states?" >&2; exit 1;; esac')
    assert "what is --states?" in (look(fake).queue_problem or "")


def test_a_wrapper_that_prints_a_banner_in_place_of_rows_is_a_problem(fake: FakePrograms) -> None:
    fake.put_plain("squeue", f"{VERSION}\necho 'Welcome to the cluster'")
    assert "none as it was asked to" in (look(fake).queue_problem or "")


def test_programs_that_hang_are_given_up_together(fake: FakePrograms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "VERSION_SECONDS", 1.0)
    monkeypatch.setattr(programs, "QUEUE_SECONDS", 1.0)
    for name in NAMES:
        fake.put_plain(name, "exec sleep 60")
    began = time.monotonic()
    seen = look(fake)
    assert time.monotonic() - began < 8
    assert all("hung" in (one.problem or "") for one in seen.programs)
    assert "did not answer" in (seen.queue_problem or "")
    assert "did not answer" in (seen.typed_problem or "")
