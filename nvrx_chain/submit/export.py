"""--export: which variables of the submitting shell the job gets, and which values are handed to it out of sight.

Pure. The words are sbatch's own (man sbatch, 22.05 to 26.05), but sbatch is only ever told ALL or NONE: what it is told
stands in its command line, where everybody on the machine and in Slurm's records can read it. Each variable that is
listed is read here, once, and reaches the launchers through a file that only its owner can read. So all generations get
the same values, those that `extend` queues later too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nvrx_chain.errors import UsageError
from nvrx_chain.masking import HIDDEN, mask_assignment
from nvrx_chain.records.manifest import ExportMode
from nvrx_chain.slurm.command import scrubbed_environment

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ITEM = re.compile(r"(?:[^,'\"]|'[^']*'|\"[^\"]*\")+")
_LARGEST_BYTES = 131_071
"""execve(2) takes no longer string, `NAME=` included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What was asked for. `unset` are names that were listed and have no value in this shell."""

    mode: ExportMode = ExportMode.ALL
    variables: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


def parse_export(text: str | None, environ: Mapping[str, str]) -> Export:
    """Read `NONE`, `ALL` or `[ALL,]NAME[=VALUE],...`; None is ALL. Raises UsageError, which names no value."""
    items = _split(text or ExportMode.ALL.value)
    head = items[0].upper()
    if head == ExportMode.NONE.value:
        if len(items) > 1:
            raise UsageError("reading --export: nothing can stand beside NONE", hint="list the variables without it")
        return Export(mode=ExportMode.NONE)
    mode = ExportMode.ALL if head == ExportMode.ALL.value else ExportMode.NONE
    return _collect(mode, items[1:] if mode is ExportMode.ALL else items, environ)


def mask_export(text: str) -> str:
    """The text of the option without its values."""
    try:
        return ",".join(mask_assignment(item) for item in _split(text))
    except UsageError:
        return HIDDEN


def _split(text: str) -> list[str]:
    """The items between commas, but not inside quotes. As with sbatch, quotes around a whole item are taken off."""
    items: list[str] = []
    at = 0
    while True:
        match = _ITEM.match(text, at)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            raise UsageError(
                f"reading --export: item {len(items) + 1} is empty or has an open quote",
                hint="NAME or NAME=VALUE, with commas between; a value with a comma goes in quotes",
            )
        items.append(_bare(match[0]))
        at = match.end()
        if at == len(text):
            return items
        at += 1


def _bare(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]
    return text[1:-1] if is_quoted else text


def _collect(mode: ExportMode, items: list[str], environ: Mapping[str, str]) -> Export:
    variables: dict[str, str] = {}
    unset: list[str] = []
    for number, item in enumerate(items, start=1):
        name, equals, value = item.partition("=")
        _check_name(name, number)
        if not equals:
            if name not in environ:
                unset.append(name)
                continue
            value = environ[name]
        _check_value(name, value)
        variables[name] = value
    return Export(mode=mode, variables=variables, unset=tuple(unset))


def _check_name(name: str, number: int) -> None:
    if not _NAME.fullmatch(name):
        # Not shown: with a comma in a value, what comes after it looks like the next name.
        raise UsageError(
            f"reading --export: item {number} does not begin with the name of a variable",
            hint="a value with a comma goes in quotes: 'NAME=a,b'",
        )
    if name.startswith(("SLURM_", "SPANK_")) or scrubbed_environment({name: ""})[1]:
        raise UsageError(f"reading --export: {name} is Slurm's own", hint="a job gets such variables from Slurm")


def _check_value(name: str, value: str) -> None:
    if any(character in value for character in "\0\n\r"):
        raise UsageError(f"reading --export: the value of {name} has a line break", hint="export it in a --prologue")
    try:
        size = len(f"{name}={value}".encode())
    except UnicodeEncodeError as error:
        raise UsageError(
            f"reading --export: the value of {name} is no text in UTF-8",
            hint="encode it, or put it into a file and name the file",
        ) from error
    if size > _LARGEST_BYTES:
        raise UsageError(
            f"reading --export: the value of {name} is larger than the kernel hands to a program",
            hint="put it into a file, and name the file",
        )
