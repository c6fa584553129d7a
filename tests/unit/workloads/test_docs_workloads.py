"""docs/workloads.md says every option with its default, every event and every field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvrx_chain.workloads.events import Ending, Event, EventKind
from nvrx_chain.workloads.faults import FaultKind
from nvrx_chain.workloads.options import parse_options

DOCS = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text()


def first_column() -> set[str]:
    """The words in backquotes in the first cells of all tables."""
    cells = re.findall(r"^\| ([^|]*(?:\\\|[^|]*)*) \|", DOCS, flags=re.MULTILINE)
    return {word for cell in cells for quoted in re.findall(r"`([^`]*)`", cell) for word in quoted.split()}


def test_every_option_is_documented_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"])
    options = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, flags=re.MULTILINE)) - {"--help"}
    assert len(options) > 20
    assert {word for word in first_column() if word.startswith("--")} == options


def test_every_default_is_that_of_the_program() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)(?: (?:\\\||[^|`])*)?` \| ([^|]*) \|", DOCS, flags=re.MULTILINE)
    assert len(rows) > 15
    options = parse_options([])
    for name, documented in rows:
        field = {"collective-timeout": "collective_timeout_seconds", "fault": "faults"}.get(
            name, name.replace("-", "_")
        )
        if field == "untied_head":
            value: object = not options.model.tied_head
        else:
            value = getattr(options.model if hasattr(options.model, field) else options, field)
        shown = {"none": {"None", "()"}, "off": {"False"}}.get(documented, {documented.strip("`")})
        assert str(value).removesuffix(".0") in shown, name


def test_every_event_and_field_is_documented() -> None:
    named = first_column()
    assert {kind.value for kind in EventKind} <= named
    assert set(Event.__struct_fields__) <= named


def test_every_ending_and_kind_of_fault_is_documented() -> None:
    assert all(f"`{ending.value}`" in DOCS for ending in Ending)
    assert all(f"`kind={kind.value}" in DOCS for kind in FaultKind)
