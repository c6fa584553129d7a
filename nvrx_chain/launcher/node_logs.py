"""The logs of one node from its pipes to their place, in one object; Python's logging takes the same way.

Touches: what the reader of the pipes and its sink touch.
"""

from __future__ import annotations

import logging
import time

from nvrx_chain.launcher.funnel_client import FunnelClient
from nvrx_chain.launcher.log_pipes import PARKED, PipeReader, Tap
from nvrx_chain.launcher.log_settings import LogLimits, LogPlaces
from nvrx_chain.launcher.log_sinks import DirectSink, LogSink, StreamSink

LEAST_SECONDS = 0.2
"""For a sink that needs no time but a turn of its thread."""


class NodeLogs:
    """Made by `open_node_logs`. `attach` and `write_launcher` never wait and may be called from any thread."""

    def __init__(self, sink: LogSink, *, prefix_ranks: bool) -> None:
        self._sink = sink
        self._reader = PipeReader(sink, prefix_ranks=prefix_ranks)
        self._reader.start()

    def attach(self, descriptor: int, label: bytes = PARKED, rank: tuple[int, int, int] | None = None) -> Tap:
        """Read this pipe to its end; the descriptor belongs to the logs from now on. See `PipeReader.attach`."""
        return self._reader.attach(descriptor, label, rank)

    def aim(self, funnel: tuple[str, int]) -> None:
        """Now it is known where the funnel is."""
        if isinstance(self._sink, FunnelClient):
            self._sink.aim(funnel)

    def write_launcher(self, text: str) -> None:
        """A line, or several, of the launcher itself."""
        self._reader.write_launcher(text)

    def close(self, last_line: str | None = None, *, pipes_seconds: float = 2.0, sink_seconds: float = 30.0) -> bool:
        """Read all pipes to their end, write the last line behind everything, and wait until it is in the file.

        False when lines were lost or put aside; the log says how many and why.
        """
        if last_line is not None:
            self._reader.write_last(last_line)
        begin = time.monotonic()
        self._reader.close(pipes_seconds, sink_seconds)
        used = max(0.0, time.monotonic() - begin - pipes_seconds)
        return self._sink.close(max(LEAST_SECONDS, sink_seconds - used))


def open_node_logs(
    places: LogPlaces,
    limits: LogLimits,
    *,
    node_id: str,
    funnel: tuple[str, int] | None = None,
    is_funnelled: bool = False,
    secret: str = "",
    prefix_ranks: bool = True,
) -> NodeLogs:
    """Begin: over the funnel, into the files directly without one, to standard output without files.

    With `is_funnelled` lines wait until `aim` says where the funnel is.

    `node_id` is unique among all launchers that the job ever has (the agent id).
    """
    if places.app_log is None and places.launcher_log is None:
        return NodeLogs(StreamSink(), prefix_ranks=prefix_ranks)
    if funnel is None and not is_funnelled:
        return NodeLogs(DirectSink(places, stall_seconds=limits.stall_seconds), prefix_ranks=prefix_ranks)
    client = FunnelClient(funnel, secret, node_id, places, limits)
    client.start()
    return NodeLogs(client, prefix_ranks=prefix_ranks)


class LauncherLogHandler(logging.Handler):
    """Hands what the launcher logs to the launcher log, with the node's name: all nodes meet in one file."""

    def __init__(self, logs: NodeLogs, node: str) -> None:
        super().__init__()
        self._logs = logs
        layout = f"%(asctime)s.%(msecs)03dZ {node.replace('%', '%%')} %(levelname)s %(name)s: %(message)s"
        formatter = logging.Formatter(layout, "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Never waits."""
        try:
            self._logs.write_launcher(self.format(record))
        except (ValueError, TypeError, OSError):
            self.handleError(record)
