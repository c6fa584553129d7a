"""Lines of one node that the writer of the logs does not have yet: numbered frames, in memory and then in a file.

The oldest are in memory, the newest in the file, so that they leave in the order in which they came. The file has no
name: it is gone with the process, whatever ends it. Touches: that file, of mode 600, on the node.
"""

from __future__ import annotations

import collections
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from nvrx_chain.launcher.funnel_wire import HEADER, LINES_BYTES, Frame, Word, split_lines
from nvrx_chain.launcher.log_settings import Kind, LogLimits

log = logging.getLogger(__name__)

OVERHEAD_BYTES = 256
"""What a frame costs in memory beside its lines."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """Lines that are gathered for one frame."""

    kind: Kind
    cycle: int
    parts: list[bytes]
    size: int = 0


class Spill:
    """Frames in a file, first in first out. It is emptied whole: its length is what it takes on the node."""

    def __init__(self, limits: LogLimits) -> None:
        self._limit = limits.spill_bytes
        self._directory = limits.spill_directory or None
        self._descriptor = -1
        self._read_at = 0
        self._end = 0
        self.frames = 0
        self.broken = False

    def has_room(self, size: int) -> bool:
        """Whether so many bytes of lines find place."""
        return not self.broken and self._end + HEADER.size + size <= self._limit

    def push(self, frame: Frame) -> bool:
        """Append a frame; False when the node's disk does not take it."""
        data = HEADER.pack(frame.word, frame.cycle, frame.seq, len(frame.content)) + frame.content
        try:
            if self._descriptor < 0:
                self._descriptor = self._create()
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self._end + done)
        except OSError as error:
            if not self.broken:
                log.error("log lines cannot be spilled error=%s", error)
            self.broken = True
            return False
        self._end += len(data)
        self.frames += 1
        return True

    def pop(self) -> Frame:
        """The oldest frame. Raises OSError."""
        word, cycle, seq, length = HEADER.unpack(self._read(HEADER.size, self._read_at))
        content = self._read(length, self._read_at + HEADER.size)
        self._read_at += HEADER.size + length
        self.frames -= 1
        if not self.frames:
            self._read_at = self._end = 0
            self.broken = False
            os.ftruncate(self._descriptor, 0)
        return Frame(word=Word(word), cycle=cycle, seq=seq, content=content)

    def forget(self) -> None:
        """Give up what is in the file, and use it no more."""
        self.frames = self._read_at = self._end = 0
        self.broken = True

    def close(self) -> None:
        """Give the file back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _create(self) -> int:
        with tempfile.TemporaryFile(prefix="nvrx-chain-log-", dir=self._directory) as file:
            os.fchmod(file.fileno(), 0o600)
            log.warning("log lines are spilled to a file on this node directory=%s", self._directory)
            return os.dup(file.fileno())

    def _read(self, length: int, at: int) -> bytes:
        data = os.pread(self._descriptor, length, at)
        if len(data) != length:
            raise OSError(f"the file of spilled log lines is short: {len(data)} of {length} bytes at {at}")
        return data


class Backlog:
    """Everything between a worker's pipe and the acknowledgement. Not for several threads at once."""

    def __init__(self, limits: LogLimits) -> None:
        self._limits = limits
        self._open: _Open | None = None
        self._frames: collections.deque[Frame] = collections.deque()
        self._unsent: collections.deque[Frame] = collections.deque()
        self._spill = Spill(limits)
        self._memory = 0
        self._seq = 0
        self.acknowledged = 0

    @property
    def last_seq(self) -> int:
        """Of the newest frame."""
        return self._seq

    @property
    def gathered_bytes(self) -> int:
        """Lines that are in no frame yet."""
        return 0 if self._open is None else self._open.size

    @property
    def is_empty(self) -> bool:
        """Whether the writer has everything."""
        return self._open is None and self.acknowledged >= self._seq

    @property
    def has_unsent(self) -> bool:
        """Whether a frame waits to be sent."""
        return bool(self._unsent or self._spill.frames)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes of lines find place; the file takes over where the memory ends."""
        if self.is_empty:
            return True
        total = self.gathered_bytes + size
        if not self._spill.frames and self._memory + total <= self._limits.memory_bytes:
            return True
        return self._spill.has_room(total + HEADER.size * (2 + total // LINES_BYTES))

    def add(self, kind: Kind, cycle: int, lines: bytes) -> None:
        """Take whole lines, also beyond the limits: whoever calls has asked whether there is room."""
        for piece in split_lines(lines):
            found = self._open
            if found is not None and (
                (found.kind, found.cycle) != (kind, cycle) or found.size + len(piece) > LINES_BYTES
            ):
                self.gather()
                found = None
            if found is None:
                found = self._open = _Open(kind=kind, cycle=cycle, parts=[])
            found.parts.append(piece)
            found.size += len(piece)

    def gather(self) -> None:
        """Make a frame of the lines that have come: they are about to be sent, or the frame is full."""
        if self._open is None:
            return
        found, self._open = self._open, None
        self._seq += 1
        frame = Frame(word=Word(found.kind), cycle=found.cycle, seq=self._seq, content=b"".join(found.parts))
        is_full = self._memory + found.size > self._limits.memory_bytes
        if (self._spill.frames or is_full) and self._spill.push(frame):
            return
        if self._spill.frames:
            # A disk that takes no more: the order of lines is worth more than the bound of the memory.
            self._recall(everything=True)
        self._keep(frame)

    def next_unsent(self) -> Frame | None:
        """The next frame to send on this connection."""
        if not self._unsent:
            self._recall(everything=False)
        return self._unsent.popleft() if self._unsent else None

    def restart(self, acknowledged: int) -> None:
        """A new connection: the writer has everything up to here, the rest is sent again."""
        self.acknowledge(acknowledged)
        self._unsent = collections.deque(self._frames)

    def acknowledge(self, seq: int) -> None:
        """The writer has everything up to here."""
        self.acknowledged = max(self.acknowledged, min(seq, self._seq))
        while self._frames and self._frames[0].seq <= self.acknowledged:
            self._memory -= len(self._frames.popleft().content) + OVERHEAD_BYTES
        while self._unsent and self._unsent[0].seq <= self.acknowledged:
            self._unsent.popleft()

    def drain(self) -> Iterator[Frame]:
        """Everything that the writer has not acknowledged, for somebody else. The backlog is of no use afterwards."""
        self.gather()
        while self._frames:
            yield self._frames.popleft()
        while self._spill.frames:
            yield self._spill.pop()

    def close(self) -> None:
        """Give the file back."""
        self._spill.close()

    def _keep(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._unsent.append(frame)
        self._memory += len(frame.content) + OVERHEAD_BYTES

    def _recall(self, *, everything: bool) -> None:
        """Bring frames back from the file: a few, or all."""
        try:
            while self._spill.frames and (everything or self._memory <= self._limits.memory_bytes // 2):
                self._keep(self._spill.pop())
        except OSError as error:
            # Kept, these lines would hold up all that come after them for ever.
            log.error("spilled log lines cannot be read and are lost frames=%s error=%s", self._spill.frames, error)
            self._spill.forget()
