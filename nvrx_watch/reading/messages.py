"""What the reading process and the watcher say to each other through their pipes. Pure vocabulary."""

from __future__ import annotations

from datetime import datetime

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import (
    ChainOutcome,
    Closed,
    Ending,
    GenerationRecord,
    Hold,
    Lease,
    NoRestart,
    Rendezvous,
)
from nvrx_chain.records.manifest import ChainManifest
from nvrx_watch.layout import Layout
from nvrx_watch.model import LogActivity


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Read this chain. `seconds`: stop by yourself by then, so that what was read so far is not lost.

    `adopted` are array jobs that the queue showed to be the chain's and that are not on record, by their sequence.
    """

    layout: Layout
    seconds: float
    use_cache: bool
    adopted: tuple[tuple[int, int], ...] = ()


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """This chain is not read again: keep nothing of it. Has no answer."""

    layout: Layout


class CycleRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One readable cycle record; its node lists are as the file writes them, "" where there is none."""

    attempt: int
    number: int
    started_at: datetime | None
    ended_at: datetime | None
    active_nodes: str
    standby_nodes: str
    log_file: str


class CycleChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is new about the cycles of a generation. Both row fields are a msgpack array of CycleRow.

    `reset`: `closed` is all there is, else it comes on top of what was sent before. `open` is always all of them.
    `problem`: the directory could not be read in this pass; the rest is then as before.
    """

    reset: bool
    closed: bytes
    open: bytes
    unreadable: int
    problem: str | None


class ControlPart(msgspec.Struct, frozen=True, kw_only=True):
    """The control files of one generation and its record. `unobserved` names those that could not be read, and why."""

    rendezvous: Rendezvous | None = None
    closed: Closed | None = None
    record: GenerationRecord | None = None
    no_restart: NoRestart | None = None
    leases: tuple[Lease, ...] = ()
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    unobserved: dict[str, str] = {}
    newest_ns: int | None = None
    notes: tuple[str, ...] = ()


class GenerationChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is new about one generation; None for what is as it was. `log` and `iterations` are always all there is.

    `control` is a ControlPart as msgpack: pickled, a hundred of them take ten times as long.
    `iterations` has the last training iteration of the newest cycles by (attempt, number).
    """

    array_job_id: int
    control: bytes | None = None
    cycles: CycleChange | None = None
    log: LogActivity | Unobserved | None = None
    iterations: tuple[tuple[int, int, int], ...] = ()


class KnownDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """One generation in the order of the chain."""

    array_job_id: int
    sequence: int
    submitted_at: datetime | None
    has_directory: bool


class ReadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a reading: all that is not about a single generation."""

    generations: tuple[KnownDirectory, ...] | Unobserved
    manifest: ChainManifest | Unobserved | None = None
    open_stamps: tuple[str, ...] = ()
    iteration: int | Unobserved | None = None
    verdict: ChainOutcome | Unobserved | None = None
    hold: Hold | Unobserved | None = None
    ending: Ending | Unobserved | None = None
    can_write: bool | None = None
    free_bytes: int | None = None
    file_clock_ahead_seconds: float | None = None
    notes: tuple[str, ...] = ()


class Entering(msgspec.Struct, frozen=True):
    """The directory that is touched next: when nothing more comes, this one hangs."""

    directory: str
    is_cache: bool = False


class NotRead(msgspec.Struct, frozen=True):
    """The reading ended without a result."""

    reason: str


Request = ReadRequest | ForgetRequest
Message = GenerationChange | ReadSummary | Entering | NotRead
