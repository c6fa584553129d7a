"""What the writer of the logs is about to do: where the frames of a batch will stand, and what it has to say.

Touches: log files, which it opens and turns; the journal gets the plan before a byte is written.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone

from nvrx_chain.launcher.funnel_journal import Part, Run
from nvrx_chain.launcher.funnel_wire import Frame
from nvrx_chain.launcher.log_files import LogFiles
from nvrx_chain.launcher.log_settings import Kind

NEWS_SECONDS = 60.0
NEWS_LINES = 20


class Plan:
    """Where the frames of one batch will stand."""

    def __init__(self, files: LogFiles, written: dict[str, int]) -> None:
        self.runs: list[Run] = []
        self.contents: list[list[bytes]] = []
        self.skipped: dict[str, int] = {}
        self._files = files
        self._written = written
        self._seen: dict[str, int] = {}
        self._ends: dict[tuple[Kind, int], tuple[int, int]] = {}
        """For each file its inode and where the next byte goes."""

    def add(self, client_id: str, kind: Kind, frame: Frame) -> bool:
        """Find its place; False when its file must be turned first, which happens between two batches."""
        if self._has(client_id, frame):
            return True
        length = len(frame.content)
        place = (kind, frame.cycle)
        if place not in self._ends:
            file = self._files.open(kind, frame.cycle, length)
            self._ends[place] = (file.inode, file.offset)
        elif self._files.is_too_long(self._ends[place][1] + length):
            return False
        inode, offset = self._ends[place]
        if not self.runs or (self.runs[-1].kind, self.runs[-1].cycle) != place:
            self.runs.append(Run(int(kind), frame.cycle, inode, offset, []))
            self.contents.append([])
        self.runs[-1].parts.append(Part(client_id, frame.seq, length))
        self.contents[-1].append(frame.content)
        self._ends[place] = (inode, offset + length)
        self._seen[client_id] = frame.seq
        return True

    def skip(self, client_id: str, frame: Frame) -> bool:
        """Count it as written; False when it was already."""
        if self._has(client_id, frame):
            return False
        self._seen[client_id] = self.skipped[client_id] = frame.seq
        return True

    def _has(self, client_id: str, frame: Frame) -> bool:
        return frame.seq <= self._seen.get(client_id, self._written.get(client_id, 0))


class News:
    """What the writer has to say, in bounds: a port scanner must not fill the log."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._since = 0.0
        self._count = 0

    def say(self, text: str) -> None:
        """For the log, unless there was too much of late."""
        now = time.monotonic()
        if now - self._since > NEWS_SECONDS:
            self._since, self._count = now, 0
        self._count += 1
        if self._count == NEWS_LINES:
            text = f"further lines of this kind are left out for {NEWS_SECONDS:g} s"
        if self._count <= NEWS_LINES:
            at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._lines.append(f"{at} funnel WARNING {text}\n")

    def take(self) -> bytes:
        """All of it since the last time."""
        lines, self._lines = self._lines, []
        return "".join(lines).encode(errors="replace")
