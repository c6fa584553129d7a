"""The file of `--config`: what is wrong in it is said in one line that names key, file and cure, and shows no value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrx_chain.errors import UsageError
from nvrx_watch.cli import _kind_of, watch
from nvrx_watch.config_file import ConfigFile, read_config_file

ROOT = Path(__file__).parents[3]
KINDS = {parameter.name: _kind_of(parameter) for parameter in watch.params if parameter.name}


def read(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "a watch & #1.toml"
    path.write_text(text)
    return read_config_file(path, KINDS)


def refusal(tmp_path: Path, text: str) -> str:
    """What is said to the file, nothing when it is taken."""
    try:
        read(tmp_path, text)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('run-dir = "/r"', "run_dir", "/r"),
        ('run_dir = "/r"', "run_dir", "/r"),
        ("jobid = 4711", "jobid", "4711"),
        ('jobid = "4711_[2-4]"', "jobid", "4711_[2-4]"),
        ("json = true", "as_json", True),
        ("act = false", "act", False),
        ("interval = 60", "interval", 60),
        ("interval = 60.5", "interval", 60.5),
        ("alert_cooldown = 0", "alert_cooldown", 0),
        ("keep-queued = 2", "keep_queued", 2),
        ('platform = "none"', "platform", "none"),
        ('disable = "a, b"', "disable", "a,b"),
        ('disable = ["a", "b"]', "disable", "a,b"),
        ('disable = ""', "disable", ""),
        ('allow = "fence, hold"', "allow", ["fence", "hold"]),
        ('allow = ["fence", "hold"]', "allow", ["fence", "hold"]),
        ("allow = []", "allow", []),
        ('notify = "json://a?to=b,c"', "notify", ["json://a?to=b,c"]),
        ('notify = ["json://a", "json://b"]', "notify", ["json://a", "json://b"]),
    ],
)
def test_a_value_of_the_right_kind_is_taken(text: str, name: str, value: Any, tmp_path: Path) -> None:
    found = read(tmp_path, text).options
    assert found == {name: value}
    assert type(found[name]) is type(value)


@pytest.mark.parametrize(
    ("text", "says", "cure"),
    [
        ('interval = "fast"', "interval is a text, not a number from 1 to 86400", "interval = 1"),
        ("interval = true", "interval is true, not a number", "interval = 1"),
        ("interval = nan", "interval is not a number from 1", "interval = 1"),
        ("interval = inf", "interval is not a number from 1", "interval = 1"),
        ("interval = 0", "interval is not a number from 1", "interval = 1"),
        ("alert-cooldown = -1", "alert-cooldown is not a number from 0 on", "alert-cooldown = 1"),
        (f"alert-cooldown = 1{'0' * 400}", "alert-cooldown is not a number", "alert-cooldown = 1"),
        ("metrics-port = 70000", "metrics-port is not a whole number from 0 to 65535", "metrics-port = 1"),
        ("metrics-port = 1.5", "metrics-port is a number, not a whole number", "metrics-port = 1"),
        ("keep-queued = [1]", "keep-queued is a list, not a whole number", "keep-queued = 1"),
        ("act = 3", "act is a number, neither true nor false", "act = true"),
        ('act = "yes"', "act is a text, neither true nor false", "act = true"),
        ("notify = 5", "notify is a number, not a list of texts", 'notify = ["..."]'),
        ("notify = [5]", "notify is a list with a number in it", 'notify = ["..."]'),
        ('notify = [""]', "notify is empty", "leave it out"),
        ("notify = {}", "notify is a table", 'notify = ["..."]'),
        ("disable = 1979-05-27", "disable is a date", 'disable = ["..."]'),
        ("disable = 07:32:00", "disable is a time", 'disable = ["..."]'),
        ('allow = "everything"', "allow is none of fence, cancel-chain", 'allow = "fence"'),
        ('platform = "pbs"', "platform is none of slurm, none", 'platform = "slurm"'),
        ("platform = 1", "platform is a number, not a text", 'platform = "slurm"'),
        ("run-dir = 1", "run-dir is a number, not a text", 'run-dir = "..."'),
        ('run-dir = ""', "run-dir is empty", "leave it out"),
        ('run-dir = "/a\\u0000b"', "run-dir is a text with a NUL", 'run-dir = "..."'),
        ("jobid = 1.5", "jobid is a number, not a text", 'jobid = "..."'),
        ("jobid = true", "jobid is true, not a text", 'jobid = "..."'),
        ("pd-routing-key = 12345678", "pd-routing-key is a number, not a text", 'pd-routing-key = "..."'),
        ("run-dri = 1", "there is no option 'run-dri'", "did you mean run-dir"),
        ("jsn = true", "there is no option 'jsn'", "did you mean json"),
        ("config = 1", "there is no option 'config'", ""),
        ("version = true", "there is no option 'version'", ""),
        ("list-detectors = true", "there is no option 'list-detectors'", ""),
        ('run-dir = "/a"\nrun_dir = "/b"', "'run_dir' is set twice", "write it once"),
        ("x =", "Invalid", ""),
        (f"x = {'9' * 5000}", "4300", ""),
        (f"x = {'[' * 5000}{']' * 5000}", "recursion", ""),
        ("thresholds = 1", "thresholds is a number, not a table of numbers", "[thresholds]"),
        ("[thresholds]\norphan_gracious = 5", "[thresholds] knows no 'orphan_gracious'", "orphan_grace?"),
        ('[thresholds]\norphan_grace = "5"', "[thresholds] orphan_grace is a text, not a number", "orphan_grace = 60"),
        ("[thresholds]\norphan_grace = true", "orphan_grace is true, not a number", "orphan_grace = 60"),
        ("[thresholds]\norphan_grace = nan", "orphan_grace is nan, not a number", "orphan_grace = 60"),
        ("[thresholds]\norphan_grace = inf", "orphan_grace is a number that is too large", "orphan_grace = 60"),
        ("[thresholds]\norphan-grace = -1", "orphan-grace is a negative number", "orphan-grace = 60"),
        ("[thresholds]\ndry_passes = 2.5", "dry_passes is a number, not a whole number", "dry_passes = 2"),
        ("[thresholds]\norphan_grace = 5\norphan-grace = 5", "'orphan-grace' twice", "write it once"),
    ],
)
def test_what_is_wrong_is_one_line_with_key_file_and_cure(text: str, says: str, cure: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert says in said
    assert cure in said
    assert "a watch & #1.toml" in said
    assert said.isprintable()
    assert len(said) < 700


@pytest.mark.parametrize("key", ["pd-routing-key", "webhook-url", "heartbeat-url", "interval", "act", "nonsense"])
def test_no_value_is_shown_whatever_key_it_stands_under(key: str, tmp_path: Path) -> None:
    for value in ('["S3CRET"]', '{ S3CRET = "S3CRET" }', '"S3CRET"', '["S3CRET", 1]'):
        assert "S3CRET" not in refusal(tmp_path, f"{key} = {value}")


def test_thresholds_take_numbers_of_either_kind(tmp_path: Path) -> None:
    found = read(tmp_path, "[thresholds]\norphan-grace = 5\nstorm_window = 7.5\nstorm_cycles = 9\n").thresholds
    assert (found.orphan_grace, found.storm_window, found.storm_cycles) == (5, 7.5, 9)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.booleans() | st.integers().map(str) | st.floats().map(repr) | TEXT.map(lambda text: f'"{text}"'),
    lambda inner: st.lists(inner.map(str), max_size=3).map(lambda items: f"[{', '.join(items)}]"),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from(sorted(KINDS)) | TEXT, value=VALUES, in_table=st.booleans())
def test_any_value_is_taken_or_refused_in_one_line(
    key: str, value: object, in_table: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = f"{key} = {str(value).lower() if isinstance(value, bool) else value}"
    assert refusal(tmp_path_factory.getbasetemp(), f"[thresholds]\n{text}" if in_table else text).isprintable()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("nothing", "No such file"),
        ("directory", "not a regular file"),
        ("fifo", "not a regular file"),
        ("loop", "symbolic link"),
        ("zero", "not a regular file"),
        ("sparse", "larger than"),
        ("latin", "utf-8"),
    ],
)
def test_what_is_no_file_of_settings_is_refused_at_once(kind: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind in ("loop", "zero"):
        path.symlink_to(path if kind == "loop" else "/dev/zero")
    elif kind == "sparse":
        with path.open("wb") as stream:
            stream.truncate(1 << 40)
    elif kind == "latin":
        path.write_bytes("user = 'Jörg'".encode("latin-1"))
    with pytest.raises(UsageError, match=says):
        read_config_file(path, KINDS)


def test_a_link_to_the_file_is_as_good_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("act = true")
    (tmp_path / "w.toml").symlink_to("real")
    assert read_config_file(tmp_path / "w.toml", KINDS).options == {"act": True}


def test_every_option_may_stand_in_the_file_as_what_it_takes(tmp_path: Path) -> None:
    for parameter in watch.params:
        kind, name = KINDS[parameter.name or ""], parameter.name or ""
        if name in ("config", "version", "list_detectors", "explain"):
            continue
        number = kind.least or 1
        text = "true" if kind.is_flag else f"{number:g}" if kind.number else f'"{[*kind.choices, "x"][0]}"'
        found = read(tmp_path, f"{name.removeprefix('as_').replace('_', '-')} = {text}").options
        context = click.Context(watch, info_name="nvrx-watch")
        parameter.type_cast_value(context, found[name])


def test_the_command_ends_with_64_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text('interval = "fast"\n')
    argv = [sys.executable, "-m", "nvrx_watch", "1", f"--config={path}"]
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 64
    assert done.stderr.count("\n") == 1
    assert "interval is a text" in done.stderr
