"""docs/protocol.md says what the code does: codes, words, actions, files, fields, thresholds."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.errors import ExitCode
from nvrx_chain.generation.closing import EXIT_CODES
from nvrx_chain.records import control, manifest
from nvrx_chain.records.outcome import BRAKE_COUNTS, TEARDOWN, Outcome, TeardownAction, Verdict

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()

STAMP = {"schema", "array_job_id", "array_task_id", "restart_count", "host", "boot_id", "pid", "pid_started_at"}


def rows_under(heading: str, header: str) -> list[list[str]]:
    """The cells of the table that starts with `header` below `heading`."""
    section = TEXT.split(f"\n{heading}\n", 1)[1]
    section = re.split(r"\n#{1,3} ", section, maxsplit=1)[0]
    lines = section.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(header))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_exit_codes_are_those_of_the_code() -> None:
    documented = {(int(row[0]), row[1]) for row in rows_under("## Exit codes", "| Code")}
    assert documented == {(int(code), code.name) for code in ExitCode}


def test_task_zero_exits_as_documented() -> None:
    documented = {row[0]: int(row[1]) for row in rows_under("## Exit codes", "| Outcome")}
    assert documented == {outcome.value: int(code) for outcome, code in EXIT_CODES.items()}


def test_outcome_words_actions_and_brake_are_those_of_the_code() -> None:
    rows = rows_under("## Outcome words of a generation", "| Word")
    assert {row[0]: row[2] for row in rows} == {outcome.value: action.value for outcome, action in TEARDOWN.items()}
    assert {row[0] for row in rows if row[3] == "yes"} == {outcome.value for outcome in BRAKE_COUNTS}


def test_every_outcome_has_an_action_and_an_exit_code() -> None:
    assert set(TEARDOWN) == set(EXIT_CODES) == set(Outcome)


def test_actions_and_verdicts_are_those_of_the_code() -> None:
    actions = {row[0] for row in rows_under("## Outcome words of a generation", "| TeardownAction")}
    assert actions == {action.value for action in TeardownAction}
    verdicts = {row[0] for row in rows_under("## Verdict words of a chain", "| Word")}
    assert verdicts == {verdict.value for verdict in Verdict}


def documented_structs() -> list[tuple[str, str]]:
    sections = re.findall(r"\n### (\S+)\n(.*?)(?=\n#{2,3} |\Z)", TEXT, re.DOTALL)
    found = []
    for heading, body in sections:
        name = re.search(r"`(\w+)`\.\n\n\|", body)
        if name:
            found.append((heading, name.group(1)))
    return found


def test_every_record_has_a_section() -> None:
    structs = {
        name
        for module in (control, manifest)
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, control.Record)
        and value not in (control.Record, control.ControlRecord)
    }
    assert {name for _, name in documented_structs()} == structs


@pytest.mark.parametrize(("heading", "name"), documented_structs())
def test_the_fields_of_a_file_are_those_of_its_struct(heading: str, name: str) -> None:
    struct = getattr(control, name, None) or getattr(manifest, name)
    documented = {row[0] for row in rows_under(f"### {heading}", "| Field")}
    assert documented == {field.name for field in msgspec.structs.fields(struct)} - STAMP | (
        {"array_job_id"} & documented
    )


def test_thresholds_and_their_defaults_are_those_of_the_code() -> None:
    documented = {row[0]: float(row[1]) for row in rows_under("## Thresholds", "| Name")}
    assert documented == {field.name: field.default for field in msgspec.structs.fields(manifest.Thresholds)}
