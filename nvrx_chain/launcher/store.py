"""The control store: torch's TCPStore on the rendezvous host, as a log of events that every launcher follows.

A read waits in the server until its event is there, so nothing polls, and the death of the host ends every such read at
once. Touches: TCP connections, a port on the host.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.events import Ended, Event, Opened, encode_event, parse_event

ANSWER_SECONDS = 30.0
"""A store that does not answer a simple question for so long is lost."""
WAIT_SECONDS = 3600.0
"""One read of an event that has not happened yet; it is asked again after that."""
PROBE_SECONDS = 2.0
PROBE_PAUSE_SECONDS = 0.05
PROBE_PAUSE_MAX_SECONDS = 1.0


class HostLost(NvrxError):
    """The control store, and with it the rendezvous host, is gone."""


class ControlStore:
    """One connection to the control store of one job. For one thread: a read that waits holds the connection."""

    def __init__(self, store: TCPStore, run_id: str, endpoint: tuple[str, int]) -> None:
        self._store = store
        self._prefix = f"nvrx:{run_id}:"
        self.endpoint = endpoint

    @classmethod
    def serve(cls, port: int, run_id: str) -> ControlStore:
        """Start the store on this host, on every interface. Raises NvrxError when the port is taken."""
        try:
            # The address is that of our own client connection.
            server = TCPStore(
                "localhost", port, None, True, wait_for_workers=False, timeout=timedelta(seconds=ANSWER_SECONDS)
            )
        except (DistNetworkError, RuntimeError) as error:
            raise NvrxError(
                "starting the control store", part=f"port {port}", hint=str(error).splitlines()[0]
            ) from error
        return cls(server, run_id, ("localhost", server.port))

    @classmethod
    def connect(cls, host: str, port: int, run_id: str, *, within_seconds: float) -> ControlStore:
        """Connect, waiting for a host that starts later. Raises HostLost when there is none in time."""
        _await_port(host, port, within_seconds)
        return cls(_client(host, port), run_id, (host, port))

    def another(self) -> ControlStore:
        """A further connection, for another thread."""
        found = ControlStore(_client(*self.endpoint), "", self.endpoint)
        found._prefix = self._prefix
        return found

    def read(self, number: int, within_seconds: float | None = None) -> Event | None:
        """The event of this number, waited for; None when it did not happen in time. Raises HostLost, RecordError."""
        data = self._wait_for(f"event/{number}", within_seconds)
        return None if data is None else parse_event(data)

    def append(self, event: Event, number: int) -> tuple[int, Event]:
        """Write an event at the first free number from `number` on; that number, and what stands there.

        What stands there is another's event when that made this one needless: the round is open, or all is over.
        """
        data = encode_event(event)
        while True:
            found = self._first(f"event/{number}", data)
            if found == data:
                return number, event
            other = parse_event(found)
            if isinstance(other, Ended) or (
                isinstance(event, Opened) and isinstance(other, Opened) and other.round >= event.round
            ):
                return number, other
            number += 1

    def forget(self, number: int) -> None:
        """Remove an event that every launcher has read."""
        with _host_lost():
            self._store.delete_key(f"{self._prefix}event/{number}")

    def put(self, key: str, value: bytes) -> bytes:
        """Set a value if there is none; what is there now."""
        return self._first(key, value)

    def get(self, key: str, within_seconds: float) -> bytes | None:
        """A value, waited for; None when it did not come in time."""
        return self._wait_for(key, within_seconds)

    def _first(self, key: str, value: bytes) -> bytes:
        with _host_lost():
            self._store.set_timeout(timedelta(seconds=ANSWER_SECONDS))
            return bytes(self._store.compare_set(self._prefix + key, "", value.decode()))

    def _wait_for(self, key: str, within_seconds: float | None) -> bytes | None:
        deadline = None if within_seconds is None else time.monotonic() + within_seconds
        while True:
            left = WAIT_SECONDS if deadline is None else max(0.001, deadline - time.monotonic())
            with _host_lost():
                try:
                    self._store.set_timeout(timedelta(seconds=left))
                    return bytes(self._store.get(self._prefix + key))
                except DistStoreError:
                    # Its own wait ran out. A torn connection is another class.
                    if deadline is not None and time.monotonic() >= deadline:
                        return None


@contextlib.contextmanager
def _host_lost() -> Iterator[None]:
    try:
        yield
    except DistNetworkError as error:
        raise HostLost("talking to the control store", hint=str(error).splitlines()[0]) from error


def _client(host: str, port: int) -> TCPStore:
    with _host_lost():
        return TCPStore(host, port, None, False, wait_for_workers=False, timeout=timedelta(seconds=ANSWER_SECONDS))


def _await_port(host: str, port: int, within_seconds: float) -> None:
    """TCPStore's own client retries too, but writes a stack trace for each try."""
    deadline = time.monotonic() + within_seconds
    pause = PROBE_PAUSE_SECONDS
    while True:
        try:
            socket.create_connection((host, port), timeout=PROBE_SECONDS).close()
            return
        except OSError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise HostLost(
                    "connecting to the control store",
                    part=f"{host}:{port}",
                    hint=f"no answer in {within_seconds:g} s: {error.strerror or error}",
                ) from error
            time.sleep(min(pause, left))
            pause = min(2 * pause, PROBE_PAUSE_MAX_SECONDS)
