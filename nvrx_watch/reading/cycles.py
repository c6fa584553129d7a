"""Cycle records of one generation, each closed one read once. Touches: a cycle_infos directory, reads only.

A closed record (one with an end time) never changes. An open one is read again in each pass, and so is one that could
not be read: the launcher creates records without renaming them into place, so half of one may have been seen. New names
show in the directory's stamp; an unchanged stamp saves the listing where the caller says that the generation is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

import msgspec

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.cycle_info import parse_cycle_name
from nvrx_watch.reading.directory import DirectoryStamp, OpenDirectory, look_at_directory, open_directory
from nvrx_watch.reading.messages import CycleChange, CycleRow

MAX_CYCLE_BYTES = 1 << 17
_MOST_BYTES = 1 << 26
"""Rows of one generation together; what comes on top is not read. Real ones have 200 bytes."""
_MOST_CYCLES = 100_000
_LONGEST_PATH = 4096
_FIRST_YEAR, _LAST_YEAR = 1970, 2200

Key = tuple[int, int]


class _CycleInfo(msgspec.Struct, frozen=True):
    """The fields that are used, of the ten in a record (docs/protocol.md); the rest may be anything."""

    attempt_index: int
    cycle_number: int
    cycle_start_time: str
    cycle_end_time: str
    active_nodes: str
    standby_nodes: str = ""
    cycle_log_file: str = ""


_DECODER = msgspec.json.Decoder(_CycleInfo)
_ROW_ENCODER = msgspec.msgpack.Encoder()
_ROWS_DECODER = msgspec.msgpack.Decoder(list[CycleRow])
_SKIPPING_DECODER = msgspec.msgpack.Decoder(list[msgspec.Raw])


def parse_cycle(content: bytes, key: Key) -> CycleRow | None:
    """The row of one record; None for anything that is not a record of this attempt and cycle."""
    try:
        info = _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    if (info.attempt_index, info.cycle_number) != key:
        return None
    started_at, ended_at = _parse_instant(info.cycle_start_time), _parse_instant(info.cycle_end_time)
    if (info.cycle_start_time and started_at is None) or (info.cycle_end_time and ended_at is None):
        return None
    log_file = info.cycle_log_file if len(info.cycle_log_file) <= _LONGEST_PATH else ""
    return CycleRow(key[0], key[1], started_at, ended_at, info.active_nodes, info.standby_nodes, log_file)


def _parse_instant(text: str) -> datetime | None:
    # Python 3.10 knows no Z; a year near the ends of the calendar overflows in the first sum or change of zone.
    at = parse_time(text)
    if at is None or not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        return None
    return at.astimezone(timezone.utc)


def pack_rows(count: int, rows: bytes | bytearray) -> bytes:
    """Rows that were encoded one after the other, as one msgpack array."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), rows))


def count_rows(packed: bytes) -> int:
    """How many rows a msgpack array of `pack_rows` has."""
    return int.from_bytes(packed[1:5], "big")


def unpack_rows(packed: bytes) -> list[CycleRow]:
    """The rows of a msgpack array. Raises msgspec.DecodeError."""
    return _ROWS_DECODER.decode(packed)


