"""Flag, environment, file, default: in that order, each with its origin, and nothing guessed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.submit.option import Kind
from nvrx_chain.submit.options import OPTIONS
from nvrx_chain.submit.settings import Settings, read_settings
from nvrx_chain.submit.show import render_settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(directory: Path, environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    return read_settings(flags, environ or {}, directory)


def write_file(directory: Path, text: str, name: str = "nvrx-chain.toml") -> None:
    (directory / name).write_text(text)


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    write_file(tmp_path, "hot-spares = 3\ncold-spares = 3\nchain-depth = 3\n")
    environ = {"NVRX_HOT_SPARES": "2", "NVRX_COLD_SPARES": "2"}
    settings = read(tmp_path, environ, hot_spares="1")
    shown = {key: (settings.by_key[key].value, settings.by_key[key].origin) for key in settings.by_key}
    assert shown["hot-spares"] == (1, "flag")
    assert shown["cold-spares"] == (2, "environment NVRX_COLD_SPARES")
    assert shown["chain-depth"] == (3, "file nvrx-chain.toml")
    assert shown["max-restarts"] == (5, "default")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVRX_TRAIN_TASKS", "train-tasks"),
        ("NVRX_HOT_SPARES", "hot-spares"),
        ("NVRX_COLD_SPARES", "cold-spares"),
        ("NVRX_CHAIN_DEPTH", "chain-depth"),
        ("NVRX_TIME_LIMIT", "time-limit"),
        ("NVRX_JOB_NAME", "name"),
        ("NVRX_WORK_DIR", "run-dir"),
        ("NVRX_SEGMENT", "segment"),
        ("NVRX_MAX_RESTARTS", "max-restarts"),
        ("NODES_PER_TASK", "nodes-per-task"),
        ("GPUS_PER_NODE", "gpus-per-node"),
        ("NVRX_DRY_RUN", "dry-run"),
    ],
)
def test_the_established_names_are_read(tmp_path: Path, name: str, key: str) -> None:
    setting = read(tmp_path, {name: "7" if key != "dry-run" else "1"}).by_key[key]
    assert setting.origin == f"environment {name}"
    assert str(setting.value) in {"7", "True"}


@pytest.mark.parametrize("option", [o for o in OPTIONS if not o.positional], ids=lambda o: o.key)
def test_every_option_has_its_own_variable_and_help(option: Any) -> None:
    assert option.environment[0] == "NVRX_" + option.key.upper().replace("-", "_")
    assert option.help.endswith(".")


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        (
            {"launcher": "x"},
            {},
            "reading --launcher: 'x' is none of nvrx, ft_launcher, torchrun, command (leave it out for ",
        ),
        (
            {"hot_spares": "x"},
            {},
            "reading --hot-spares: 'x' is not a whole number (write it in digits, 0 or more)",
        ),
        (
            {},
            {"NVRX_HOT_SPARES": "x"},
            "reading environment NVRX_HOT_SPARES: --hot-spares: 'x' is not a whole number (",
        ),
        ({"chain_depth": ""}, {}, "reading --chain-depth: it cannot be empty (leave it out for its default, 3)"),
        ({"config": "no.toml"}, {}, "no.toml: there is no such file (name one that is there"),
    ],
)
def test_an_error_names_option_and_origin_once_and_how_to_write_it(
    tmp_path: Path, flags: dict[str, str], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, environ, **flags)
    assert said in str(caught.value)


def test_a_switch_for_the_negation_exists_only_where_it_reads_as_one() -> None:
    assert not [option.key for option in OPTIONS if option.negatable and option.key.startswith("no-")]


def test_two_names_of_one_option_must_agree(tmp_path: Path) -> None:
    assert read(tmp_path, {"NVRX_NAME": "a", "NVRX_JOB_NAME": "a"}).text("name") == "a"
    with pytest.raises(UsageError, match="NVRX_NAME and NVRX_JOB_NAME differ"):
        read(tmp_path, {"NVRX_NAME": "a", "NVRX_JOB_NAME": "b"})


def test_an_empty_value_means_off_and_not_the_default(tmp_path: Path) -> None:
    write_file(tmp_path, 'partition = "batch"\nhot-spares = 2\nmax-restarts = ""\n')
    settings = read(tmp_path, {"NVRX_PARTITION": "", "NVRX_EXCLUSIVE": "", "NVRX_SBATCH_ARG": ""}, hot_spares="")
    assert settings.text("partition") is None
    assert settings.count("hot-spares") == 0
    assert settings.count("max-restarts") == 0
    assert settings.switch("exclusive") is False
    assert settings.words("sbatch-arg") == ()
    assert settings.by_key["partition"].origin == "environment NVRX_PARTITION"


@pytest.mark.parametrize("key", ["train-tasks", "chain-depth", "launcher", "nodes-per-task"])
def test_an_option_without_an_off_refuses_to_be_empty(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f"--{key}: it cannot be empty"):
        read(tmp_path, **{key.replace("-", "_"): ""})


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "1_000", " 2", "٣", "1e3", "99999999999"])
def test_what_is_no_whole_number_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="--hot-spares") as caught:
        read(tmp_path, {"NVRX_HOT_SPARES": text})
    assert "environment NVRX_HOT_SPARES" in str(caught.value)


def test_a_number_below_its_minimum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 is less than 1"):
        read(tmp_path, train_tasks="0")


@pytest.mark.parametrize(("text", "value"), [("1", True), ("yes", True), ("TRUE", True), ("off", False), ("0", False)])
def test_switches_take_the_usual_words(tmp_path: Path, text: str, value: bool) -> None:
    assert read(tmp_path, {"NVRX_ROLLBACK": text}).switch("rollback") is value


def test_a_switch_takes_no_other_word(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'maybe' is neither yes nor no"):
        read(tmp_path, {"NVRX_ROLLBACK": "maybe"})


def test_words_of_a_variable_are_split_as_a_shell_does(tmp_path: Path) -> None:
    settings = read(tmp_path, {"NVRX_SBATCH_ARG": "--nice=100 '--licenses=a b'"})
    assert settings.words("sbatch-arg") == ("--nice=100", "--licenses=a b")
    with pytest.raises(UsageError, match="--sbatch-arg"):
        read(tmp_path, {"NVRX_SBATCH_ARG": "'open"})


def test_the_file_takes_lists_tables_and_numbers(tmp_path: Path) -> None:
    write_file(
        tmp_path,
        'sbatch-arg = ["--nice=100"]\ncommand = ["train.py", "--x"]\nwalltime-warning = 60\ntime-limit = 90\n'
        "exclusive = false\n[threshold]\ndrain = 20\n",
    )
    settings = read(tmp_path)
    assert settings.words("sbatch-arg") == ("--nice=100",)
    assert settings.words("command") == ("train.py", "--x")
    assert settings.seconds("walltime-warning") == 60.0
    assert settings.text("time-limit") == "90"
    assert settings.switch("exclusive") is False
    assert settings.words("threshold") == ("drain=20",)


@pytest.mark.parametrize(
    ("key", "hint"), [("train_tasks", "train-tasks"), ("partion", "partition"), ("dry-run", "lists them all")]
)
def test_an_unknown_key_of_the_file_is_named_with_the_nearest_valid_one(tmp_path: Path, key: str, hint: str) -> None:
    write_file(tmp_path, f"{key} = 1\n")
    with pytest.raises(UsageError, match="unknown setting") as caught:
        read(tmp_path)
    assert caught.value.part == key
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("text", ["train-tasks = ", "\xff"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "nvrx-chain.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"reading .*nvrx-chain\.toml"):
        read(tmp_path)


@pytest.mark.parametrize("value", ["true", "[1]", "{ a = 1 }", "1.5"])
def test_a_wrong_type_in_the_file_is_refused(tmp_path: Path, value: str) -> None:
    write_file(tmp_path, f"hot-spares = {value}\n")
    with pytest.raises(UsageError, match="--hot-spares"):
        read(tmp_path)


def test_a_named_file_is_read_in_place_of_the_usual_one_and_must_be_there(tmp_path: Path) -> None:
    write_file(tmp_path, "hot-spares = 3\n")
    write_file(tmp_path, "hot-spares = 4\n", "other.toml")
    assert read(tmp_path, config="other.toml").by_key["hot-spares"].origin == "file other.toml"
    assert read(tmp_path, {"NVRX_CONFIG": "other.toml"}).count("hot-spares") == 4
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path, config="missing.toml")


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "a\rb"])
def test_no_value_may_hold_a_line_break_or_nul(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UsageError, match="line break or NUL"):
        read(tmp_path, run_dir=bad)


def test_what_is_shown_is_a_file_of_settings_that_reads_back_the_same(tmp_path: Path) -> None:
    first = read(tmp_path, train_tasks="4", threshold=("drain=20",), command=("train.py", "a b"), run_dir='q"\\é')
    shown = render_settings(first, as_json=False)
    parsed = tomllib.loads(shown)
    assert parsed["train-tasks"] == 4
    other = tmp_path / "other"
    other.mkdir()
    write_file(other, shown)
    again = read(other)
    for option in OPTIONS:
        assert again.by_key[option.key].value == first.by_key[option.key].value


def test_what_is_shown_has_every_option_with_its_origin(tmp_path: Path) -> None:
    shown = render_settings(read(tmp_path, {"NVRX_TRAIN_TASKS": "2"}), as_json=False).splitlines()
    assert len(shown) == len(OPTIONS)
    assert shown[0].split() == ["train-tasks", "=", "2", "#", "environment", "NVRX_TRAIN_TASKS"]


def test_no_two_options_share_a_name() -> None:
    names = [name for option in OPTIONS for name in option.environment]
    assert len(names) == len(set(names))
    assert len({option.key for option in OPTIONS}) == len(OPTIONS)
    assert all(option.metavar for option in OPTIONS if option.kind is not Kind.SWITCH)
