"""What one reading of a chain's files gave. Pure vocabulary; reading/ makes it in a child process."""

from __future__ import annotations

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome, Ending, Hold
from nvrx_chain.records.manifest import ChainManifest
from nvrx_watch.model import Generation


class RunReading(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on disk about one chain; generations in the order of submission (foreign ones: of their job id).

    `open_stamps` are the comments of submissions whose array job id is not on record. `notes` say what was skipped.
    """

    manifest: ChainManifest | Unobserved | None
    generations: tuple[Generation, ...] | Unobserved
    open_stamps: tuple[str, ...] = ()
    iteration: int | Unobserved | None = None
    verdict: ChainOutcome | Unobserved | None = None
    hold: Hold | Unobserved | None = None
    ending: Ending | Unobserved | None = None
    can_write: bool | None = None
    free_bytes: int | None = None
    file_clock_ahead_seconds: float | None = None
    notes: tuple[str, ...] = ()
