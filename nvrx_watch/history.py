"""Findings over time: what fires, what has ended, and which sink has to hear what. Pure.

An incident is known by `detector:scope` and resolves after some quiet passes; passes that could not have seen it do not
count. What a sink was told is noted only after it accepted, so a notice that got lost is sent again.

Time here is this machine's wall clock, the only one that a pass from cron shares with the pass before it. A stamp that
lies in the future (the clock was set back) becomes `now`: a cooldown then begins anew, and neither ends nor lasts for
ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from nvrx_chain.clock import format_time, parse_time
from nvrx_watch.history_model import (
    History,
    Incident,
    IncidentState,
    Notice,
    NoticeKind,
    Refusal,
    SinkPolicy,
)
from nvrx_watch.model import Finding, Severity, Subject
from nvrx_watch.plain_text import plain

RESOLVE_PASSES = 2
"""Quiet passes in a row that end an incident."""

FLAP_SECONDS = 1800.0
"""An ended incident that fires again within this time goes on; and its next end is told only after as long a quiet."""

KEEP_RESOLVED_SECONDS = 7 * 86400.0
MAX_INCIDENTS = 500
"""Scopes come from files that anybody may have written: more incidents than this are not remembered."""

MAX_NOTICES_PER_SINK = 25
"""In one pass; the rest is due with the next one. The worst come first."""

FIRST_WAIT_SECONDS = 15.0
LONGEST_WAIT_SECONDS = 300.0
FIRST_LASTING_WAIT_SECONDS = 300.0
LONGEST_LASTING_WAIT_SECONDS = 4 * 3600.0

_LONGEST_KEY = 200
_LONGEST_TITLE = 300
_V = TypeVar("_V")
_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


def incident_key(finding: Finding) -> str:
    """`detector:scope`; an absurdly long or unprintable one is cut and told apart by its hash."""
    key = finding.key
    if len(key) <= _LONGEST_KEY and key.isprintable():
        return key
    digest = hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{plain(key, _LONGEST_KEY - 17)}~{digest}"


def update_history(history: History, findings: Sequence[Finding], *, blind: frozenset[str], now: datetime) -> History:
    """Take in the findings of a pass. `blind`: detectors that were skipped or broke, whose incidents stay as they are.

    A detector that somebody disabled is not blind: its incidents end.
    """
    found = _worst_by_key(findings)
    known: dict[str, Incident] = {}
    for key, remembered in history.incidents.items():
        incident = _without_future(remembered, now)
        finding = found.get(key)
        if finding is not None:
            incident = _seen_again(incident, finding, now)
        elif incident.detector not in blind:
            incident = _not_seen(incident)
        if not _is_forgotten(incident, now):
            known[key] = incident
    new = {key: _seen_first(key, finding, now) for key, finding in found.items() if key not in known}
    incidents, left_out = _within_bounds(known, new)
    return History(
        incidents=incidents,
        last_good_pass_at=_clamped(history.last_good_pass_at, now) if history.last_good_pass_at else None,
        refusals={sink: _refusal_without_future(one, now) for sink, one in history.refusals.items()},
        left_out=left_out,
    )


def end_all(history: History) -> History:
    """The chain itself is over: nothing of it fires any more, and none of it can come back as a flap."""
    ended = {
        key: replace(one, state=IncidentState.RESOLVED, quiet_passes=RESOLVE_PASSES, reopened=0, refused={})
        for key, one in history.incidents.items()
    }
    return replace(history, incidents=ended, left_out=0)


def mark_good_pass(history: History, now: datetime) -> History:
    """Note that a pass saw everything."""
    return replace(history, last_good_pass_at=format_time(now))


def history_notes(history: History) -> tuple[str, ...]:
    """What a person should know about the history itself."""
    if not history.left_out:
        return ()
    return (f"{history.left_out} findings are not remembered and not sent: over {MAX_INCIDENTS} incidents are open",)


def due_notices(
    history: History, findings: Sequence[Finding], subject: Subject, sinks: Sequence[SinkPolicy], now: datetime
) -> tuple[tuple[str, Notice], ...]:
    """Who has to hear what now, as (name of the sink, notice), the worst first. `history` is that of this pass.

    A trigger that the sink never accepted, or accepted with a lower severity, or whose resolve it accepted since, is
    due at once; a repeat after the cooldown; a resolve once, and only where a trigger was accepted.
    """
    found = _worst_by_key(findings)
    due: list[tuple[str, Notice]] = []
    for sink in sinks:
        if _is_waiting(history.refusals.get(sink.name), now):
            continue
        notices = [
            notice
            for incident in history.incidents.values()
            if not _is_waiting(incident.refused.get(sink.name), now)
            and (notice := _notice_for(incident, found.get(incident.key), subject, sink, now)) is not None
        ]
        notices.sort(key=_urgency)
        due.extend((sink.name, notice) for notice in notices[:MAX_NOTICES_PER_SINK])
    return tuple(due)


def mark_sent(history: History, sink: str, notice: Notice, now: datetime) -> History:
    """The sink accepted the notice. To be called then only."""
    incident = history.incidents.get(notice.incident.key, notice.incident)
    stamp = format_time(now)
    refused = _without(incident.refused, sink)
    if notice.kind is NoticeKind.RESOLVE:
        told = replace(incident, resolve_sent={**incident.resolve_sent, sink: stamp}, refused=refused)
    else:
        told = replace(
            incident,
            sent={**incident.sent, sink: stamp},
            sent_severity={**incident.sent_severity, sink: notice.incident.severity},
            resolve_sent=_without(incident.resolve_sent, sink),
            earlier=tuple(name for name in incident.earlier if name != sink),
            refused=refused,
        )
    return replace(
        history,
        incidents={**history.incidents, incident.key: told},
        refusals=_without(history.refusals, sink),
    )


def mark_refused(
    history: History,
    sink: str,
    notice: Notice,
    now: datetime,
    *,
    lasting: bool,
    retry_after_seconds: float | None = None,
) -> History:
    """The sink did not take the notice. `lasting`: it will not take this very notice later either.

    A lasting refusal leaves the incident alone with that sink for a while, any other the whole sink. Both waits double.
    """
    if not lasting:
        before = history.refusals.get(sink)
        refusal = _refused_again(before, FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, now)
        if retry_after_seconds is not None:
            # A sink that asks for more than the longest wait would silence a page for hours.
            wanted = min(max(0.0, retry_after_seconds), LONGEST_WAIT_SECONDS)
            refusal = replace(refusal, wait_seconds=max(refusal.wait_seconds, wanted))
        return replace(history, refusals={**history.refusals, sink: refusal})
    incident = history.incidents.get(notice.incident.key, notice.incident)
    refusal = _refused_again(incident.refused.get(sink), FIRST_LASTING_WAIT_SECONDS, LONGEST_LASTING_WAIT_SECONDS, now)
    refused = replace(incident, refused={**incident.refused, sink: refusal})
    return replace(history, incidents={**history.incidents, incident.key: refused})


def _notice_for(
    incident: Incident, finding: Finding | None, subject: Subject, sink: SinkPolicy, now: datetime
) -> Notice | None:
    is_open = sink.name in incident.sent and sink.name not in incident.resolve_sent
    if incident.state is IncidentState.RESOLVED:
        if not sink.sends_resolve or not is_open or _may_flap(incident, now):
            return None
        return Notice(kind=NoticeKind.RESOLVE, subject=subject, incident=incident, finding=None)
    if finding is None or _RANK[incident.severity] < _RANK[sink.minimum_severity]:
        return None
    if is_open and sink.name not in incident.earlier:
        told = incident.sent_severity.get(sink.name, Severity.INFO)
        is_worse = _RANK[incident.severity] > _RANK[told]
        repeated = not is_worse
        if repeated and _elapsed(incident.sent[sink.name], now) < sink.cooldown_seconds:
            return None
    else:
        repeated = False
    return Notice(kind=NoticeKind.TRIGGER, subject=subject, incident=incident, finding=finding, repeated=repeated)


def _may_flap(incident: Incident, now: datetime) -> bool:
    # One that came back once may do so again: a resolve each time would page each time.
    return incident.reopened > 0 and _elapsed(incident.last_seen_at, now) < FLAP_SECONDS


def _urgency(notice: Notice) -> tuple[int, bool, str, str]:
    incident = notice.incident
    return -_RANK[incident.severity], notice.kind is NoticeKind.RESOLVE, incident.first_seen_at, incident.key


def _worst_by_key(findings: Sequence[Finding]) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for finding in findings:
        key = incident_key(finding)
        if key not in found or _RANK[finding.severity] > _RANK[found[key].severity]:
            found[key] = finding
    return found


def _seen_first(key: str, finding: Finding, now: datetime) -> Incident:
    stamp = format_time(now)
    return Incident(
        key=key,
        detector=finding.detector,
        severity=finding.severity,
        title=plain(finding.title, _LONGEST_TITLE),
        state=IncidentState.FIRING,
        first_seen_at=stamp,
        last_seen_at=stamp,
    )


def _seen_again(incident: Incident, finding: Finding, now: datetime) -> Incident:
    is_new = incident.state is IncidentState.RESOLVED and _elapsed(incident.last_seen_at, now) > FLAP_SECONDS
    came_back = incident.state is IncidentState.RESOLVED
    is_worse = _RANK[finding.severity] > _RANK[incident.severity]
    fresh = _seen_first(incident.key, finding, now)
    if is_new:
        # A sink that never took the resolve still has the earlier occurrence open: it is owed one end for both.
        still_open = {sink: at for sink, at in incident.sent.items() if sink not in incident.resolve_sent}
        severities = {sink: one for sink, one in incident.sent_severity.items() if sink in still_open}
        return replace(fresh, sent=still_open, sent_severity=severities, earlier=tuple(still_open))
    return replace(
        incident,
        severity=fresh.severity,
        title=fresh.title,
        state=IncidentState.FIRING,
        last_seen_at=fresh.last_seen_at,
        quiet_passes=0,
        reopened=incident.reopened + 1 if came_back else incident.reopened,
        # What was refused for good is not what is to be said now.
        refused={} if came_back or is_worse else incident.refused,
    )


def _not_seen(incident: Incident) -> Incident:
    if incident.state is IncidentState.RESOLVED:
        return incident
    quiet = incident.quiet_passes + 1
    if quiet < RESOLVE_PASSES:
        return replace(incident, quiet_passes=quiet)
    return replace(incident, quiet_passes=quiet, state=IncidentState.RESOLVED, refused={})


def _is_forgotten(incident: Incident, now: datetime) -> bool:
    return incident.state is IncidentState.RESOLVED and _elapsed(incident.last_seen_at, now) > KEEP_RESOLVED_SECONDS


def _within_bounds(known: dict[str, Incident], new: dict[str, Incident]) -> tuple[dict[str, Incident], int]:
    if len(known) + len(new) <= MAX_INCIDENTS:
        return {**known, **new}, 0
    ranked = sorted(
        ({**known, **new}).values(),
        # The known ones first: who is sent away and comes back would be announced each time.
        key=lambda one: (
            one.state is IncidentState.RESOLVED,
            -_RANK[one.severity],
            one.key not in known,
            one.first_seen_at,
            one.key,
        ),
    )
    kept, dropped = ranked[:MAX_INCIDENTS], ranked[MAX_INCIDENTS:]
    left_out = sum(one.state is IncidentState.FIRING for one in dropped)
    return {one.key: one for one in kept}, left_out


def _refused_again(before: Refusal | None, first: float, longest: float, now: datetime) -> Refusal:
    times = min(before.times + 1, 20) if before is not None else 1
    wait = min(longest, first * 2.0 ** (max(1, times) - 1))
    return Refusal(times=max(1, times), at=format_time(now), wait_seconds=wait)


def _is_waiting(refusal: Refusal | None, now: datetime) -> bool:
    if refusal is None:
        return False
    return _elapsed(refusal.at, now) < min(refusal.wait_seconds, LONGEST_LASTING_WAIT_SECONDS)


def _without_future(incident: Incident, now: datetime) -> Incident:
    return replace(
        incident,
        first_seen_at=_clamped(incident.first_seen_at, now),
        last_seen_at=_clamped(incident.last_seen_at, now),
        sent={sink: _clamped(at, now) for sink, at in incident.sent.items()},
        resolve_sent={sink: _clamped(at, now) for sink, at in incident.resolve_sent.items()},
        refused={sink: _refusal_without_future(one, now) for sink, one in incident.refused.items()},
    )


def _refusal_without_future(refusal: Refusal, now: datetime) -> Refusal:
    return replace(refusal, at=_clamped(refusal.at, now))


def _clamped(stamp: str, now: datetime) -> str:
    at = parse_time(stamp)
    return stamp if at is not None and at <= now else format_time(now)


def _elapsed(stamp: str, now: datetime) -> float:
    at = parse_time(stamp)
    return max(0.0, (now - at).total_seconds()) if at is not None else 0.0


def _without(values: Mapping[str, _V], name: str) -> dict[str, _V]:
    return {key: value for key, value in values.items() if key != name}
