"""Reading a chain from its run directory: manifest, verdict, hold, submissions, generations in order.

Used by the generation, the operator's commands and the watcher. Touches: the run directory, reads only, except for
`decide` and the hold, which their callers own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.control import ChainOutcome, Closed, Ending, Excluded, GenerationRecord, Hold
from nvrx_chain.records.files import (
    encode_record,
    list_names,
    read_bytes,
    read_record,
    refresh_names,
    write_atomic,
    write_first,
)
from nvrx_chain.records.layout import RunDirectory, parse_submission_name
from nvrx_chain.records.manifest import ChainManifest, SubmissionId, SubmissionIntent

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGeneration:
    """One generation that was submitted, in the order of submission."""

    sequence: int
    array_job_id: int
    submitted_at: str | None


@dataclass(frozen=True, slots=True)
class ChainFiles:
    """The files of one chain_id in one run directory. `chain_id` None takes that of the manifest."""

    directory: RunDirectory
    chain_id: str
    owner_uid: int | None = None

    def manifest(self) -> ChainManifest:
        """The manifest. Raises RecordError."""
        return read_manifest(self.directory, owner_uid=self.owner_uid)

    def look_for_outcome(self) -> ChainOutcome | Unobserved | None:
        """The verdict on this chain_id; an older chain's verdict in the same directory is none of ours."""
        record = read_record(self.directory.outcome, ChainOutcome, owner_uid=self.owner_uid)
        if isinstance(record, Unobserved):
            return record
        return record if record is not None and record.chain_id == self.chain_id else None

    def outcome(self) -> ChainOutcome | None:
        """The verdict on this chain_id, None while there is none that can be read."""
        record = self.look_for_outcome()
        if isinstance(record, Unobserved):
            log.warning("ignoring an unreadable verdict reason=%s", record.reason)
            return None
        return record

    def look_for_ending(self) -> Ending | Unobserved | None:
        """Whether this chain_id ends with the generation that ran when that was decided."""
        # Looked at once, at the end of a generation: a name that is not seen for a minute would be missed for ever.
        refresh_names(self.directory.path)
        record = read_record(self.directory.ending, Ending, owner_uid=self.owner_uid)
        if record is None or isinstance(record, Unobserved):
            return record
        return record if record.chain_id == self.chain_id else None

    def ending(self) -> Ending | None:
        """The same, None also while it cannot be read."""
        record = self.look_for_ending()
        if isinstance(record, Unobserved):
            log.warning("ignoring an unreadable ending reason=%s", record.reason)
            return None
        return record

    def look_for_excluded(self) -> Excluded | Unobserved | None:
        """The nodes that this chain_id keeps away from; None while only its submit says so."""
        record = read_record(self.directory.excluded, Excluded, owner_uid=self.owner_uid)
        if record is None or isinstance(record, Unobserved):
            return record
        return record if record.chain_id == self.chain_id else None

    def write_excluded(self, excluded: Excluded) -> None:
        """Write or replace them."""
        write_atomic(self.directory.excluded, encode_record(excluded))

    def hold(self) -> Hold | None:
        """The newest hold of this chain_id, released or not."""
        record = read_record(self.directory.hold, Hold, owner_uid=self.owner_uid)
        if isinstance(record, Unobserved):
            log.warning("ignoring an unreadable hold reason=%s", record.reason)
            return None
        return record if record is not None and record.chain_id == self.chain_id else None

    def decide(self, outcome: ChainOutcome) -> bool:
        """Write the final verdict unless there is one; True when this call won."""
        return write_first(self.directory.outcome, encode_record(outcome))

    def end_after(self, ending: Ending) -> bool:
        """Write that the chain ends with the generation that runs, unless that stands; True when this call won."""
        return write_first(self.directory.ending, encode_record(ending))

    def write_hold(self, hold: Hold) -> None:
        """Write or replace the hold."""
        write_atomic(self.directory.hold, encode_record(hold))

    def generations(self) -> tuple[KnownGeneration, ...]:
        """As `list_generations`, empty when they cannot be listed: no base for "there is none"."""
        found = self.list_generations()
        if isinstance(found, Unobserved):
            log.warning("the generations of the chain are not known reason=%s", found.reason)
            return ()
        return found

    def list_generations(self) -> tuple[KnownGeneration, ...] | Unobserved:
        """Every generation whose array job id was recorded, in the order of submission."""
        names = list_names(self.directory.submissions)
        if isinstance(names, Unobserved):
            return names
        found = []
        for name in names or ():
            parsed = parse_submission_name(name)
            if parsed is None or not parsed[1]:
                continue
            record = read_record(self.directory.submissions / name, SubmissionId, owner_uid=self.owner_uid)
            if isinstance(record, SubmissionId) and record.chain_id == self.chain_id:
                found.append(
                    KnownGeneration(
                        sequence=record.sequence,
                        array_job_id=record.array_job_id,
                        submitted_at=record.submitted_at,
                    )
                )
        return tuple(sorted(found, key=lambda generation: generation.sequence))

    def is_last(self, array_job_id: int) -> bool:
        """Whether this generation is known and nothing of the chain was submitted after it, or may have been."""
        names = list_names(self.directory.submissions)
        parsed = [parse_submission_name(name) for name in names] if isinstance(names, tuple) else []
        sequences = [item[0] for item in parsed if item is not None]
        known = {generation.array_job_id: generation.sequence for generation in self.generations()}
        # By the names and not by what could be read: an id that cannot be read may well be a later generation.
        return array_job_id in known and known[array_job_id] == max(sequences)

    def open_intents(self) -> tuple[SubmissionIntent, ...]:
        """Intents of this chain_id that have no array job id: sbatch may or may not have queued them."""
        names = list_names(self.directory.submissions)
        if names is None or isinstance(names, Unobserved):
            return ()
        parsed = [item for item in (parse_submission_name(name) for name in names) if item is not None]
        resolved = {sequence for sequence, has_id in parsed if has_id}
        intents = []
        for sequence, has_id in parsed:
            if has_id or sequence in resolved:
                continue
            record = read_record(self.directory.intent(sequence), SubmissionIntent, owner_uid=self.owner_uid)
            if isinstance(record, SubmissionIntent) and record.chain_id == self.chain_id:
                intents.append(record)
        return tuple(intents)

    def earlier_generations(self, array_job_id: int) -> tuple[int, ...]:
        """Array job ids before this one, newest first, that have a directory. Order of submission, else of the id."""
        known = [generation.array_job_id for generation in self.generations()]
        if array_job_id in known:
            earlier = known[: known.index(array_job_id)]
        else:
            earlier = [job for job in known if job < array_job_id]
        started = self._started()
        found = frozenset() if isinstance(started, Unobserved) else started
        return tuple(job for job in reversed(earlier) if job in found)

    def directories_before(self, array_job_id: int) -> tuple[int, ...] | Unobserved:
        """All whose ranks may live beside those of this generation, newest first.

        Also generations whose id was never recorded (its writer died after sbatch), and those of an older chain in the
        same run directory: they wrote the same checkpoints. An unrecorded one counts as earlier when its id is smaller.
        """
        known, started = self.list_generations(), self._started()
        if isinstance(known, Unobserved):
            return known
        if isinstance(started, Unobserved):
            return started
        recorded = [generation.array_job_id for generation in known]
        at = recorded.index(array_job_id) if array_job_id in recorded else None
        before, after = (recorded[:at], recorded[at:]) if at is not None else ([], [])
        earlier = {job for job in started if job in before or (job < array_job_id and job not in after)}
        # Slurm's ids grow; one that is larger than ours is from before its counter wrapped, so it comes last.
        return tuple(sorted(earlier, key=lambda job: (job > array_job_id, -job)))

    def later_generation(self, array_job_id: int) -> int | None:
        """A generation submitted after this one that has published its rendezvous, None when none is seen."""
        started = self._started()
        if isinstance(started, Unobserved) or all(job <= array_job_id for job in started):
            # The usual case costs one listing; ids only fall when Slurm's counter wraps.
            return None
        known = [generation.array_job_id for generation in self.generations()]
        later = known[known.index(array_job_id) + 1 :] if array_job_id in known else ()
        for job in later:
            path = self.directory.generation(job).rendezvous
            if job in started and isinstance(read_bytes(path, owner_uid=self.owner_uid), bytes):
                return job
        return None

    def _started(self) -> frozenset[int] | Unobserved:
        names = list_names(self.directory.generations)
        if isinstance(names, Unobserved):
            return names
        return frozenset(int(name) for name in names or () if name.isascii() and name.isdigit())

    def record_of(self, array_job_id: int) -> GenerationRecord | None:
        """How a generation went, None while unknown."""
        path = self.directory.generation(array_job_id).record
        record = read_record(path, GenerationRecord, owner_uid=self.owner_uid)
        if isinstance(record, Unobserved):
            log.warning("ignoring an unreadable record reason=%s", record.reason)
            return None
        return record

    def closed_of(self, array_job_id: int) -> Closed | None:
        """How a generation was closed, None while it was not or that cannot be read."""
        record = read_record(self.directory.generation(array_job_id).closed, Closed, owner_uid=self.owner_uid)
        return record if isinstance(record, Closed) and record.array_job_id == array_job_id else None


def read_manifest(directory: RunDirectory, *, owner_uid: int | None = None) -> ChainManifest:
    """`chain.json` of a run directory. Raises RecordError with what to do about it."""
    record = read_record(directory.manifest, ChainManifest, owner_uid=owner_uid)
    if record is None:
        raise RecordError(
            "reading the chain", part=str(directory.manifest), hint="no chain was submitted into this directory"
        )
    if isinstance(record, Unobserved):
        raise RecordError(f"reading the chain: {record.reason}")
    return record


def open_chain(directory: RunDirectory, *, owner_uid: int | None = None) -> ChainFiles:
    """The chain whose manifest lies in this directory. Raises RecordError."""
    manifest = read_manifest(directory, owner_uid=owner_uid)
    return ChainFiles(directory, manifest.chain_id, owner_uid)
