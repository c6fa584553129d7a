"""The sinks from settings: what is missing or cannot be read is said at the start. Touches nothing but imports."""

from __future__ import annotations

from collections.abc import Sequence

from nvrx_watch.history_model import DEFAULT_COOLDOWN_SECONDS
from nvrx_watch.sinks.apprise_sink import AppriseSink
from nvrx_watch.sinks.heartbeat import Heartbeat
from nvrx_watch.sinks.http import DEFAULT_TIMEOUT_SECONDS, Http, require_httpx
from nvrx_watch.sinks.log import LogSink
from nvrx_watch.sinks.pagerduty import PAGERDUTY_URL, PagerDutySink
from nvrx_watch.sinks.secret import Secret, web_url
from nvrx_watch.sinks.sink import Sink
from nvrx_watch.sinks.webhook import WebhookSink


def build_sinks(
    *,
    pd_routing_key: str | None = None,
    pd_url: str | None = None,
    webhook_url: str | None = None,
    notify: Sequence[str] = (),
    cooldown_seconds: float = DEFAULT_COOLDOWN_SECONDS,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    with_log: bool = True,
) -> tuple[Sink, ...]:
    """The log, and every sink that has an address. Raises UsageError, which shows no secret."""
    sinks: list[Sink] = [LogSink(cooldown_seconds)] if with_log else []
    http = Http(timeout_seconds)
    if pd_routing_key or webhook_url:
        require_httpx()
    if pd_routing_key:
        url = web_url(pd_url or PAGERDUTY_URL, "the PagerDuty URL")
        sinks.append(PagerDutySink(Secret(pd_routing_key), url, http, cooldown_seconds))
    if webhook_url:
        sinks.append(WebhookSink(web_url(webhook_url, "--webhook-url"), http, cooldown_seconds))
    # The same address twice would be one sink with one memory and two messages.
    sinks.extend(AppriseSink(Secret(address), cooldown_seconds) for address in dict.fromkeys(notify))
    return tuple(sinks)


def build_heartbeat(url: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> Heartbeat:
    """The heartbeat. Raises UsageError, which does not show the URL."""
    require_httpx()
    return Heartbeat(web_url(url, "--heartbeat-url"), Http(timeout_seconds))
