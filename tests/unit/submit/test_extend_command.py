"""`nvrx-chain extend` as it is typed: which chain, whose chain, what it prints and how it ends."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvrx_chain.cli import cli
from nvrx_chain.errors import IdentityError, RecordError
from nvrx_chain.ops.chain import Operator
from nvrx_chain.ops.settle import Desk
from tests.unit.submit.chains import CHAIN_ID, Site, stamps
from tests.unit.submit.test_extend import decide


@pytest.fixture(autouse=True)
def _no_settings_of_the_caller(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.directory.parent)


def run(site: Site, *words: str, uid: int | None = None, check: bool = True) -> Result:
    operator = Operator(user=site.slurm.user, uid=os.getuid() if uid is None else uid, host="login")
    desk = Desk(client=site.slurm, clock=site.clock, operator=operator, say=site.said.append, is_interactive=False)
    return CliRunner().invoke(cli, ["extend", *words], obj=desk, catch_exceptions=not check)


def test_the_chain_is_named_by_directory_by_job_or_not_at_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.submit().array_job_ids[1]
    assert run(site, "--run-dir", str(site.directory), "--by", "1").exit_code == 0
    assert run(site, f"{job}_2", "--by", "1").exit_code == 0
    monkeypatch.chdir(site.directory)
    result = run(site, "--by", "2")
    assert site.stamps() == stamps(1, 2, 3, 4, 5, 6, 7)
    assert f"(chain {CHAIN_ID})" in result.stdout
    assert "(generation 7)" in result.stdout


def test_json_is_one_object(site: Site) -> None:
    site.submit()
    shown = json.loads(run(site, str(site.directory), "--by", "2", "--json").stdout)
    assert (shown["schema"], shown["sequences"], shown["held"]) == (1, [4, 5], False)
    assert shown["array_job_ids"] == site.array_jobs()[3:]


def test_json_stays_whole_where_a_directory_has_a_control_character(tmp_path: Path) -> None:
    parent = tmp_path / "a\x85b"
    parent.mkdir()
    site = Site(parent)
    site.submit()
    shown = json.loads(run(site, "--run-dir", str(site.directory), "--by", "1", "--json").stdout)
    assert shown["run_directory"] == str(site.directory)


def test_a_dry_run_prints_the_commands_and_queues_nothing(site: Site) -> None:
    site.submit()
    result = run(site, str(site.directory), "--by", "2", "--dry-run")
    commands = [shlex.split(line) for line in result.stdout.splitlines() if not line.startswith("#")]
    assert [words[0] for words in commands] == ["sbatch", "sbatch"]
    assert len(site.slurm.asked("submit")) == 3
    shown = json.loads(run(site, str(site.directory), "--by", "2", "--dry-run", "--json").stdout)
    assert [each["argv"] for each in shown["generations"]] == commands


@pytest.mark.parametrize("words", [(), ("--by", "0"), ("--by", "101"), ("--by", "x"), ("--by", "-1")])
def test_the_number_must_be_given_and_small(site: Site, words: tuple[str, ...]) -> None:
    site.submit()
    result = run(site, str(site.directory), *words)
    assert result.exit_code == 2
    assert "--by" in result.stderr
    assert len(site.slurm.asked("submit")) == 3


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_chain_of_another_user_or_cluster_or_one_that_ended_is_refused(site: Site, dry: tuple[str, ...]) -> None:
    site.submit()
    words = (str(site.directory), "--by", "1", *dry)
    with pytest.raises(IdentityError, match="it belongs to"):
        run(site, *words, uid=4711)
    manifest = site.run.manifest.read_text()
    site.run.manifest.write_text(manifest.replace('"cluster": "fake"', '"cluster": "other"'))
    with pytest.raises(IdentityError, match="submitted on cluster other"):
        run(site, *words)
    site.run.manifest.write_text(manifest)
    decide(site)
    with pytest.raises(RecordError, match="nvrx-chain submit --resume --run-dir"):
        run(site, *words)
    assert len(site.slurm.asked("submit")) == 3


def test_a_copy_of_the_run_directory_is_refused(site: Site) -> None:
    site.submit()
    copy = site.directory.with_name("copy")
    copy.mkdir()
    (copy / "chain.json").write_bytes(site.run.manifest.read_bytes())
    with pytest.raises(IdentityError, match="is a copy of its directory"):
        run(site, str(copy), "--by", "1")
    assert len(site.slurm.asked("submit")) == 3


def test_variables_that_a_job_does_not_get_are_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    site.submit()
    result = run(site, str(site.directory), "--by", "1")
    assert "kept from sbatch, they belong to another job or site: " in result.stderr
    assert "SBATCH_PARTITION" in result.stderr
