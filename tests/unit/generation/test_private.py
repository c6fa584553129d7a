"""A node reads the private settings of its own chain, or does not start the launcher."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.errors import RecordError
from nvrx_chain.generation.private import (
    find_programs,
    read_private,
    read_private_if_any,
    with_exported,
    with_private_words,
)
from nvrx_chain.launchers.seats import LaunchPlan
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.manifest import ChainManifest, PrivateSettings
from tests.unit.submit.chains import CHAIN_ID, OTHER_ID, make_config, make_plan

SECRET = PrivateSettings(chain_id=CHAIN_ID, variables={"A": "1"}, workload=("t.py", "--token", "x"))


def manifest(tmp_path: Path, private: PrivateSettings | None = SECRET) -> ChainManifest:
    path = tmp_path / "environment.json"
    if private is not None:
        write_atomic(path, encode_record(private), mode=0o600)
    return msgspec.structs.replace(make_plan(make_config()).manifest, private_file=str(path), uid=os.getuid())


def test_a_chain_without_the_file_has_no_private_settings() -> None:
    plain = make_plan(make_config()).manifest
    private = read_private(plain)
    assert private.variables == {}
    assert with_private_words(plain, private) == plain


def test_the_words_come_back_in_full(tmp_path: Path) -> None:
    chain = manifest(tmp_path)
    assert with_private_words(chain, read_private(chain)).workload == ("t.py", "--token", "x")


def test_a_file_that_is_gone_or_of_another_chain_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="it is not there"):
        read_private(manifest(tmp_path, None))
    with pytest.raises(RecordError, match=f"of chain {OTHER_ID}"):
        read_private(manifest(tmp_path, msgspec.structs.replace(SECRET, chain_id=OTHER_ID)))


def test_run_task_lives_without_the_file_so_that_the_brake_sees_its_launcher_fail(tmp_path: Path) -> None:
    assert read_private_if_any(manifest(tmp_path)) == SECRET
    (tmp_path / "environment.json").unlink()
    assert read_private_if_any(manifest(tmp_path, None)) == PrivateSettings(chain_id=CHAIN_ID)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    chain = manifest(tmp_path)
    path = tmp_path / "environment.json"
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(RecordError, match="symbolic link"):
        read_private(chain)


def test_what_the_launcher_needs_wins_over_what_was_exported() -> None:
    private = PrivateSettings(chain_id=CHAIN_ID, variables={"MASTER_ADDR": "theirs", "A": "1"})
    plan = with_exported(LaunchPlan(argv=("x",), environment={"MASTER_ADDR": "ours"}), private)
    assert plan.environment == {"MASTER_ADDR": "ours", "A": "1"}


def test_programs_that_the_node_finds_are_its_own_and_the_others_those_of_the_submit(tmp_path: Path) -> None:
    here = tmp_path / "bin"
    here.mkdir()
    (here / "squeue").touch(mode=0o755)
    private = PrivateSettings(chain_id=CHAIN_ID, slurm_directory="/opt/slurm/bin")
    found = find_programs({"PATH": str(here)}, private)
    assert "squeue" not in found
    assert found["srun"] == "/opt/slurm/bin/srun"
    assert find_programs({"PATH": str(here)}, PrivateSettings(chain_id=CHAIN_ID)) == {}
