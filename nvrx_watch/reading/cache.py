"""What a one-shot pass leaves for the next one: the closed cycle records and ended generations of one chain.

Touches: one file per chain in the cache directory, written atomically. It only saves time: a file that is damaged, of
another version or of another chain is ignored and said once.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import msgspec

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.files import read_bytes, write_atomic
from nvrx_watch.reading.control import SavedControl
from nvrx_watch.reading.cycles import SavedCycles

VERSION = 1
MAX_CACHE_BYTES = 1 << 26
_MAGIC = b"nvrx-watch cache\n"


class SavedGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one generation."""

    array_job_id: int
    control: SavedControl | None
    cycles: SavedCycles | None


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    key: str
    generations: tuple[SavedGeneration, ...]


_DECODER = msgspec.msgpack.Decoder(_Saved)


class CacheFile:
    """The cache file of one chain; `key` says which."""

    def __init__(self, directory: Path, key: str) -> None:
        self.path = directory / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.cycles"
        self._key = key

    def load(self) -> tuple[SavedGeneration, ...] | Unobserved:
        """What was saved, () when nothing was; why not when it cannot be used."""
        # Whoever could put a file here could hide cycles from the watcher: only our own is read.
        content = read_bytes(self.path, max_bytes=MAX_CACHE_BYTES, owner_uid=os.geteuid())
        if content is None:
            return ()
        if isinstance(content, Unobserved):
            return Unobserved(f"ignoring the cache: {content.reason}")
        header = len(_MAGIC) + 4
        payload = memoryview(content)[header:]
        if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : header] != _checksum(payload):
            return Unobserved(f"ignoring the cache {self.path}: it is damaged")
        try:
            saved = _DECODER.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            return Unobserved(f"ignoring the cache {self.path}: {error}")
        if saved.version != VERSION or saved.key != self._key:
            return Unobserved(f"ignoring the cache {self.path}: it is of another version or chain")
        if not all(each.cycles is None or each.cycles.is_whole() for each in saved.generations):
            # Rows that cannot be taken apart would end the reading process, in this pass and in every later one.
            return Unobserved(f"ignoring the cache {self.path}: its rows are damaged")
        return saved.generations

    def store(self, generations: tuple[SavedGeneration, ...]) -> None:
        """Replace what was saved. Raises RecordError."""
        payload = msgspec.msgpack.encode(_Saved(version=VERSION, key=self._key, generations=generations))
        if len(payload) > MAX_CACHE_BYTES - 64:
            raise RecordError(f"writing {self.path}: {len(payload)} bytes are too many for a cache")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise RecordError(f"making {self.path.parent}: {error.strerror or error}") from error
        write_atomic(self.path, b"".join((_MAGIC, _checksum(payload), payload)), mode=0o600)


def _checksum(payload: bytes | memoryview) -> bytes:
    return zlib.crc32(payload).to_bytes(4, "big")
