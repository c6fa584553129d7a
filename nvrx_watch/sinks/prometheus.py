"""Gauges for Prometheus: as text, as a file for node_exporter's textfile collector, and on `/metrics`.

prometheus_client is imported when something is rendered. Touches: the textfile; a listening socket, served by threads.
"""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import logging
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nvrx_chain.errors import NvrxError, UsageError
from nvrx_chain.records.files import write_atomic
from nvrx_watch.sinks.chain_metrics import ChainMetrics
from nvrx_watch.sinks.sink import SinkError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXTFILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}\.prom", re.ASCII)
_SOCKET_SECONDS = 5.0
_STOP_SECONDS = 5.0

_GAUGES: tuple[tuple[str, str, Callable[[ChainMetrics], float | None]], ...] = (
    ("nvrx_chain_generation", "Sequence number of the newest generation that has begun.", lambda one: one.generation),
    ("nvrx_chain_cycle", "Number of its newest restart cycle.", lambda one: one.cycle),
    ("nvrx_chain_checkpoint_iteration", "Iteration of the newest checkpoint.", lambda one: one.iteration),
    ("nvrx_chain_log_iteration", "Newest iteration in the training log.", lambda one: one.log_iteration),
    (
        "nvrx_chain_seconds_since_progress",
        "Seconds since the checkpoint iteration was seen to change.",
        lambda one: one.seconds_since_progress,
    ),
    ("nvrx_chain_hot_spares", "Running tasks that do not train.", lambda one: one.hot_spares),
    ("nvrx_chain_cold_spares", "Queued spares of the running generation.", lambda one: one.cold_spares),
    ("nvrx_chain_queued_generations", "Generations that wait for their turn.", lambda one: one.queued_generations),
    ("nvrx_watch_pass_seconds", "Duration of the last pass.", lambda one: one.pass_seconds),
    (
        "nvrx_watch_last_good_pass_timestamp_seconds",
        "When a pass last saw everything, in seconds since 1970.",
        lambda one: one.last_good_pass_at,
    ),
    (
        "nvrx_watch_last_good_pass_age_seconds",
        "Seconds since a pass last saw everything.",
        lambda one: one.last_good_pass_age_seconds,
    ),
)


def textfile_name(key: str) -> str:
    """A name that no other watcher writes in the same directory, for the chain (or group of chains) of this key."""
    digest = hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", key, flags=re.ASCII)[:60]
    return f"nvrx_watch_{readable}_{digest}.prom"


def require_prometheus_client() -> None:
    """Raise UsageError when prometheus_client is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError("metrics need prometheus_client", hint="pip install prometheus-client")


def render_metrics(states: Sequence[ChainMetrics]) -> str:
    """The exposition text. What is not known has no sample."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(states))
    return generate_latest(registry).decode("utf-8")


class _Collector:
    """What prometheus_client asks for the samples."""

    def __init__(self, states: Sequence[ChainMetrics]) -> None:
        # One chain under one pair of labels: a sample that comes twice fails the whole scrape.
        self._states = list({(one.chain, one.name): one for one in states}.values())

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        for name, text, value_of in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=("chain", "name"))
            for one in self._states:
                value = value_of(one)
                if value is not None:
                    gauge.add_metric((one.chain, one.name), value)
            yield gauge
        findings = GaugeMetricFamily(
            "nvrx_watch_findings",
            "Findings of the last pass.",
            labels=("chain", "name", "detector", "severity"),
        )
        for one in self._states:
            for (detector, severity), count in sorted(one.findings.items()):
                findings.add_metric((one.chain, one.name, detector, severity.value), count)
        yield findings


class Textfile:
    """A file for node_exporter's textfile collector. Raises UsageError for a name that it would not read."""

    def __init__(self, directory: Path, name: str = "nvrx_watch.prom") -> None:
        if _TEXTFILE_NAME.fullmatch(name) is None:
            raise UsageError("writing metrics: a textfile is named *.prom, without a directory", part=repr(name)[:80])
        require_prometheus_client()
        self._path = directory / name

    def publish(self, states: Sequence[ChainMetrics]) -> None:
        """Replace the file in one step: the collector never reads half of it. Raises SinkError."""
        try:
            # An age in a file would look young for ever once its watcher is dead; the timestamp beside it does not.
            ageless = [replace(one, last_good_pass_age_seconds=None) for one in states]
            write_atomic(self._path, render_metrics(ageless).encode("utf-8"))
        except NvrxError as error:
            raise SinkError(error.message) from error


class MetricsServer:
    """`/metrics` on a thread. Ages go on between passes, so a watcher that is stuck shows.

    Raises UsageError when the address cannot be bound. Port 0 takes any; `port` says which.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        require_prometheus_client()
        self._published: tuple[float, tuple[ChainMetrics, ...]] = (time.monotonic(), ())
        try:
            self._server = _Server(address, port, self._render)
        except (OSError, OverflowError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise UsageError(f"serving /metrics on port {port} of {address}: {why}", part="--metrics-port") from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="metrics", daemon=True
        )
        self._thread.start()

    def publish(self, states: Sequence[ChainMetrics]) -> None:
        """Show these from now on. Never waits for whoever scrapes."""
        self._published = (time.monotonic(), tuple(states))

    def close(self) -> None:
        """Stop listening. Does not wait for a scrape that hangs."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_SECONDS)

    def _render(self) -> bytes:
        at, states = self._published
        return render_metrics([_older(one, time.monotonic() - at) for one in states]).encode("utf-8")


def _older(one: ChainMetrics, seconds: float) -> ChainMetrics:
    progress, age = one.seconds_since_progress, one.last_good_pass_age_seconds
    return replace(
        one,
        seconds_since_progress=progress + seconds if progress is not None else None,
        last_good_pass_age_seconds=age + seconds if age is not None else None,
    )


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, port: int, render: Callable[[], bytes]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.render = render
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer looks its own name up here, which a dead name server holds up for a minute.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "nvrx-watch", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that goes away is none of our errors; socketserver would print a traceback."""
        log.debug("a scrape broke off", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _SOCKET_SECONDS
    server_version = "nvrx-watch"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        content = self.server.render()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line per scrape would bury the findings."""
