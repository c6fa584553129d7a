"""Notes what happens on this node while a job recovers. Each launcher has a file of its own; see `records.marks`.

Written in a thread: a shared file system that hangs must not make a recovery slower. Touches: that file, the boot id.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from nvrx_chain.errors import RecordError
from nvrx_chain.launcher.writing import WriterThread
from nvrx_chain.records.marks import MAX_LINE_BYTES, Mark, MarkName, encode_mark, marks_path

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
_LONGEST_DETAIL = 500
_LONGEST_AGE_SECONDS = 86400.0


class Timeline:
    """The marks of one launcher. `directory` None: nothing is written."""

    def __init__(self, directory: Path | None, *, node: str, agent: str) -> None:
        self._path = None if directory is None else marks_path(directory, agent)
        self._node = node
        self._agent = agent
        self._boot = _read_boot_id()
        self._writer = WriterThread("timeline")
        self._descriptor = -1

    def mark(
        self,
        cycle: int,
        name: MarkName | str,
        at: float | None = None,
        *,
        rank: int | None = None,
        iteration: int | None = None,
        detail: str | None = None,
    ) -> None:
        """Note that something happened; `at` in seconds since the epoch on this node, None for now. Does not wait.

        Raises ValueError for a name that is no MarkName.
        """
        now, monotonic = time.time(), time.monotonic()
        age = 0.0 if at is None else now - at
        if not -_LONGEST_AGE_SECONDS <= age <= _LONGEST_AGE_SECONDS:
            log.warning("a mark of another time counts as of now name=%s at=%s", name, at)
            age = 0.0
        if self._path is None:
            return
        mark = Mark(
            cycle=cycle,
            name=MarkName(name),
            at=now - age,
            monotonic=monotonic - age,
            boot=self._boot,
            node=self._node,
            agent=self._agent,
            rank=rank,
            iteration=iteration,
            detail=None if detail is None else detail[:_LONGEST_DETAIL],
        )
        line = encode_mark(mark)
        if len(line) <= MAX_LINE_BYTES:
            self._writer.hand_over("a mark", lambda: self._append(line))

    def close(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all is written, so long at most."""
        done = self._writer.close(seconds)
        if done and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        return done

    def _append(self, line: bytes) -> None:
        if self._descriptor < 0:
            assert self._path is not None
            self._path.parent.mkdir(mode=0o755, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
        written = os.write(self._descriptor, line)
        if written != len(line):
            # The rest would stand in the middle of another line: end the torn one, which no reader takes.
            os.write(self._descriptor, b"\n")
            raise RecordError(f"writing a mark: {written} of {len(line)} bytes were taken", hint="is the disk full?")


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        log.warning("the boot id cannot be read error=%s", error)
        return ""
