"""The heartbeat: a GET that tells a dead man's switch that a pass could see. Touches: the network.

A watcher that is blind or dead sends none, and the other side raises the alarm.
"""

from __future__ import annotations

from nvrx_watch.hang_guard import HangGuard, Hangs
from nvrx_watch.sinks.http import Http, refusal
from nvrx_watch.sinks.secret import Secret
from nvrx_watch.sinks.sink import SinkError

DEFAULT_DEADLINE_SECONDS = 10.0


class Heartbeat:
    """One URL that is pinged."""

    def __init__(self, url: Secret, http: Http) -> None:
        self._url = url
        self._http = http
        self._guard = HangGuard("pinging the heartbeat URL")

    def ping(self, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
        """Ping once. Raises SinkError, after the deadline at the latest."""
        try:
            reply = self._guard.run(
                lambda: self._http.get(self._url, deadline_seconds=deadline_seconds), deadline_seconds
            )
        except Hangs as error:
            raise SinkError(error.message) from None
        if not reply.is_success:
            raise refusal(reply, self._url)


def ping(url: Secret, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
    """Ping a URL once, without keeping anything. Raises SinkError."""
    http = Http(deadline_seconds)
    try:
        Heartbeat(url, http).ping(deadline_seconds)
    finally:
        http.close()
