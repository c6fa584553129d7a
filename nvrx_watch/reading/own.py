"""Reading a run directory of nvrx-chain. Touches: that directory and the checkpoint iteration file, reads only.

Nothing is concluded from what is missing: a submission whose array job id cannot be read is told by its stamp, and when
even that is not known the generations of the chain are not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome, Ending, Hold
from nvrx_chain.records.files import read_record
from nvrx_chain.records.layout import RunDirectory, parse_submission_name
from nvrx_chain.records.manifest import ChainManifest, SubmissionId, SubmissionIntent
from nvrx_watch.layout import OwnLayout
from nvrx_watch.reading.control import ControlFiles
from nvrx_watch.reading.cycles import CycleFiles
from nvrx_watch.reading.directory import OpenDirectory, job_id_of, list_directory, open_directory
from nvrx_watch.reading.generation import GenerationFiles
from nvrx_watch.reading.logs import LogReader
from nvrx_watch.reading.messages import Entering, GenerationChange, KnownDirectory, Message, ReadSummary
from nvrx_watch.reading.space import can_create, free_bytes
from nvrx_watch.reading.tracker import read_tracker

R = TypeVar("R", ChainOutcome, Hold, Ending)

_MOST_ID = 1 << 32
_RECENT = 2
"""So many of the newest generations are looked at as if they could change at any moment."""


class OwnRun:
    """One chain of ours between passes."""

    def __init__(self, layout: OwnLayout, logs: LogReader, log_tails: int, check_time: Callable[[], None]) -> None:
        self._layout = layout
        self._run = RunDirectory(layout.run_directory)
        self.logs = logs
        self._log_tails = log_tails
        self._check_time = check_time
        self._ids: dict[str, SubmissionId] = {}
        self._notes: list[str] = []
        self.generations: dict[int, GenerationFiles] = {}

    def directories(self) -> tuple[str, ...]:
        """Where it reads, the run directory first."""
        return (str(self._layout.run_directory),)

    def make(self, array_job_id: int) -> GenerationFiles:
        """What is known of one generation before anything was read."""
        directory = self._run.generation(array_job_id)
        owner = self._layout.owner_uid
        return GenerationFiles(
            array_job_id,
            CycleFiles(str(directory.cycle_infos), array_job_id, owner, self._check_time),
            ControlFiles(directory, self._layout.chain_id, owner),
        )

    def read(self, adopted: Sequence[tuple[int, int]] = ()) -> Iterator[Message]:
        """Everything that is new, the summary last. `adopted`: (array job id, sequence), as in ReadRequest."""
        self._notes = []
        yield Entering(str(self._run.path))
        manifest = self._read_manifest()
        order, stamps = self._read_submissions(adopted)
        newest = None
        if not isinstance(order, Unobserved):
            started = [known.array_job_id for known in order if known.has_directory]
            newest = started[-1] if started else None
            yield from self._read_generations(started)
        verdict = self._of_this_chain(read_record(self._run.outcome, ChainOutcome, owner_uid=self._layout.owner_uid))
        hold = self._of_this_chain(read_record(self._run.hold, Hold, owner_uid=self._layout.owner_uid))
        ending = self._of_this_chain(read_record(self._run.ending, Ending, owner_uid=self._layout.owner_uid))
        can_write = can_create(self._run.path, self._layout.owner_uid)
        free = free_bytes(self._run.path)
        ahead = self._ahead(newest)
        iteration: int | Unobserved | None = Unobserved("chain.json says where the iteration is, and cannot be read")
        if isinstance(manifest, ChainManifest):
            path = self._run.path / manifest.checkpoint_iteration_file
            yield Entering(str(path.parent))
            iteration = read_tracker(path)
        yield ReadSummary(
            generations=order,
            manifest=manifest,
            open_stamps=stamps,
            iteration=iteration,
            verdict=verdict,
            hold=hold,
            ending=ending,
            can_write=can_write,
            free_bytes=free,
            file_clock_ahead_seconds=ahead,
            notes=tuple(self._notes),
        )

    def _read_manifest(self) -> ChainManifest | Unobserved | None:
        return read_record(self._run.manifest, ChainManifest, owner_uid=self._layout.owner_uid)

    def _read_generations(self, started: list[int]) -> Iterator[GenerationChange]:
        for gone in self.generations.keys() - set(started):
            del self.generations[gone]
        for position, array_job_id in enumerate(started):
            self._check_time()
            if array_job_id not in self.generations:
                self.generations[array_job_id] = self.make(array_job_id)
            is_newest = position == len(started) - 1
            change = self.generations[array_job_id].read(
                is_recent=position >= len(started) - _RECENT,
                logs=self.logs if is_newest else None,
                log_directory=str(self._run.generation(array_job_id).logs) if is_newest else None,
                log_tails=self._log_tails,
                owner_uid=self._layout.owner_uid,
            )
            if change is not None:
                yield change

    def _read_submissions(
        self, adopted: Sequence[tuple[int, int]]
    ) -> tuple[tuple[KnownDirectory, ...] | Unobserved, tuple[str, ...]]:
        """The generations in the order of submission, and the stamps of those whose id is not on record."""
        opened = open_directory(self._run.submissions, self._layout.owner_uid)
        if isinstance(opened, Unobserved):
            return opened, ()
        if opened is None:
            return (), ()
        with opened:
            try:
                names = opened.names()
            except OSError as error:
                return Unobserved(f"listing {self._run.submissions}: {error.strerror or error}"), ()
            ids, open_sequences = self._read_ids(opened, names)
            stamps = _read_stamps(opened, open_sequences, self._layout.chain_id)
        if isinstance(stamps, Unobserved):
            return stamps, ()
        directories = list_directory(self._run.generations)
        if isinstance(directories, Unobserved):
            return directories, stamps
        present = {job for name in directories or () if (job := job_id_of(name)) is not None}
        known: dict[int, KnownDirectory] = {}
        for record in sorted(ids, key=lambda each: each.sequence):
            known.setdefault(record.array_job_id, _known(record, record.array_job_id in present))
        for job, sequence in adopted:
            # Once the id of that submission is on record, the record decides.
            if sequence in open_sequences and job not in known:
                known[job] = KnownDirectory(
                    array_job_id=job, sequence=sequence, submitted_at=None, has_directory=job in present
                )
        return tuple(sorted(known.values(), key=lambda each: each.sequence)), stamps

    def _read_ids(self, opened: OpenDirectory, names: list[str]) -> tuple[list[SubmissionId], dict[int, str]]:
        """The ids of this chain, and by sequence why an id of a submission cannot be used."""
        parsed = {name: found for name in names if (found := parse_submission_name(name)) is not None}
        with_id = {sequence for sequence, has_id in parsed.values() if has_id}
        unresolved = {
            sequence: "no id" for sequence, has_id in parsed.values() if not has_id and sequence not in with_id
        }
        ids = []
        for name, (sequence, has_id) in parsed.items():
            if not has_id:
                continue
            record = self._ids.get(name) or _read_id(opened, name)
            if isinstance(record, Unobserved):
                self._notes.append(record.reason)
                unresolved[sequence] = record.reason
                continue
            # Written once by rename: never read again.
            self._ids[name] = record
            if record.chain_id == self._layout.chain_id:
                ids.append(record)
        return ids, unresolved

    def _of_this_chain(self, record: R | Unobserved | None) -> R | Unobserved | None:
        if record is None or isinstance(record, Unobserved):
            return record
        return record if record.chain_id == self._layout.chain_id else None

    def _ahead(self, newest: int | None) -> float | None:
        files = self.generations.get(newest) if newest is not None else None
        part = files.control.part if files is not None and files.control is not None else None
        if part is None or part.newest_ns is None:
            return None
        ahead = part.newest_ns / 1e9 - time.time()
        return ahead if ahead > 0 else None


def _read_id(opened: OpenDirectory, name: str) -> SubmissionId | Unobserved:
    found = opened.record(name, SubmissionId)
    if found is None:
        return Unobserved(f"{opened.path}/{name} was there a moment ago")
    if isinstance(found, Unobserved):
        return found
    if not 0 < found[0].array_job_id < _MOST_ID:
        return Unobserved(f"{opened.path}/{name} states no array job id")
    return found[0]


def _read_stamps(opened: OpenDirectory, unresolved: dict[int, str], chain_id: str) -> tuple[str, ...] | Unobserved:
    """The stamps of submissions without an id; why not when one is not known: it may be a live generation."""
    stamps = []
    for sequence, reason in sorted(unresolved.items()):
        found = opened.record(f"{sequence:04d}.json", SubmissionIntent)
        if isinstance(found, Unobserved):
            return found
        if found is None:
            return Unobserved(f"submission {sequence} of the chain is not known: {reason}")
        if found[0].chain_id == chain_id:
            stamps.append(found[0].stamp)
    return tuple(stamps)


def _known(record: SubmissionId, has_directory: bool) -> KnownDirectory:
    return KnownDirectory(
        array_job_id=record.array_job_id,
        sequence=record.sequence,
        submitted_at=parse_time(record.submitted_at),
        has_directory=has_directory,
    )
