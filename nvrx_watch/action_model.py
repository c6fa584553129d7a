"""What came of an action, and by what right it was tried. Pure vocabulary."""

from __future__ import annotations

import enum

import msgspec

from nvrx_watch.model import ActionKind, ActionRequest


class ActionState(str, enum.Enum):
    """How an action went, as the last reading of the queue shows it."""

    DONE = "done"
    """A reading of the queue shows that nothing of what was asked for is left."""
    NOTHING_LEFT = "nothing_left"
    """The queue read anew had nothing (any more) to act on."""
    INCOMPLETE = "incomplete"
    """Something is still there."""
    OBSERVE_ONLY = "observe_only"
    """`--act` or `--allow` was not given."""
    NOT_OWNER = "not_owner"
    """The jobs belong to somebody else; the command for the owner is printed."""
    DRY_RUN = "dry_run"
    REFUSED = "refused"
    """The identity or the proof did not hold; nothing was done."""
    FAILED = "failed"
    """Slurm could not be asked."""


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """Who watches, and what he allowed."""

    user: str
    uid: int
    act: bool = False
    allowed: frozenset[ActionKind] = frozenset()
    as_operator: bool = False
    dry_run: bool = False


class ActionReport(msgspec.Struct, frozen=True, kw_only=True):
    """One action. Ids are task specs such as `123_4`."""

    detector: str
    request: ActionRequest
    state: ActionState
    asked: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    still_there: tuple[str, ...] = ()
    why: str = ""
