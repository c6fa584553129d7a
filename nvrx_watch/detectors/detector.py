"""What a detector is: a pure function of a snapshot with the page that docs/detectors.md and `--explain` print."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from nvrx_watch.model import Finding, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

Check = Callable[[Snapshot, WatchThresholds], Iterable[Finding]]


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """One detector. `severity` is the highest that it gives; `needs` are the sources without which it is skipped."""

    name: str
    severity: Severity
    needs: frozenset[Source]
    fires: str
    quiet: str
    todo: str
    check: Check
