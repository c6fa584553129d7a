"""A real HTTP server on this machine that answers, refuses, talks nonsense or hangs, and remembers what it was sent."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request."""

    method: str
    path: str
    body: Any


@dataclass
class Receiver:
    """`answers` are (status, headers, body), one per request, the last one for good."""

    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=lambda: [(202, {}, b"{}")])
    received: list[Received] = field(default_factory=list)
    port: int = 0

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.answers = [(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)]

    @property
    def bodies(self) -> list[Any]:
        return [one.body for one in self.received]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            receiver.received.append(Received(self.command, self.path, json.loads(content) if content else None))
            status, headers, body = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def talking(*words: bytes, pause_seconds: float | None = None) -> Iterator[int]:
    """The port of a peer that takes each connection and says these words, whatever it is asked; then it closes.

    `pause_seconds` None: it says them at once. Without words it says nothing and keeps the connection open.
    """
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    taken: list[socket.socket] = []

    def talk(peer: socket.socket) -> None:
        try:
            for word in words:
                if stop.wait(pause_seconds or 0.0):
                    return
                peer.sendall(word)
            if words:
                peer.recv(65536)
                peer.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def run() -> None:
        while not stop.is_set():
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                continue
            peer.settimeout(5)
            taken.append(peer)
            threading.Thread(target=talk, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        thread.join(10)
        listener.close()
        for peer in taken:
            peer.close()


def refusing_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
