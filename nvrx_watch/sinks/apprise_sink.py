"""Any service that the library apprise knows, one sink per address. Touches: the network.

apprise is optional and slow to import; it is imported only when an address was given.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from typing import Any

from nvrx_chain.errors import UsageError
from nvrx_watch.history_model import DEFAULT_COOLDOWN_SECONDS, Notice, NoticeKind, SinkPolicy
from nvrx_watch.model import Severity
from nvrx_watch.sinks.http import hide_urls_of_libraries
from nvrx_watch.sinks.secret import Secret, mask
from nvrx_watch.sinks.sink import SinkError
from nvrx_watch.sinks.wording import render_details, render_summary

_KINDS = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "failure"}


class AppriseSink:
    """One address. Raises UsageError when apprise is missing or does not understand it."""

    def __init__(self, address: Secret, cooldown_seconds: float = DEFAULT_COOLDOWN_SECONDS) -> None:
        # The name stands in the state file and must not change with the order of the options, nor tell the token.
        digest = hashlib.sha256(address.reveal().encode("utf-8", "backslashreplace")).hexdigest()[:8]
        self.policy = SinkPolicy(name=f"apprise-{digest}", cooldown_seconds=cooldown_seconds)
        self._shown = mask(address)
        self._service = _open_service(address)

    def send(self, notice: Notice, *, deadline_seconds: float) -> None:
        """Hand the notice to apprise, which says only whether it was delivered. Raises SinkError."""
        kind = "success" if notice.kind is NoticeKind.RESOLVE else _KINDS[notice.incident.severity]
        accepted = self._service.notify(
            title=render_summary(notice), body="\n".join(render_details(notice)), notify_type=kind, body_format="text"
        )
        if not accepted:
            raise SinkError(f"sending to {self._shown}: not delivered")


def _open_service(address: Secret) -> Any:
    # It logs whole addresses, tokens included, at every level up to ERROR.
    logging.getLogger("apprise").disabled = True
    hide_urls_of_libraries()
    try:
        with warnings.catch_warnings():
            # Its plug-ins import modules that Python has deprecated; that is nothing an operator can mend.
            warnings.simplefilter("ignore", DeprecationWarning)
            import apprise

            service = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False))
            understood = service.add(address.reveal())
    except ImportError as error:
        raise UsageError("sending to --notify needs apprise", hint="pip install apprise") from error
    if not understood:
        raise UsageError("reading --notify: apprise does not understand the address", part=mask(address))
    return service
