"""What a watcher keeps between passes, one file per chain; and a lock, so that runs of cron do not pile up.

Nothing here ends a pass: a state that cannot be read is an empty one with a note, and one that cannot be written is a
note. Then at most the notices that are open are repeated. Touches: the state directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import time
from pathlib import Path
from types import TracebackType

import msgspec

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.files import read_bytes, write_atomic
from nvrx_watch.hang_guard import HangGuard, Hangs
from nvrx_watch.history_model import History
from nvrx_watch.memory import Memory, Value

SCHEMA = 1
MAX_STATE_BYTES = 16 << 20
DEFAULT_DEADLINE_SECONDS = 10.0
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
_LONGEST_READABLE = 60


class WatchState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a state file."""

    schema: int
    subject: str
    memory: Memory
    history: History


class StateStore:
    """The state files below one directory, which is made when it is first needed."""

    def __init__(
        self, directory: Path, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS, settle_seconds: float = 0.0
    ) -> None:
        """`settle_seconds`: for so long after a write nothing is written unless a sink was told something, or a
        finding came or went. For a daemon, whose memory is its own: two fsyncs take longer than its steady pass.
        """
        self._directory = directory
        self._deadline_seconds = deadline_seconds
        self._settle_seconds = settle_seconds
        self._written: dict[str, tuple[float, History]] = {}
        self._pending: dict[str, tuple[Memory, History]] = {}
        # The directory is often below a home on NFS, and a pass must alert when that hangs.
        self._guard = HangGuard(f"using the state directory {directory}")

    def load(self, subject_key: str) -> tuple[Memory, History, tuple[str, ...]]:
        """What was saved last, and notes; empty when there is nothing, or nothing that can be believed."""
        path = self.path_of(subject_key)
        try:
            content = self._guard.run(
                lambda: read_bytes(path, max_bytes=MAX_STATE_BYTES, owner_uid=os.getuid()), self._deadline_seconds
            )
        except Hangs as error:
            content = Unobserved(error.message)
        if content is None:
            return Memory(), History(), ()
        state = content if isinstance(content, Unobserved) else _decode(content, path, subject_key)
        if isinstance(state, Unobserved):
            return (
                Memory(),
                History(),
                (f"the state of earlier passes is lost, notices may repeat once: {state.reason}",),
            )
        return state.memory, state.history, ()

    def save(self, subject_key: str, memory: Memory, history: History) -> tuple[str, ...]:
        """Replace the state. Never raises: the notes say what could not be kept."""
        at, written = self._written.get(subject_key, (float("-inf"), None))
        if time.monotonic() - at < self._settle_seconds and written == _essence(history):
            self._pending[subject_key] = (memory, history)
            return ()
        self._pending.pop(subject_key, None)
        content, notes = _encode(subject_key, memory, history)
        if content is None:
            return notes
        try:
            self._guard.run(lambda: self._write(self.path_of(subject_key), content), self._deadline_seconds)
        except (RecordError, Hangs, OSError) as error:
            return (*notes, f"the state could not be saved, notices may repeat after a restart: {error}")
        if self._settle_seconds:
            self._written[subject_key] = (time.monotonic(), _essence(history))
        return notes

    def flush(self) -> tuple[str, ...]:
        """Write what `save` has put off. To be called at the end of a daemon."""
        pending, self._written = dict(self._pending), {}
        return tuple(note for key, (memory, history) in pending.items() for note in self.save(key, memory, history))

    def forget(self, subject_key: str) -> tuple[str, ...]:
        """Keep nothing of a subject in memory; its file stays. What `save` has put off is written now."""
        self._written.pop(subject_key, None)
        pending = self._pending.pop(subject_key, None)
        notes = self.save(subject_key, *pending) if pending is not None else ()
        self._written.pop(subject_key, None)
        return notes

    def try_lock(self, subject_key: str) -> StateLock | None:
        """The lock of one chain, as a context manager; None when another process watches it from here.

        Where locks do not work (a read-only or dead directory) the lock holds nothing and says so in `note`.
        """
        path = self._directory / f"{_safe_name(subject_key)}.lock"
        try:
            return self._guard.run(lambda: self._lock(path), self._deadline_seconds, late=_let_go)
        except (Hangs, OSError) as error:
            return StateLock(None, f"no lock was taken, a second run would not be noticed: {error}")

    def path_of(self, subject_key: str) -> Path:
        """The file of one chain. Any key gives a name below the directory, and two keys never the same."""
        return self._directory / f"{_safe_name(subject_key)}.json"

    def _write(self, path: Path, content: bytes) -> None:
        self._make_directory()
        write_atomic(path, content, mode=0o600)

    def _lock(self, path: Path) -> StateLock | None:
        self._make_directory()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        return StateLock(descriptor, None)

    def _make_directory(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)


