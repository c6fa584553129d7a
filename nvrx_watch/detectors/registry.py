"""All detectors, and how they are run over a snapshot: a blind one is skipped, a broken one is reported.

Touches: the log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import msgspec

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_watch.detectors import (
    burning,
    chain_course,
    chain_end,
    handoff,
    nodes,
    not_cancelled,
    observer,
    orphans,
    restarts,
)
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.wording import safe
from nvrx_watch.model import Finding, Severity, Snapshot, Source
from nvrx_watch.plain_text import nearest
from nvrx_watch.thresholds import WatchThresholds

log = logging.getLogger(__name__)

ALL: tuple[Detector, ...] = (
    *orphans.DETECTORS,
    *chain_end.DETECTORS,
    *not_cancelled.DETECTORS,
    *burning.DETECTORS,
    *chain_course.DETECTORS,
    *handoff.DETECTORS,
    *restarts.DETECTORS,
    *nodes.DETECTORS,
    *observer.DETECTORS,
)
"""In the order in which findings, the list and the page show them."""

_DISABLED = "disabled"
_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


class DetectorRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the detectors made of one snapshot. `skipped` says why by name, `broken` how by name.

    A finding of before must not count as gone while its detector is in one of the two.
    """

    findings: tuple[Finding, ...]
    skipped: Mapping[str, str]
    broken: Mapping[str, str]


def find(name: str) -> Detector:
    """The detector of that name. Raises UsageError, with the nearest name, when there is none."""
    names = {one.name: one for one in ALL}
    if name in names:
        return names[name]
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else "--list-detectors lists them"
    raise UsageError("choosing a detector", part=f"there is none named {name[:100]!r}", hint=hint)


def run_detectors(
    snapshot: Snapshot,
    thresholds: WatchThresholds,
    disabled: Collection[str],
    detectors: tuple[Detector, ...] = ALL,
) -> DetectorRun:
    """Run every detector whose sources were observed. Never raises for what a detector does."""
    findings: dict[str, Finding] = {}
    skipped: dict[str, str] = {}
    broken: dict[str, str] = {}
    for detector in detectors:
        why = _DISABLED if detector.name in disabled else _blind(snapshot, detector)
        if why is not None:
            skipped[detector.name] = why
            continue
        try:
            found = tuple(detector.check(snapshot, thresholds))
        except Exception as error:
            # Whatever it is: one broken detector must not blind the others.
            log.exception("a detector broke name=%s", detector.name)
            broken[detector.name] = safe(f"{type(error).__name__}: {error}")
            continue
        for finding in found:
            _keep(findings, finding)
    return DetectorRun(findings=tuple(findings.values()), skipped=skipped, broken=broken)


def _keep(findings: dict[str, Finding], finding: Finding) -> None:
    """One finding per incident: of two with the same key the more severe one."""
    present = findings.get(finding.key)
    if present is None or _RANK[finding.severity] > _RANK[present.severity]:
        findings[finding.key] = finding


def _blind(snapshot: Snapshot, detector: Detector) -> str | None:
    """Why the detector cannot look; None when it can."""
    answers: dict[Source, object] = {
        Source.QUEUE: snapshot.queue,
        Source.ACCOUNTING: snapshot.accounting,
        Source.NODES: snapshot.nodes,
        Source.ITERATION: snapshot.iteration,
    }
    for source in sorted(detector.needs):
        answer = answers.get(source)
        if isinstance(answer, Unobserved):
            return f"{source.value}: {answer.reason}"
        if source in snapshot.sources.unobserved:
            return f"{source.value}: {snapshot.sources.unobserved[source]}"
        # Without accounting the rows are scontrol's: fewer, and true.
        if source in snapshot.sources.unavailable and source is not Source.ACCOUNTING:
            return f"{source.value}: {snapshot.sources.unavailable[source]}"
    return None
