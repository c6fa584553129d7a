"""What a detector is: a pure function of a snapshot with the page that docs/detectors.md and `--explain` print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nvrx_watch.model import Finding, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

Check = Callable[[Snapshot, WatchThresholds], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """One detector. `severity` is the highest that it gives; `needs` are the sources without which it is skipped."""

    name: str
    severity: Severity
    needs: frozenset[Source]
    fires: str
    quiet: str
    todo: str
    check: Check
