"""A row of the screen: its text, and how long it is kept when the terminal is low. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from nvrx_watch.ui.cells import Span, Spans

LABEL_WIDTH = 11
NARROW = 60
"""Under so many columns there is no room for a second thing on a line."""


class Rank(enum.IntEnum):
    """What goes last when height is short, first to last."""

    TITLE = 0
    ITERATION = 1
    FINDINGS = 2
    BLIND = 3
    WORST_FINDING = 4
    HOLD = 5
    CHAIN = 6
    FIRST_FINDINGS = 7
    TASKS = 8
    WALL = 9
    CYCLES = 10
    FIRST_ACTION = 11
    MORE_ITERATION = 12
    MORE_HOLD = 13
    ACTIVE = 14
    SPARES = 15
    BARS = 16
    MORE_FINDINGS = 17
    MORE_BLIND = 18
    STANDBY = 19
    MORE_CHAIN = 20
    DIRECTORY = 21
    MORE_ACTIONS = 22
    NOTES = 23
    COMMANDS = 24
    ALL_FINDINGS = 25
    ADVICE = 26
    BLANK = 27


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line; `rank` says when it goes. `continues`: when this one goes, the row above is marked as cut."""

    rank: Rank
    spans: Spans
    is_finding: bool = False
    continues: bool = False


def labelled(
    label: str, lines: Sequence[Spans], first: Rank, more: Rank | None = None, style: str = "dim"
) -> list[Row]:
    """Rows with the label before the first; the further ones have the rank `more`."""
    return [
        Row(
            rank=first if not number or more is None else more,
            continues=number > 0,
            spans=(Span(f"{label if not number else '':<{LABEL_WIDTH}}", style), *line),
        )
        for number, line in enumerate(lines)
    ]


def plain(text: str, style: str = "") -> Spans:
    """A line of one piece."""
    return (Span(text, style),)
