"""The log of run-task, written by a thread of its own: a stalled file system must not stop the loop that steers ranks.

Touches: the log file, standard error.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from nvrx_chain.errors import RecordError

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class TaskLog:
    """Takes every record of this process into memory at once, and writes it to file and standard error when it can."""

    def __init__(self, path: Path) -> None:
        """Open the file and start. Raises RecordError."""
        try:
            handlers = (logging.StreamHandler(sys.stderr), logging.FileHandler(path))
        except OSError as error:
            raise RecordError(f"opening the log {path}: {error.strerror or error}", part=path.name) from error
        for handler in handlers:
            handler.setFormatter(logging.Formatter(FORMAT))
        self._records: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, args=(handlers,), name="log", daemon=True)
        self._thread.start()
        # Not by basicConfig, which gives the queue a format of its own.
        root = logging.getLogger()
        root.setLevel(logging.INFO)
        root.handlers[:] = [logging.handlers.QueueHandler(self._records)]

    def close(self, seconds: float) -> bool:
        """Write what is there, at most for `seconds`. False when the file system was not fast enough."""
        self._records.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _write(self, handlers: Sequence[logging.Handler]) -> None:
        while True:
            record = self._records.get()
            if record is None:
                break
            for handler in handlers:
                handler.handle(record)
        for handler in handlers:
            handler.close()
