"""The log as a sink: one line per trigger and resolve. Touches: logging."""

from __future__ import annotations

import logging

from nvrx_watch.history_model import DEFAULT_COOLDOWN_SECONDS, Notice, NoticeKind, SinkPolicy
from nvrx_watch.model import Severity
from nvrx_watch.plain_text import plain
from nvrx_watch.sinks.sink import LOG_NAME
from nvrx_watch.sinks.wording import render_summary

log = logging.getLogger(__name__)

_LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.ERROR}


class LogSink:
    """Information included: who does not want it sets the level."""

    def __init__(self, cooldown_seconds: float = DEFAULT_COOLDOWN_SECONDS) -> None:
        self.policy = SinkPolicy(name=LOG_NAME, minimum_severity=Severity.INFO, cooldown_seconds=cooldown_seconds)

    def send(self, notice: Notice, *, deadline_seconds: float) -> None:
        """Write the line."""
        if notice.kind is NoticeKind.RESOLVE:
            level, word = logging.INFO, "an incident has ended"
        else:
            level, word = _LEVELS[notice.incident.severity], "an incident"
        log.log(
            level,
            "%s chain=%s key=%s severity=%s text=%s",
            word,
            plain(notice.subject.key, 200),
            plain(notice.incident.key, 300),
            notice.incident.severity.value,
            render_summary(notice),
        )