class SavedCycles(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache file keeps of one generation: its closed rows, and which names to look at again."""

    inode: int
    changed_ns: int
    settled: bool
    count: int
    rows: bytes
    pending: tuple[str, ...]

    def is_whole(self) -> bool:
        """Whether there are as many rows as it says. Their fields are not looked at: that takes ten times as long."""
        if not 0 <= self.count <= _MOST_CYCLES:
            return False
        try:
            _SKIPPING_DECODER.decode(pack_rows(self.count, self.rows))
        except msgspec.DecodeError:
            return False
        return True


class CycleFiles:
    """The cycle records of one generation. `read` tells what changed since the call before.

    `check_time` is called now and then while many files are read; what it raises ends the reading, and what was read
    until then is kept for the next.
    """

    def __init__(
        self,
        directory: str,
        array_job_id: int,
        owner_uid: int | None,
        check_time: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self._job = str(array_job_id)
        self._owner_uid = owner_uid
        self._check_time = check_time
        self.has_unsaved = False
        self._last_told: tuple[bytes, int, str | None] | None = None
        self._open = pack_rows(0, b"")
        self._unreadable = 0
        self._stamp: DirectoryStamp | None = None
        self._is_settled = False
        self._count, self._rows = 0, bytearray()
        self._told_count, self._told_bytes = 0, 0
        self._closed: set[Key] | None = set()
        self._pending: dict[Key, str] = {}
        self._reset = True

    def save(self) -> SavedCycles | None:
        """For the cache file; None before anything was read."""
        if self._stamp is None:
            return None
        return SavedCycles(
            inode=self._stamp.inode,
            changed_ns=self._stamp.changed_ns,
            settled=self._is_settled,
            count=self._count,
            rows=bytes(self._rows),
            pending=tuple(self._pending.values()),
        )

    def restore(self, saved: SavedCycles) -> None:
        """Take over what an earlier process saved. `read` drops it when the directory is another one."""
        pending = {key: name for name in saved.pending if (key := parse_cycle_name(name)) is not None}
        self._stamp = DirectoryStamp(saved.inode, saved.changed_ns)
        self._is_settled = saved.settled and len(pending) == len(saved.pending)
        self._count, self._rows, self._pending = saved.count, bytearray(saved.rows), pending
        # Decoded at the first change only: of a hundred generations at most one has new records.
        self._closed = None

    def rows(self) -> list[CycleRow]:
        """The closed and the open rows as the last `read` left them, in order."""
        rows = unpack_rows(pack_rows(self._count, self._rows)) + unpack_rows(self._open)
        return sorted(rows, key=lambda row: (row.attempt, row.number))

    def read(self, *, always_list: bool) -> CycleChange | None:
        """Look again; None when nothing changed since the last call.

        `always_list`: the generation may begin a cycle at any moment.
        """
        if self._is_over and not always_list and look_at_directory(self.directory) == self._stamp:
            return self._tell(None)
        opened = open_directory(self.directory, self._owner_uid)
        if isinstance(opened, Unobserved):
            return self._tell(opened.reason)
        if opened is None:
            if self._stamp is not None:
                self._forget()
            self._open, self._unreadable = pack_rows(0, b""), 0
            return self._tell(None)
        with opened:
            try:
                self._list(opened, always_list)
            except OSError as error:
                return self._tell(f"listing {self.directory}: {error.strerror or error}")
            self._read_pending(opened)
        if self._is_settled and not always_list:
            # A generation that is over: a hundred of these sets would be the largest thing in memory.
            self._closed = None
        return self._tell(None)

    @property
    def _is_over(self) -> bool:
        return self._stamp is not None and self._is_settled and not self._pending

    def _forget(self) -> None:
        self._stamp, self._is_settled = None, False
        self._count, self._rows = 0, bytearray()
        self._told_count, self._told_bytes = 0, 0
        self._closed, self._pending = set(), {}
        self._reset = True

    def _list(self, opened: OpenDirectory, always_list: bool) -> None:
        stamp, now = opened.stamp(), time.time()
        if self._stamp is not None and stamp.inode != self._stamp.inode:
            self._forget()
        if stamp == self._stamp and self._is_settled and not always_list:
            return
        found: dict[Key, str] = {}
        for name in opened.names():
            key = parse_cycle_name(name)
            if key is not None and (key not in found or name.split(".", 2)[1] == self._job):
                found[key] = name
        if self._closed_keys() - found.keys():
            # Somebody moved records away: begin again with what there is.
            self._forget()
        self._pending = {key: found[key] for key in sorted(found.keys() - self._closed_keys())}
        self._stamp, self._is_settled = stamp, stamp.is_settled(now)

    def _read_pending(self, opened: OpenDirectory) -> None:
        """Read what is not known to be closed."""
        open_rows: list[bytes] = []
        unreadable = 0
        for position, (key, name) in enumerate(list(self._pending.items())):
            if position % 64 == 63:
                self._check_time()
            found = opened.read(name, MAX_CYCLE_BYTES)
            if found is None:
                # Listed a moment ago, or in the pass before: whatever it was, it is no record now.
                del self._pending[key]
                continue
            row = parse_cycle(found[0], key) if isinstance(found, tuple) else None
            if row is None or self._is_full(len(open_rows)):
                unreadable += 1
            elif row.ended_at is None:
                open_rows.append(_ROW_ENCODER.encode(row))
            else:
                self._close(key, _ROW_ENCODER.encode(row))
        self._open, self._unreadable = pack_rows(len(open_rows), b"".join(open_rows)), unreadable

    def _is_full(self, open_rows: int) -> bool:
        return self._count + open_rows >= _MOST_CYCLES or len(self._rows) + open_rows * MAX_CYCLE_BYTES > _MOST_BYTES

    def _close(self, key: Key, encoded: bytes) -> None:
        self._closed_keys().add(key)
        self._rows += encoded
        self._count += 1
        del self._pending[key]
        self.has_unsaved = True

    def _closed_keys(self) -> set[Key]:
        if self._closed is None:
            self._closed = {(row.attempt, row.number) for row in unpack_rows(pack_rows(self._count, self._rows))}
        return self._closed

    def _tell(self, problem: str | None) -> CycleChange | None:
        """The change since it was last told, None when there is none."""
        told = (self._open, self._unreadable, problem)
        if told == self._last_told and not self._reset and self._told_count == self._count:
            return None
        new = pack_rows(self._count - self._told_count, self._rows[self._told_bytes :])
        change = CycleChange(
            reset=self._reset,
            closed=new,
            open=self._open,
            unreadable=self._unreadable,
            problem=problem,
        )
        self._last_told, self._reset = told, False
        self._told_count, self._told_bytes = self._count, len(self._rows)
        return change
