"""The logs of a launcher from its start to its last line, and on the host the writer for all nodes.

Touches: what the reader, the sinks and the log writer touch; the root logger.
"""

from __future__ import annotations

import logging
import time

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.funnel_host import FunnelServer, FunnelSettings, start_funnel_server
from nvrx_chain.launcher.node_logs import LauncherLogHandler, NodeLogs, open_node_logs
from nvrx_chain.launcher.settings import LogSettings

log = logging.getLogger(__name__)

SINK_SECONDS = 30.0
LOST_SECONDS = 0.3
WRITER_SECONDS = 30.0
"""How long the writer may take at the end for what is still on its way."""


class LaunchLogs:
    """For the main thread, but for what it hands out."""

    def __init__(self, settings: LogSettings, agent_id: str, node: str, secret: str, *, is_host: bool) -> None:
        places = settings.places
        self.is_capturing = places.app_log is not None
        self._writer: FunnelServer | None = None
        self._restart_at: float | None = None
        self.node: NodeLogs | None = None
        self._handler: LauncherLogHandler | None = None
        if settings.is_funnelled and is_host:
            self._writer = start_funnel_server(FunnelSettings(places=places, port=settings.funnel_port), secret)
        if places.app_log is None and places.launcher_log is None:
            return
        self.node = open_node_logs(
            places,
            settings.limits,
            node_id=agent_id,
            is_funnelled=settings.is_funnelled,
            secret=secret,
            prefix_ranks=settings.prefix_ranks,
        )
        if places.launcher_log is not None:
            self._handler = LauncherLogHandler(self.node, node)
            logging.getLogger().addHandler(self._handler)

    @property
    def writer_port(self) -> int | None:
        """Where the writer of this host listens."""
        return None if self._writer is None else self._writer.port

    def aim(self, host: str, port: int | None) -> None:
        """The host said where its writer is."""
        if self.node is not None and port is not None:
            self.node.aim((host, port))

    def watched(self) -> list[int]:
        """Descriptors whose readability means that `tend` has something to do."""
        if self._writer is None or self._restart_at is not None or self._writer.descriptor < 0:
            return []
        return [self._writer.descriptor]

    def tend(self) -> float | None:
        """Start a writer again that has ended; when to look again on the monotonic clock, None while it lives."""
        if self._writer is None or not self._writer.has_ended():
            return None
        if self._restart_at is None:
            self._restart_at = time.monotonic() + self._writer.pause_seconds()
        if time.monotonic() >= self._restart_at:
            self._restart_at = None
            try:
                self._writer.restart()
            except NvrxError as error:
                log.error("%s", error)
        return self._restart_at

    def close(self, last_line: str | None, *, is_host_lost: bool = False) -> None:
        """Bring everything to its place, the last line behind all others. A writer on a lost host takes no more."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
        if self.node is not None and not self.node.close(
            last_line, sink_seconds=LOST_SECONDS if is_host_lost else SINK_SECONDS
        ):
            log.error("log lines of this node were lost or put aside")

    def stop_writer(self) -> None:
        """The other nodes have left: let the writer finish."""
        if self._writer is not None and not self._writer.stop(WRITER_SECONDS):
            log.error("the log writer did not end well")
