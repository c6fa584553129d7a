"""Output of one record a line and one separator between its columns (squeue, sacct, sinfo). Pure.

People choose job names and comments, newlines and separators included. Free text stands in the last columns, so that
it can damage nothing but itself, and `unguessable_separator` keeps a name from making up a row of another job.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Records as column name to text, and the lines that are no record: report them, never decide by them."""

    records: tuple[Mapping[str, str], ...]
    junk: tuple[str, ...]


def unguessable_separator() -> str:
    """A separator that no job name can contain, because it did not exist when the name was given."""
    return f"\x1f{secrets.token_hex(4)}\x1f"


def split_rows(text: str, columns: Sequence[str], separator: str) -> Rows:
    """Cut the text into records. Blank lines and the `CLUSTER: x` lines of `-M` are neither record nor junk."""
    cut: list[list[str]] = []
    junk: list[str] = []
    for line in text.split("\n"):
        if not line.strip() or line.startswith("CLUSTER: "):
            continue
        cells = line.split(separator, len(columns) - 1)
        if len(cells) == len(columns):
            cut.append(cells)
            continue
        junk.append(line)
        if len(cells) == 1 and cut:
            # The rest of a name that has a newline in it: without it, the name would look like another one.
            cut[-1][-1] += f"\n{line}"
    return Rows(records=tuple(dict(zip(columns, cells, strict=True)) for cells in cut), junk=tuple(junk))
