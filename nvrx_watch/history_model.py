"""What a watcher remembers of findings, and what it tells the sinks. Pure vocabulary."""

from __future__ import annotations

import enum

import msgspec

from nvrx_watch.model import Finding, Severity, Subject

DEFAULT_COOLDOWN_SECONDS = 4 * 3600.0


class IncidentState(str, enum.Enum):
    FIRING = "firing"
    RESOLVED = "resolved"


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A sink did not take a notice: how often in a row, when last, and for how long it is left alone after that."""

    times: int
    at: str
    wait_seconds: float


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One finding over time. Times are ISO-8601 in UTC.

    `quiet_passes`: passes in a row that could have seen it and did not; it is resolved after `RESOLVE_PASSES` of them.
    `sent` has, per sink, when it last accepted the trigger; `sent_severity` with which severity; `resolve_sent` when
    it accepted the resolve of that trigger. `earlier` names the sinks whose last trigger was for an occurrence before
    this one. `reopened`: how often it came back within `FLAP_SECONDS`. `refused`: lasting refusals of this incident.
    """

    key: str
    detector: str
    severity: Severity
    title: str
    state: IncidentState
    first_seen_at: str
    last_seen_at: str
    quiet_passes: int = 0
    sent: dict[str, str] = {}
    resolve_sent: dict[str, str] = {}
    sent_severity: dict[str, Severity] = {}
    earlier: tuple[str, ...] = ()
    reopened: int = 0
    refused: dict[str, Refusal] = {}


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All incidents of one subject by key, and when a pass last saw everything.

    `refusals` has the sinks that could not be reached or were overloaded; `left_out` counts the findings of the last
    pass that are not among the incidents because there are too many.
    """

    incidents: dict[str, Incident] = {}
    last_good_pass_at: str | None = None
    refusals: dict[str, Refusal] = {}
    left_out: int = 0


class NoticeKind(str, enum.Enum):
    TRIGGER = "trigger"
    RESOLVE = "resolve"


class SinkPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink wants to hear. Its name stands in state files: it stays the same over restarts."""

    name: str
    minimum_severity: Severity = Severity.WARNING
    sends_resolve: bool = True
    cooldown_seconds: float = DEFAULT_COOLDOWN_SECONDS


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One message to one sink. `finding` is None for a resolve; `repeated`: the sink had it before."""

    kind: NoticeKind
    subject: Subject
    incident: Incident
    finding: Finding | None
    repeated: bool = False

    @property
    def dedup_key(self) -> str:
        """Stable over passes, hosts and restarts of the watcher."""
        return f"nvrx-watch/{self.subject.key}/{self.incident.key}"
