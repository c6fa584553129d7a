"""A Slack-compatible incoming webhook: one text per notice. Touches: the network."""

from __future__ import annotations

import re

from nvrx_watch.history_model import DEFAULT_COOLDOWN_SECONDS, Notice, SinkPolicy
from nvrx_watch.sinks.http import Http, refusal
from nvrx_watch.sinks.secret import Secret, mask
from nvrx_watch.sinks.sink import SinkError
from nvrx_watch.sinks.wording import render_text

_MENTION = re.compile(r"@(?=\w)")


class WebhookSink:
    """Accepted is any 2xx that is no web page: receivers answer `ok`, a portal in between answers its login page."""

    def __init__(self, url: Secret, http: Http, cooldown_seconds: float = DEFAULT_COOLDOWN_SECONDS) -> None:
        self.policy = SinkPolicy(name="webhook", cooldown_seconds=cooldown_seconds)
        self._url = url
        self._http = http

    def send(self, notice: Notice, *, deadline_seconds: float) -> None:
        """Post the text. Raises SinkError."""
        reply = self._http.post(self._url, {"text": render_message(notice)}, deadline_seconds=deadline_seconds)
        if not reply.is_success:
            raise refusal(reply, self._url)
        if reply.content_type == "text/html":
            raise SinkError(f"posting to {mask(self._url)}: a web page answered, not a webhook")


def render_message(notice: Notice) -> str:
    """The text, in which a job name or a path pings nobody: `<!here>` and `@channel` of others are no mentions."""
    text = render_text(notice).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MENTION.sub("@\u200b", text)