_HELD: set[int] = set()
"""Descriptors of locks of this process."""


class StateLock:
    """A lock that is held until it is closed or the process ends."""

    def __init__(self, descriptor: int | None, note: str | None) -> None:
        self._descriptor = descriptor
        self.note = note
        if descriptor is not None:
            _HELD.add(descriptor)

    def close(self) -> None:
        """Let go of it. The file stays: without it two processes could hold two locks of one name."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _HELD.discard(descriptor)
            os.close(descriptor)

    def __enter__(self) -> StateLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _forget_locks_of_parent() -> None:
    # A forked reader that hangs on a dead mount would keep the lock after the watcher is gone, for ever.
    for descriptor in list(_HELD):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_forget_locks_of_parent)


def _essence(history: History) -> History:
    """The history without what changes each pass: losing that for a while after a crash repeats no notice."""
    incidents = {key: msgspec.structs.replace(incident, last_seen_at="") for key, incident in history.incidents.items()}
    return msgspec.structs.replace(history, incidents=incidents, last_good_pass_at=None)


def _let_go(lock: StateLock | None) -> None:
    if lock is not None:
        lock.close()


def _safe_name(subject_key: str) -> str:
    digest = hashlib.sha256(subject_key.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    readable = _UNSAFE.sub("-", subject_key)[:_LONGEST_READABLE].strip("-")
    return f"{readable or 'chain'}.{digest}"


def _decode(content: bytes, path: Path, subject_key: str) -> WatchState | Unobserved:
    try:
        state = msgspec.json.decode(content, type=WatchState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        return Unobserved(f"{path} is damaged: {error}")
    if state.schema != SCHEMA:
        return Unobserved(f"{path} has schema {state.schema}, not {SCHEMA}")
    if state.subject != _storable(subject_key):
        return Unobserved(f"{path} is about another chain")
    if any(key != incident.key for key, incident in state.history.incidents.items()):
        return Unobserved(f"{path} is damaged: an incident stands under the key of another")
    return state


def _encode(subject_key: str, memory: Memory, history: History) -> tuple[bytes | None, tuple[str, ...]]:
    """The content, and notes on what had to be left out. Values that no record can hold are forgotten, not fatal."""
    kept = {name: entry for name, entry in memory.seen.items() if _fits(name) and _fits(entry.value)}
    notes = (f"{len(memory.seen) - len(kept)} absurd values are not kept",) if len(kept) < len(memory.seen) else ()
    for seen in (kept, {}):
        state = WatchState(
            schema=SCHEMA, subject=_storable(subject_key), memory=Memory(seen=dict(seen)), history=history
        )
        try:
            content = msgspec.json.encode(state)
        except (UnicodeEncodeError, ValueError, OverflowError) as error:
            return None, (*notes, f"the state could not be saved: {type(error).__name__}")
        if len(content) <= MAX_STATE_BYTES:
            return content, notes
        # A file that is too large to be read again would lose the history too.
        notes = (*notes, f"how long values have been the same is not kept: over {MAX_STATE_BYTES} bytes")
    return None, (*notes, "the state could not be saved: the history alone is too large")


def _fits(value: Value) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, str):
        return _storable(value) == value
    return True


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
