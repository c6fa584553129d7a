"""docs/watch.md has every option, every exit code and every action, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from nvrx_watch.cli import BAD_USAGE, ENVIRONMENT_PREFIX, watch
from nvrx_watch.model import ActionKind
from nvrx_watch.run_pass import CLEAN, CRITICAL, DEGRADED

PAGE = (Path(__file__).parents[3] / "docs" / "watch.md").read_text()


def table(heading: str) -> list[list[str]]:
    text = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


OPTIONS = [parameter for parameter in watch.params if isinstance(parameter, click.Option)]


def test_the_page_lists_every_option_and_no_other() -> None:
    listed = {word for row in table("Options") for word in re.findall(r"--[a-z-]+", row[0])}
    assert listed == {name for option in OPTIONS for name in option.opts if name.startswith("--")} | {"--help"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_default_is_the_one_that_the_page_says(option: click.Option) -> None:
    (row,) = [row for row in table("Options") if f"`{option.opts[-1]}`" in row[0] or f"`{option.opts[0]}`" in row[0]]
    if option.show_default:
        default = option.default
        text = f"{default:.0f}" if isinstance(default, float) else str(default)
        assert row[1].strip("`") == text
    elif option.is_flag and option.name not in ("version", "list_detectors"):
        assert row[1] == "off"


def test_every_option_reads_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    context = click.Context(watch, auto_envvar_prefix=ENVIRONMENT_PREFIX, info_name="nvrx-watch")
    for option in OPTIONS:
        flag = next(word for word in option.opts if word.startswith("--"))
        name = f"{ENVIRONMENT_PREFIX}_{flag[2:].replace('-', '_').upper()}"
        monkeypatch.setenv(name, "1")
        assert option.resolve_envvar_value(context) == "1", name


def test_the_exit_codes_are_those_of_the_code() -> None:
    assert [int(row[0]) for row in table("Exit codes")] == [CLEAN, DEGRADED, CRITICAL, BAD_USAGE]


def test_every_action_is_listed_with_what_it_needs() -> None:
    rows = {row[0].strip("`"): row[1] for row in table("Actions")}
    assert set(rows) == {kind.value for kind in ActionKind}
    for kind in ActionKind:
        allowed = "" if kind is ActionKind.CANCEL_PENDING else f" --allow {kind.value}"
        assert rows[kind.value] == f"`--act{allowed}`"
