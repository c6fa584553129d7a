"""Keeping the own lease: a thread that writes a growing counter, and how long ago the last write succeeded.

A write can hang for minutes on a stalled file system, so it has its own thread, and whoever steers the ranks asks
`seconds_since_written` and fences itself. Touches: `control/lease.<k>.json`.
"""

from __future__ import annotations

import logging
import threading
import traceback

from nvrx_chain.clock import Clock
from nvrx_chain.errors import NvrxError
from nvrx_chain.generation.board import Board

log = logging.getLogger(__name__)

MAX_WRITES_PER_SECOND = 20.0
"""All leases of a generation together; a metadata server feels more."""


def lease_interval_seconds(base: float, array_task_id: int, total_tasks: int) -> float:
    """Task 0 writes at the base interval, peers of big arrays more slowly."""
    if array_task_id == 0:
        return base
    return max(base, total_tasks / MAX_WRITES_PER_SECOND)


class LeaseWriter:
    """Writes the lease until stopped. `phase` may be changed at any time and shows with the next write."""

    def __init__(self, board: Board, clock: Clock, interval_seconds: float) -> None:
        self._board = board
        self._clock = clock
        self.interval_seconds = interval_seconds
        self.phase = "gate"
        self._counter = 0
        self._written_at = clock.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Write the first lease in this thread: an unwritable directory is an error at once. Go on in another."""
        self._write()
        self._thread.start()

    def stop(self) -> None:
        """Stop writing. Does not wait for a write that hangs."""
        self._stop.set()

    def seconds_since_written(self) -> float:
        """Seconds since the last write that succeeded began: others may have seen its counter since then."""
        return self._clock.monotonic() - self._written_at

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self.interval_seconds):
            try:
                self._write()
            except NvrxError as error:
                log.warning("lease not written error=%s", error)
            except Exception:  # noqa: BLE001 - a dead writer would end a training that is well by its own fence
                log.error("lease not written, it is tried again\n%s", traceback.format_exc())

    def _write(self) -> None:
        self._counter += 1
        # Before the write: for others the counter moves when the name does, and a directory that stalls right after
        # that must not make us believe in a younger lease than they do.
        began = self._clock.monotonic()
        self._board.write_lease(self._counter, self.interval_seconds, self.phase)
        self._written_at = began
