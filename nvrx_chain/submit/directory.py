"""What a run directory already holds of a chain: nothing, a half-submitted one, a submitted one, an ended one.

Touches: chain.json, chain_outcome.json, submissions/ and the records of generations, all read only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.control import ChainOutcome, GenerationRecord
from nvrx_chain.records.files import list_names, read_record
from nvrx_chain.records.layout import RunDirectory, parse_submission_name
from nvrx_chain.records.manifest import ChainManifest, SubmissionId, SubmissionIntent

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryState:
    """A reading of a run directory. Submissions are by sequence; `exists` False means that it will be made.

    `open_to`: who may write in it besides its owner, None for nobody.
    """

    exists: bool = False
    owner_uid: int | None = None
    open_to: str | None = None
    manifest: ChainManifest | None = None
    outcome: ChainOutcome | None = None
    intents: Mapping[int, SubmissionIntent] = field(default_factory=dict)
    ids: Mapping[int, SubmissionId] = field(default_factory=dict)
    unrecorded_generations: tuple[int, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """The sequences of the chain that have no array job on record."""
        if self.manifest is None:
            return ()
        return tuple(seq for seq in range(1, self.manifest.chain_depth + 1) if seq not in self.ids)


def read_directory(run: RunDirectory, *, owner_uid: int | None = None) -> DirectoryState:
    """Read it. Raises RecordError for a record that is there and cannot be read: nothing is decided on half a chain.

    With `owner_uid` a record of anybody but that user and root is one that cannot be read.
    """
    try:
        status = os.stat(run.path)
    except FileNotFoundError:
        return DirectoryState()
    except OSError as error:
        raise RecordError(
            f"reading the run directory {run.path}: {error.strerror}", hint="choose a --run-dir that you may read"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise RecordError(
            f"reading the run directory {run.path}: it is not a directory",
            hint="choose another --run-dir, or move that file away",
        )
    manifest = _trusted(read_record(run.manifest, ChainManifest, owner_uid=owner_uid))
    intents, ids = _read_submissions(run, manifest, owner_uid)
    return DirectoryState(
        exists=True,
        owner_uid=status.st_uid,
        open_to=_open_to(status.st_mode),
        manifest=manifest,
        outcome=_trusted(read_record(run.outcome, ChainOutcome, owner_uid=owner_uid)),
        intents=intents,
        ids=ids,
        unrecorded_generations=_unrecorded_generations(run, manifest, ids, owner_uid),
    )


def _open_to(mode: int) -> str | None:
    if mode & stat.S_IWOTH:
        return "everybody"
    return "its group" if mode & stat.S_IWGRP else None


def _read_submissions(
    run: RunDirectory, manifest: ChainManifest | None, owner_uid: int | None
) -> tuple[dict[int, SubmissionIntent], dict[int, SubmissionId]]:
    intents: dict[int, SubmissionIntent] = {}
    ids: dict[int, SubmissionId] = {}
    if manifest is None:
        return intents, ids
    for name in _names(run.submissions):
        parsed = parse_submission_name(name)
        if parsed is None:
            continue
        sequence, is_id = parsed
        if is_id:
            submitted = _trusted(read_record(run.submission_id(sequence), SubmissionId, owner_uid=owner_uid))
            if submitted is not None and submitted.chain_id == manifest.chain_id:
                ids[sequence] = submitted
        else:
            intent = _trusted(read_record(run.intent(sequence), SubmissionIntent, owner_uid=owner_uid))
            if intent is not None and intent.chain_id == manifest.chain_id:
                intents[sequence] = intent
    return intents, ids


def _unrecorded_generations(
    run: RunDirectory, manifest: ChainManifest | None, ids: Mapping[int, SubmissionId], owner_uid: int | None
) -> tuple[int, ...]:
    """Array jobs of this chain that ran although no submission on record has their id, by their own records.

    A generation that was accepted without a reply may have come and gone before anybody looks into the queue again.
    """
    if manifest is None:
        return ()
    recorded = {submitted.array_job_id for submitted in ids.values()}
    found: list[int] = []
    for name in _names(run.generations):
        if not (name.isascii() and name.isdigit()) or int(name) in recorded:
            continue
        record = read_record(run.generation(int(name)).record, GenerationRecord, owner_uid=owner_uid)
        if isinstance(record, GenerationRecord) and record.chain_id == manifest.chain_id:
            found.append(int(name))
    return tuple(sorted(found))


def _names(directory: Path) -> tuple[str, ...]:
    names = list_names(directory)
    if isinstance(names, Unobserved):
        raise RecordError(names.reason, hint="repeat the command when it can be listed again")
    return names or ()


def _trusted(record: T | None | Unobserved) -> T | None:
    if isinstance(record, Unobserved):
        raise RecordError(record.reason, hint="mend or move the file, or choose another --run-dir")
    return record
