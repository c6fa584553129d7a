"""What came of one action, before a report is made of it. Pure vocabulary."""

from __future__ import annotations

import msgspec

from nvrx_watch import plain_text
from nvrx_watch.action_model import ActionState

LONGEST_TEXT = 2000
"""The command for the owner may name many tasks."""


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """How an action went: what was asked of Slurm, what a later reading shows as gone, and what it still shows."""

    state: ActionState
    asked: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    still_there: tuple[str, ...] = ()
    why: str = ""


def refused(why: str) -> Deed:
    """Identity or proof did not hold; nothing was done."""
    return Deed(state=ActionState.REFUSED, why=why)


def failed(why: str) -> Deed:
    """Slurm or the run directory could not be asked; nothing was done."""
    return Deed(state=ActionState.FAILED, why=why)


def nothing_left(why: str) -> Deed:
    """There was nothing (any more) to act on."""
    return Deed(state=ActionState.NOTHING_LEFT, why=why)


def would_ask(asked: tuple[str, ...], why: str) -> Deed:
    """A dry run that got as far as the asking."""
    return Deed(state=ActionState.DRY_RUN, asked=asked, why=why)


def plain(text: str) -> str:
    """Text of Slurm, of a file or of a command, made safe for a terminal and a log, and cut to a sane length."""
    return plain_text.plain(text, LONGEST_TEXT)
