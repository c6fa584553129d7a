"""PagerDuty, Events API v2: trigger and resolve under one stable key, so two watchers page once.

Touches: the network.
"""

from __future__ import annotations

import hashlib
import socket
from typing import Any

from nvrx_watch.history_model import DEFAULT_COOLDOWN_SECONDS, Notice, NoticeKind, SinkPolicy
from nvrx_watch.model import Severity
from nvrx_watch.plain_text import plain
from nvrx_watch.sinks.http import Http, refusal
from nvrx_watch.sinks.secret import Secret
from nvrx_watch.sinks.sink import SinkError
from nvrx_watch.sinks.wording import render_details, render_summary

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
LONGEST_KEY = 255
LONGEST_SUMMARY = 1024
_ACCEPTED = 202


class PagerDutySink:
    """Accepted is status 202 and nothing else."""

    def __init__(
        self, routing_key: Secret, url: Secret, http: Http, cooldown_seconds: float = DEFAULT_COOLDOWN_SECONDS
    ) -> None:
        self.policy = SinkPolicy(name="pagerduty", cooldown_seconds=cooldown_seconds)
        self._routing_key = routing_key
        self._url = url
        self._http = http

    def send(self, notice: Notice, *, deadline_seconds: float) -> None:
        """Enqueue the event. Raises SinkError."""
        event = {"routing_key": self._routing_key.reveal(), **render_event(notice, socket.gethostname())}
        reply = self._http.post(self._url, event, deadline_seconds=deadline_seconds, hide=self._routing_key)
        if reply.status == _ACCEPTED:
            return
        if reply.is_success:
            # A portal in between answers 200 to everything.
            raise SinkError(f"paging: status {reply.status} is not PagerDuty's 202")
        raise refusal(reply, self._url)


def render_event(notice: Notice, host: str) -> dict[str, Any]:
    """The event without its routing key (Events API v2, "Send an alert event")."""
    subject, incident = notice.subject, notice.incident
    event: dict[str, Any] = {
        "event_action": "resolve" if notice.kind is NoticeKind.RESOLVE else "trigger",
        "dedup_key": render_dedup_key(notice.dedup_key),
    }
    if notice.kind is NoticeKind.RESOLVE:
        return event
    event["client"] = "nvrx-watch"
    event["payload"] = {
        "summary": render_summary(notice, LONGEST_SUMMARY),
        "source": plain(subject.cluster or host, 200),
        "severity": _SEVERITY[incident.severity],
        "component": plain(subject.name, 200),
        "group": plain(subject.user, 200),
        "class": plain(incident.detector, 200),
        "custom_details": {
            "lines": list(render_details(notice)),
            "chain": plain(subject.key, 200),
            "first_seen_at": plain(incident.first_seen_at, 40),
            "watched_from": plain(host, 200),
        },
    }
    return event


def render_dedup_key(key: str) -> str:
    """The key as it is where PagerDuty takes it, else its hash: cut keys would fall together."""
    if len(key) <= LONGEST_KEY and key.isprintable():
        return key
    return "nvrx-watch/" + hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()


_SEVERITY = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "critical"}
