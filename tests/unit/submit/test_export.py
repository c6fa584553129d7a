"""--export: sbatch's words, values out of sight, the same for every generation."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import ExportMode, PrivateSettings
from nvrx_chain.submit.config import ChainConfig, build_config
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.entry import Entry
from nvrx_chain.submit.export import Export, mask_export, parse_export
from nvrx_chain.submit.preflight import find_problems
from nvrx_chain.submit.preview import SubmitPreview
from nvrx_chain.submit.show import render_preview, render_settings
from tests.unit.submit.chains import CHAIN_ID, HERE, make_facts, make_plan, make_settings, record
from tests.unit.submit.conftest import Site

SHELL = {"HF_TOKEN": "hunter2", "EDITOR": "vi", "EMPTY": ""}


def config(**flags: Any) -> ChainConfig:
    return build_config(
        make_settings(**flags), directory=HERE, interpreter="/py", environ=SHELL, make_chain_id=lambda: CHAIN_ID
    )


@pytest.mark.parametrize(
    ("text", "mode", "variables"),
    [
        (None, "ALL", {}),
        ("ALL", "ALL", {}),
        ("all", "ALL", {}),
        ("NONE", "NONE", {}),
        ("EDITOR,HF_TOKEN", "NONE", {"EDITOR": "vi", "HF_TOKEN": "hunter2"}),
        ("EMPTY", "NONE", {"EMPTY": ""}),
        ("EDITOR=ed", "NONE", {"EDITOR": "ed"}),
        ("ALL,A=1,B=x=y", "ALL", {"A": "1", "B": "x=y"}),
        ("A=", "NONE", {"A": ""}),
        ("A=1,A=2", "NONE", {"A": "2"}),
        ("'A=1,2',B=\"3,4\"", "NONE", {"A": "1,2", "B": '"3,4"'}),
        ('A=$(x) `y` "z" \\,B=2', "NONE", {"A": '$(x) `y` "z" \\', "B": "2"}),
    ],
)
def test_it_is_read_as_sbatch_means_it(text: str | None, mode: str, variables: dict[str, str]) -> None:
    export = parse_export(text, SHELL)
    assert (export.mode.value, dict(export.variables)) == (mode, variables)


def test_a_given_value_beats_the_one_of_the_shell() -> None:
    assert parse_export("ALL,EDITOR=ed", SHELL) == Export(variables={"EDITOR": "ed"})


def test_a_name_that_is_not_set_is_said_and_not_handed_over() -> None:
    assert parse_export("NOPE,EDITOR", SHELL).unset == ("NOPE",)
    said = "\n".join(map(str, find_problems(config(export="NOPE"), make_facts(), dry_run=True)))
    assert "--export names NOPE, not set here" in said


@pytest.mark.parametrize(
    "text",
    ["NONE,A=hunter2", ",", "A=hunter2,", "1A=hunter2", "A B=hunter2", "=hunter2", "A='hunter2", "A=1,hunter2 x"],
)
def test_what_is_no_list_is_refused_without_its_values(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_export(text, SHELL)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_CONF", "SBATCH_ACCOUNT", "SRUN_X", "PMI_RANK", "SPANK_X"])
def test_a_variable_of_slurm_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="Slurm's own"):
        parse_export(f"{name}=1", {})


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\udcff", "x" * 140_000])
def test_a_value_that_no_file_or_process_could_carry_is_refused_by_name(value: str) -> None:
    with pytest.raises(UsageError, match="the value of V ") as caught:
        parse_export("V", {"V": value})
    assert value not in str(caught.value)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), max_size=50))
def test_whatever_a_variable_holds_arrives(value: str) -> None:
    assert parse_export("V", {"V": value}).variables == {"V": value}


def test_sbatch_is_told_a_word_and_never_a_name_or_a_value() -> None:
    for text, told in [(None, "ALL"), ("ALL,A=hunter2", "ALL"), ("A=hunter2", "NONE"), ("HF_TOKEN", "NONE")]:
        plan = make_plan(config(export=text))
        for generation in plan.generations:
            assert [word for word in generation.argv if word.startswith("--export")] == [f"--export={told}"]
            assert "hunter2" not in " ".join(generation.argv)


def test_no_output_shows_a_value() -> None:
    flags = {"export": "ALL,A=plainvalue,HF_TOKEN", "command": ("t.py", "--api-key", "hunter2")}
    plan = make_plan(config(**flags))
    preview = SubmitPreview(plan=plan, entry=Entry.NEW, directory=DirectoryState(), uid=1, problems=())
    for as_json in (False, True):
        shown = render_preview(preview, as_json=as_json) + render_settings(make_settings(**flags), as_json=as_json)
        assert "hunter2" not in shown
        assert "plainvalue" not in shown
        assert "HF_TOKEN" in shown
        assert "environment.json" in shown


def test_a_text_that_cannot_be_read_is_hidden_whole() -> None:
    assert "hunter2" not in mask_export("A='hunter2")


def test_the_values_are_in_one_file_of_the_owner_alone(site: Site) -> None:
    old = os.umask(0)
    try:
        site.submit(export="ALL,A=a $(x) `y`,B=hunter2", command=("prog", "--token", "hunter3"))
    finally:
        os.umask(old)
    private = record(site.run.private, PrivateSettings)
    assert private.variables == {"A": "a $(x) `y`", "B": "hunter2"}
    assert private.workload is not None
    assert "hunter3" in private.workload
    assert stat.S_IMODE(site.run.private.stat().st_mode) == 0o600
    for path in site.directory.rglob("*"):
        if path.is_file() and path != site.run.private:
            assert b"hunter" not in path.read_bytes(), path
    manifest = json.loads(site.run.manifest.read_bytes())
    assert manifest["exported"] == ["A", "B"]
    assert manifest["private_file"] == str(site.run.private)
    assert "process list" in "\n".join(site.said)


def test_a_chain_without_values_writes_none(site: Site) -> None:
    site.submit()
    assert not site.run.private.exists()
    assert json.loads(site.run.manifest.read_bytes())["private_file"] is None


def test_the_values_of_a_chain_that_is_over_do_not_outlive_it(site: Site) -> None:
    result = site.submit(export="A=1")
    for job in result.array_job_ids:
        site.slurm.cancel([str(job)])
    site.submit(resume=True)
    assert not site.run.private.exists()
    assert not list(site.run.history.rglob("environment.json"))


def test_only_a_job_without_the_callers_path_is_told_where_slurm_is() -> None:
    assert parse_export("NONE", {}).mode is ExportMode.NONE
    for text, expected in (("NONE", "/opt/slurm/bin"), ("ALL,A=1", None)):
        from nvrx_chain.submit.private import private_settings

        private = private_settings(config(export=text), "/opt/slurm/bin")
        assert private is not None
        assert private.slurm_directory == expected


def test_a_secret_for_sbatch_itself_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        config(sbatch_arg=("--bb=token=hunter2",))
    assert "hunter2" not in str(caught.value)


def test_the_toml_file_may_hold_it(tmp_path: Path) -> None:
    (tmp_path / "nvrx-chain.toml").write_text('train-tasks = 1\nexport = "ALL,A=1"\n')
    from nvrx_chain.submit.settings import read_settings

    assert read_settings({}, {}, tmp_path).text("export") == "ALL,A=1"
