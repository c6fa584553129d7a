"""A name in the JSON of the commands has one type, whichever command prints it, and docs/cli.md has that type."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.doctor.model import Report
from nvrx_chain.ops.cancel import CancelReport
from nvrx_chain.ops.ending import EndingReport
from nvrx_chain.ops.exclude import ExcludeReport
from nvrx_chain.ops.hold import HoldReport
from nvrx_chain.ops.listing import ChainList, ListedChain
from nvrx_chain.ops.prune import PruneReport
from nvrx_chain.ops.status import ChainStatus, GenerationStatus
from nvrx_chain.ops.timeline import ChainTimeline, CycleRecovery
from nvrx_chain.ops.waiting import WaitReport
from nvrx_chain.submit.chain import SubmitResult
from nvrx_chain.submit.extend import ExtendResult
from tests.unit.test_docs_cli import PAGE, rows

REPORTS: tuple[type, ...] = (
    CancelReport,
    ChainList,
    ChainStatus,
    ChainTimeline,
    CycleRecovery,
    EndingReport,
    ExcludeReport,
    ExtendResult,
    GenerationStatus,
    HoldReport,
    ListedChain,
    PruneReport,
    Report,
    SubmitResult,
    WaitReport,
)
WORDS = {"time": "str", "list": "list of object"}
"""As the page writes what JSON has another word for."""


def kind(annotation: object) -> str:
    """The JSON type of a field; null is left out, a field may be absent in one command and never in another."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        (only,) = {kind(one) for one in arguments if one is not type(None)}
        return only
    if origin in (tuple, list):
        return f"list of {kind(arguments[0])}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)):
        return "object"
    assert isinstance(annotation, type), annotation
    if issubclass(annotation, (enum.Enum, datetime.datetime, str, Path)):
        return "str"
    return annotation.__name__


def fields() -> Iterator[tuple[str, str, str]]:
    """(command's report, field, type) of every report."""
    for report in REPORTS:
        known = getattr(report, "__struct_fields__", None) or [one.name for one in dataclasses.fields(report)]
        hints = typing.get_type_hints(report)
        yield from ((report.__name__, name, kind(hints[name])) for name in known)


def documented() -> Iterator[tuple[str, str]]:
    """(field, type) of every row of a table of fields that says one."""
    for table in re.findall(r"^\| (?:JSON field|Field(?: of [^|]*)?) \| Type .*?(?=\n\n|\Z)", PAGE, re.M | re.S):
        for names, said, *_ in rows(table)[1:]:
            for name in re.split(r",\s*", names):
                if said:
                    word = said.removesuffix(" or null")
                    yield name, WORDS.get(word, word)


def test_a_name_has_one_type_in_all_commands() -> None:
    found: dict[str, dict[str, list[str]]] = {}
    for report, name, said in fields():
        found.setdefault(name, {}).setdefault(said, []).append(report)
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}


def test_a_name_has_one_type_on_the_page() -> None:
    found: dict[str, set[str]] = {}
    for name, said in documented():
        found.setdefault(name, set()).add(said)
    assert len(found) > 70
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.__name__)
def test_the_page_has_the_type_that_a_command_prints(report: type) -> None:
    page = dict(documented())
    own = {name: said for name_of_report, name, said in fields() if name_of_report == report.__name__}
    assert {name: page.get(name) for name in own} == own
