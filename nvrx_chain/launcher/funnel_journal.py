"""What the writer of the logs has written, in memory that outlives it: a SIGKILL doubles no line and loses none.

Before a batch of frames goes into the files, the journal gets where it will stand. Whoever starts next compares that
with the size of the files: a frame that stands there whole was written, and a torn one is cut off. The journal lies in
two anonymous memory files that the launcher holds; it survives a process, not a machine. Touches: those, the log files.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nvrx_chain.launcher.log_files import LogFiles
from nvrx_chain.launcher.log_settings import Kind

_RECORD = struct.Struct("!II")
COMPACT_BYTES = 1 << 20


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One frame of a run."""

    client_id: str
    seq: int
    length: int


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Frames that go into one file, one behind the other, from `offset` on."""

    kind: int
    cycle: int
    inode: int
    offset: int
    parts: list[Part]


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """The highest number of each client that is in the files. The later of two snapshots counts."""

    number: int
    written: dict[str, int]


class Batch(msgspec.Struct, frozen=True, tag=True):
    """What is about to be written, in this order. Everything before it is in the files."""

    runs: list[Run]


_DECODER: msgspec.msgpack.Decoder[Snapshot | Batch] = msgspec.msgpack.Decoder(Snapshot | Batch)


def new_memory_files() -> tuple[int, int]:
    """The memory of a journal, for whoever outlives the writers."""
    return os.memfd_create("nvrx-log-journal-0"), os.memfd_create("nvrx-log-journal-1")


class Journal:
    """The journal of one writer. `written`: the highest number of each client that is in the files."""

    def __init__(self, descriptors: tuple[int, int], files: LogFiles) -> None:
        self.written: dict[str, int] = {}
        self._number = 0
        self._descriptors = descriptors
        self._size = 0
        self._recover(files)

    def intend(self, runs: Sequence[Run]) -> None:
        """These frames go into the files next."""
        if self._size > COMPACT_BYTES:
            self._snapshot()
        self._append(Batch(list(runs)))

    def done(self, runs: Sequence[Run]) -> None:
        """They are there."""
        for run in runs:
            for part in run.parts:
                self.written[part.client_id] = part.seq

    def skip(self, skipped: Mapping[str, int]) -> None:
        """These went elsewhere; after a crash they may come again."""
        for client_id, seq in skipped.items():
            self.written[client_id] = max(seq, self.written.get(client_id, 0))

    def _recover(self, files: LogFiles) -> None:
        best: list[Snapshot | Batch] = []
        for descriptor in self._descriptors:
            history = list(_read_records(descriptor))
            if _number_of(history) > _number_of(best):
                best = history
                # The better one is kept until the next snapshot stands in the other.
                if descriptor != self._descriptors[0]:
                    self._descriptors = (self._descriptors[1], self._descriptors[0])
        last: Batch | None = None
        for record in best:
            if isinstance(record, Snapshot):
                self.written = dict(record.written)
                self._number = record.number
            else:
                if last is not None:
                    self.done(last.runs)
                last = record
        if last is not None:
            self._recover_batch(last, files)
        self._snapshot()

    def _recover_batch(self, batch: Batch, files: LogFiles) -> None:
        for run in batch.runs:
            file = files.open(Kind(run.kind), run.cycle)
            # Another file under this name: the old one was turned, which happens only behind a whole batch.
            there = file.offset - run.offset if file.inode == run.inode else sum(part.length for part in run.parts)
            whole = 0
            for part in run.parts:
                if whole + part.length > there:
                    if file.offset > run.offset + whole:
                        os.ftruncate(file.descriptor, run.offset + whole)
                    return
                whole += part.length
                self.written[part.client_id] = part.seq

    def _snapshot(self) -> None:
        """Begin the other memory file with all that is known; only then is the first one of no use."""
        self._number += 1
        self._descriptors = (self._descriptors[1], self._descriptors[0])
        os.ftruncate(self._descriptors[0], 0)
        self._size = 0
        self._append(Snapshot(self._number, self.written))

    def _append(self, record: Snapshot | Batch) -> None:
        body = msgspec.msgpack.encode(record)
        data = _RECORD.pack(len(body), zlib.crc32(body)) + body
        os.pwrite(self._descriptors[0], data, self._size)
        self._size += len(data)


def _number_of(history: Sequence[Snapshot | Batch]) -> int:
    return history[0].number if history and isinstance(history[0], Snapshot) else 0


def _read_records(descriptor: int) -> Iterator[Snapshot | Batch]:
    """The records up to the first torn one: what it announced was not begun."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    at = 0
    while at + _RECORD.size <= len(data):
        length, checksum = _RECORD.unpack_from(data, at)
        body = data[at + _RECORD.size : at + _RECORD.size + length]
        if len(body) < length or zlib.crc32(body) != checksum:
            return
        yield _DECODER.decode(body)
        at += _RECORD.size + length
