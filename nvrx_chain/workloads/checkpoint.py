"""Checkpoints on disk: directories that are complete or not there, and a tracker that names only complete ones.

    iter_0000100/            model.pt, optimizer.pt, rng.pt, metadata.json (sizes and SHA-256 of the others)
    latest_checkpointed_iteration.txt    one integer, written last
    .tmp_iter_0000100.<...>  being written, or left by a kill; .old_iter_0000050.<...>  being removed

The layout is Megatron-LM's. A checkpoint is written under a temporary name, every file fsynced, renamed, and only then
named by the tracker. So a kill at any moment leaves a tracker that names a complete checkpoint. One writer at a time.
Touches: the checkpoint directory. Contents are bytes here; `state` makes them from tensors.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.control import Record
from nvrx_chain.records.files import encode_record, list_names, read_bytes, read_record, sync_directory, write_atomic
from nvrx_chain.workloads.options import ModelShape

TRACKER_NAME = "latest_checkpointed_iteration.txt"
_METADATA_NAME = "metadata.json"
_CHECKPOINT_NAME = re.compile(r"iter_([0-9]{7,18})")
_LEFTOVER_NAME = re.compile(r"\.(?:tmp|old)_iter_[0-9]{7,18}\..+")
# An NFS client may believe for up to 60 s that a name is not there.
_VISIBLE_WITHIN_SECONDS = 90.0
_LOOK_AGAIN_SECONDS = 0.5


class FileDigest(msgspec.Struct, frozen=True, kw_only=True):
    """What a file must be to be whole."""

    size_bytes: int
    sha256: str


class CheckpointMetadata(Record, frozen=True, kw_only=True):
    """`metadata.json`. `data_position` counts the batches that each rank has drawn from the mock data."""

    iteration: int
    data_position: int
    world_size: int
    seed: int
    model: ModelShape
    files: dict[str, FileDigest]
    written_at: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    metadata: CheckpointMetadata
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredCheckpoint:
    """A checkpoint newer than the one that the tracker names: whole but never announced, or damaged."""

    iteration: int
    reason: str


class CheckpointStore:
    """The checkpoints of one run. `save_seconds` stretches a save over its files, as a big model's would be."""

    def __init__(self, directory: Path, *, keep: int, save_seconds: float, clock: Clock) -> None:
        self._directory = directory
        self._keep = keep
        self._save_seconds = save_seconds
        self._clock = clock

    def tracked_iteration(self) -> int | None:
        """The iteration that the tracker names; None when there is no tracker, which means a fresh start.

        Raises RecordError for a tracker that cannot be read as one number: a fresh start would overwrite the run.
        """
        # Listing refreshes a name cache of NFS that still says "no such file".
        self._iterations_on_disk()
        content = read_bytes(self._directory / TRACKER_NAME)
        if content is None:
            return None
        match = None if isinstance(content, Unobserved) else re.fullmatch(rb"\s*([0-9]{1,18})\s*", content)
        if match is None:
            problem = content.reason if isinstance(content, Unobserved) else f"it says {content[:40]!r}"
            raise RecordError(
                f"reading {self._directory / TRACKER_NAME}: {problem}, not one iteration",
                hint=f"write the iteration of an intact checkpoint into it; {self._describe_intact()}",
            )
        return int(match.group(1))

    def forget(self) -> None:
        """Remove the tracker, so that no checkpoint here counts any more; later saves replace them. Rank 0 alone."""
        try:
            (self._directory / TRACKER_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise RecordError(
                f"removing {self._directory / TRACKER_NAME}: {error.strerror}", hint="remove it by hand"
            ) from error

    def read(self, iteration: int) -> Checkpoint:
        """The checkpoint of this iteration. Raises RecordError when it is missing, or not whole."""
        try:
            return self._read(iteration)
        except RecordError as error:
            hint = f"{TRACKER_NAME} names it; {self._describe_intact()}"
            raise RecordError(error.message, part=error.part, hint=hint) from error

    def read_when_visible(self, iteration: int) -> Checkpoint:
        """The same for a rank whose file system may show a little later what rank 0 has seen already."""
        deadline = self._clock.monotonic() + _VISIBLE_WITHIN_SECONDS
        while iteration not in self._iterations_on_disk() and self._clock.monotonic() < deadline:
            self._clock.wait(threading.Event(), _LOOK_AGAIN_SECONDS)
        return self.read(iteration)

    def ignored_after(self, iteration: int) -> tuple[IgnoredCheckpoint, ...]:
        """The checkpoints newer than `iteration`, which the tracker names, and what is wrong with each."""
        ignored = []
        for newer in self._iterations_on_disk():
            if newer > iteration:
                problem = self._problem(newer)
                reason = f"damaged: {problem}" if problem else "whole, but the tracker does not name it"
                ignored.append(IgnoredCheckpoint(iteration=newer, reason=reason))
        return tuple(ignored)

    def write(self, metadata: CheckpointMetadata, files: Mapping[str, bytes]) -> None:
        """Make a checkpoint durable, name it in the tracker, remove the oldest. Fills in `metadata.files`.

        Raises RecordError; the tracker then names a complete checkpoint all the same, this one or the one before.
        """
        digests = {
            name: FileDigest(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in files.items()
        }
        complete = {**files, _METADATA_NAME: encode_record(msgspec.structs.replace(metadata, files=digests))}
        final = self._path(metadata.iteration)
        temporary = self._directory / f".tmp_{final.name}.{metadata.host}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            temporary.mkdir(parents=True)
            for name, content in complete.items():
                write_atomic(temporary / name, content)
                self._clock.wait(threading.Event(), self._save_seconds / len(complete))
            self._install(temporary, final, metadata.iteration)
            write_atomic(self._directory / TRACKER_NAME, b"%d\n" % metadata.iteration)
            self._prune(metadata.iteration)
        except OSError as error:
            raise RecordError(
                f"writing the checkpoint {final}: {error.strerror or error}",
                hint="look for a full or read-only file system",
            ) from error

    def _install(self, temporary: Path, final: Path, iteration: int) -> None:
        if iteration in self._iterations_on_disk():
            # A kill between rename and tracker, or an older time line: nobody was ever pointed to it.
            if self.tracked_iteration() == iteration:
                raise RecordError(
                    f"writing the checkpoint {final}: the tracker names it already",
                    hint="does another run write into the same directory?",
                )
            self._discard(final)
        os.rename(temporary, final)
        sync_directory(self._directory)

    def _prune(self, newest: int) -> None:
        """Keep `newest` and, up to the limit, those before it. What is newer is nobody's and is replaced in time."""
        older = [iteration for iteration in self._iterations_on_disk() if iteration < newest]
        for iteration in older[: max(0, len(older) - (self._keep - 1))]:
            self._discard(self._path(iteration))
        for name in self._names():
            if _LEFTOVER_NAME.fullmatch(name):
                # NFS keeps the files of a reader that has them open: what cannot go now goes after the next save.
                shutil.rmtree(self._directory / name, ignore_errors=True)

    def _discard(self, path: Path) -> None:
        # Renamed first, so that no reader ever finds half a checkpoint under its name.
        os.rename(path, path.with_name(f".old_{path.name}.{secrets.token_hex(4)}"))

    def _read(self, iteration: int) -> Checkpoint:
        path = self._path(iteration)
        metadata = read_record(path / _METADATA_NAME, CheckpointMetadata)
        if metadata is None:
            problem = "its metadata.json is missing" if iteration in self._iterations_on_disk() else "it is missing"
            raise RecordError(f"reading the checkpoint {path}: {problem}")
        if isinstance(metadata, Unobserved):
            raise RecordError(f"reading the checkpoint {path}: it is damaged: {metadata.reason}")
        if metadata.iteration != iteration:
            raise RecordError(f"reading the checkpoint {path}: it is that of iteration {metadata.iteration}")
        files = {}
        for name, digest in metadata.files.items():
            content = read_bytes(path / name, max_bytes=digest.size_bytes)
            if isinstance(content, Unobserved):
                raise RecordError(f"reading the checkpoint {path}: it is damaged: {content.reason}")
            if content is None or hashlib.sha256(content).hexdigest() != digest.sha256:
                size = "no such file" if content is None else f"{len(content)} of {digest.size_bytes} bytes"
                problem = f"it is damaged: {name} is not what was written ({size})"
                raise RecordError(f"reading the checkpoint {path}: {problem}")
            files[name] = content
        return Checkpoint(metadata=metadata, files=files)

    def _problem(self, iteration: int) -> str | None:
        try:
            self._read(iteration)
        except RecordError as error:
            return error.message
        return None

    def _describe_intact(self) -> str:
        intact = [str(iteration) for iteration in self._iterations_on_disk() if self._problem(iteration) is None]
        return f"intact here: {', '.join(intact)}" if intact else "no intact checkpoint is here"

    def _iterations_on_disk(self) -> list[int]:
        matches = (_CHECKPOINT_NAME.fullmatch(name) for name in self._names())
        return sorted(int(match.group(1)) for match in matches if match)

    def _names(self) -> tuple[str, ...]:
        names = list_names(self._directory)
        if isinstance(names, Unobserved):
            raise RecordError(
                f"reading the checkpoint directory: {names.reason}", hint="make it readable for the user of the job"
            )
        return names or ()

    def _path(self, iteration: int) -> Path:
        return self._directory / f"iter_{iteration:07d}"


def write_done_file(path: Path | None, iteration: int) -> None:
    """Say that the target was reached, where somebody asked for it: one integer. Raises RecordError."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            f"creating {path.parent}: {error.strerror or error}",
            part=path.name,
            hint="make the directory above it writable for the user of the job",
        ) from error
    write_atomic(path, b"%d\n" % iteration)
