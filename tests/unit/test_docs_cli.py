"""Every command, option, default and variable of nvrx-chain stands in docs/cli.md, in the section of its command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

from nvrx_chain.cli import cli
from nvrx_chain.doctor.checks import CHECKS
from nvrx_chain.doctor.model import Line, Report
from nvrx_chain.errors import ExitCode, Unobserved
from nvrx_chain.ops.cancel import CancelReport
from nvrx_chain.ops.ending import EndingReport
from nvrx_chain.ops.exclude import ExcludeReport
from nvrx_chain.ops.hold import HoldReport
from nvrx_chain.ops.listing import ChainList, ListedChain
from nvrx_chain.ops.prune import PruneReport
from nvrx_chain.ops.status import ChainState, ChainStatus, GenerationState, GenerationStatus
from nvrx_chain.ops.waiting import WaitReport
from nvrx_chain.submit.extend import ExtendResult
from tests.unit.doctor.build import make_evidence, make_visit

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
NAME = "nvrx-chain"
_NOTED = re.compile(r"\[(default|env): (.*?)\]")


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that people type, with the words that name it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, f"{' '.join((*path, name))} is listed and not there"
            yield from walk(found, (*path, name))


def section(heading: str, page: str = PAGE) -> str | None:
    """The text below a heading, up to the next one of its rank or a higher one."""
    match = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", page, re.MULTILINE | re.DOTALL)
    if match is None:
        return None
    if match[1] == "##":
        return match[2]
    return re.split(r"^### ", match[2], flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in text.split("\n") if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def documented(path: tuple[str, ...]) -> str:
    """What the page says of one command: its own section, or its row in the section of its group."""
    own = section(" ".join(path))
    group = section(" ".join(path[:-1])) or ""
    # What all commands of a group share stands once, before the first of them.
    shared = group.split("\n### ")[0] if len(path) > 2 else ""
    if own is not None:
        return own if len(path) == 1 else own + shared
    found = [row for row in rows(group) if re.match(rf"`{re.escape(path[-1])}[ `]", row[0])]
    assert len(found) == 1, f"docs/cli.md has no section and no row for {' '.join(path)}"
    return "| " + " | ".join(found[0]) + " |\n" + shared


def commands() -> list[tuple[tuple[str, ...], click.Command]]:
    return list(walk(cli, (NAME,)))


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def notes(option: click.Option) -> dict[str, list[str]]:
    """Defaults and environment variables that the help page of an option names."""
    found: dict[str, list[str]] = {"default": [], "env": []}
    for kind, text in _NOTED.findall(option.help or ""):
        found[kind] += text.split(", ") if kind == "env" else [text]
    if isinstance(option.show_default, str):
        found["default"].append(option.show_default.strip("()"))
    elif option.show_default and option.default is not None:
        found["default"].append(str(option.default))
    variables = option.envvar
    found["env"] += [variables] if isinstance(variables, str) else list(variables or ())
    return found


def row_of(option: click.Option, text: str) -> str:
    """The row that an option has, or the row that mentions it."""
    name = option.opts[0]
    own = [row for row in rows(text) if re.search(rf"`{re.escape(name)}[ `=]", row[0])]
    other = [row for row in rows(text) if f"`{name}" in " ".join(row)]
    found = own or other
    assert found, f"{name} has no row"
    return " | ".join(found[0])


def describe(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else ""


@pytest.mark.parametrize(("path", "command"), commands(), ids=describe)
def test_a_command_has_help_and_a_place_on_the_page(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help, f"{' '.join(path)} has no help text"
    assert documented(path)


@pytest.mark.parametrize(("path", "command"), commands(), ids=describe)
def test_every_option_has_help_and_is_on_the_page(path: tuple[str, ...], command: click.Command) -> None:
    # Only tables count: that a sentence mentions an option tells nobody what it does.
    text = "\n".join(" | ".join(row) for row in rows(documented(path)))
    for option in options(command):
        assert option.help, f"{' '.join(path)} {option.opts[0]} has no help text"
        for name in (*option.opts, *option.secondary_opts):
            assert re.search(rf"`{re.escape(name)}[ `=]", text), f"docs/cli.md: {' '.join(path)} lacks {name}"


@pytest.mark.parametrize(("path", "command"), commands(), ids=describe)
def test_defaults_and_variables_are_those_of_the_command(path: tuple[str, ...], command: click.Command) -> None:
    text = documented(path)
    for option in options(command):
        for kind, values in notes(option).items():
            for value in values:
                row = row_of(option, text)
                assert value in row, f"docs/cli.md: {' '.join(path)} {option.opts[0]} lacks its {kind} {value}"


@pytest.mark.parametrize(("path", "command"), commands(), ids=describe)
def test_every_argument_is_on_the_page(path: tuple[str, ...], command: click.Command) -> None:
    text = documented(path)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            words = re.findall(r"[A-Z_]{2,}", parameter.make_metavar(click.Context(command)))
            assert words
            assert all(word in text for word in words), f"docs/cli.md: {' '.join(path)} lacks {words}"


def test_the_page_has_no_command_that_is_not_there() -> None:
    known = {" ".join(path) for path, _ in commands()}
    headings = re.findall(rf"^##+ ({NAME}(?: [a-z0-9-]+)*)$", PAGE, re.MULTILINE)
    assert set(headings) <= known
    in_rows = {row[0].strip("`").split()[0] for row in rows(section("Faults") or "")[1:]}
    assert in_rows <= {path[-1] for path, _ in commands() if path[1:2] == ("sandbox",)}


def test_the_page_has_no_option_that_is_not_there() -> None:
    for path, command in commands():
        own = section(" ".join(path)) if len(path) == 2 and not isinstance(command, click.Group) else None
        known = {name for option in options(command) for name in (*option.opts, *option.secondary_opts)}
        for row in rows(own or ""):
            for name in re.findall(r"^`(--[a-z-]+)", row[0]):
                assert name in known, f"docs/cli.md: {' '.join(path)} has no {name}"


def test_every_exit_code_is_on_the_page() -> None:
    listed = [row[0] for row in rows(section("Exit codes") or "")][1:]
    assert listed == [str(int(code)) for code in ExitCode]


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        (f"{NAME} status", ChainStatus),
        (f"{NAME} status", GenerationStatus),
        (f"{NAME} list", ChainList),
        (f"{NAME} list", ListedChain),
        (f"{NAME} wait", WaitReport),
        (f"{NAME} extend", ExtendResult),
        (f"{NAME} cancel", CancelReport),
        (f"{NAME} cancel", EndingReport),
        (f"{NAME} exclude", ExcludeReport),
        (f"{NAME} release", HoldReport),
        (f"{NAME} doctor", Report),
        (f"{NAME} prune", PruneReport),
    ],
)
def test_every_json_field_is_on_the_page(heading: str, kind: type[msgspec.Struct]) -> None:
    fields = {name for row in rows(section(heading) or "") for name in re.split(r",\s*", row[0])}
    assert set(kind.__struct_fields__) <= fields


def test_every_field_and_every_check_of_the_doctor_is_on_the_page() -> None:
    text = section(f"{NAME} doctor") or ""
    assert all(f"`{name}`" in text for name in Line.__struct_fields__)
    looked = make_evidence(visit=make_visit(), chain=Unobserved("-"))
    alone = make_evidence()
    seen = {line.check for evidence in (looked, alone) for check in CHECKS for line in check(evidence)}
    table = text.split("| Check |", 1)[1].split("| JSON field |")[0]
    assert {row[0] for row in rows(table)} == seen


def test_every_word_of_a_state_is_on_the_page() -> None:
    text = section(f"{NAME} status") or ""
    for state in ChainState:
        assert any(row[0] == state.value for row in rows(text)), state
    of_generations = [row[2] for row in rows(text) if row[0] == "state"][-1]
    for word in GenerationState:
        assert word.value in of_generations, word
