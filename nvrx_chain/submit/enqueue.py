"""Carrying out a SubmitPlan: an intent, sbatch, an id, for each generation, so that a crash at any point can be mended.

Touches: submissions/ of the run directory, Slurm (sbatch, squeue, scontrol show; scancel of duplicates).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import RecordError, SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.records.files import encode_record, read_record, write_atomic, write_first
from nvrx_chain.records.manifest import SubmissionId, SubmissionIntent
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import JobDetail
from nvrx_chain.slurm.states import JobState
from nvrx_chain.submit.adopt import AFTER_CRASH_SECONDS, AFTER_SBATCH_SECONDS, await_stamp, stamped_array_jobs
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.plan import PlannedGeneration, SubmitPlan
from nvrx_chain.submit.readback import find_changes, lacks_singleton
from nvrx_chain.submit.withdraw import withdraw

ATTEMPTS = 3
_READ_BACK_PAUSES_SECONDS = (0.0, 1.0, 3.0)

_log = logging.getLogger(__name__)


class SubmittedDifferently(SlurmError):
    """The queued job is not the one that was asked for. Nothing of such a chain may stay in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An array job that is one of our generations. `adopted`: found by its stamp, not named by sbatch."""

    array_job_id: int
    cluster: str | None
    adopted: bool


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a call has queued and learnt so far; right at every moment, also when `enqueue` raises.

    `mine` has the array jobs that this call put into the queue, with Slurm's own submit time where it was read.
    """

    mine: dict[int, datetime | None] = field(default_factory=dict)
    say: Callable[[str], None]
    ids: dict[int, SubmissionId] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubtful: bool = False

    def note(self, text: str) -> None:
        """Tell the caller at once, and keep it for the result."""
        self.notes.append(text)
        self.say(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueuer:
    """Queues the generations of one plan that the directory has no id for."""

    plan: SubmitPlan
    directory: DirectoryState
    client: SlurmClient
    clock: Clock
    progress: Progress

    def enqueue(self) -> None:
        """Queue what is missing, in order.

        Raises SlurmError when Slurm rejected a generation, SlurmAmbiguous when nobody can tell whether one is
        queued, SubmittedDifferently when the job read back is not the one asked for, RecordError for our files.
        """
        self.progress.ids.update(self.directory.ids)
        for generation in self.plan.generations:
            if generation.sequence not in self.progress.ids:
                accepted = self._find_earlier(generation) or self._submit(generation)
                self._check_and_record(generation, accepted)
        if self.progress.doubtful:
            self._end_duplicates()

    def _find_earlier(self, generation: PlannedGeneration) -> Accepted | None:
        """The array job of an intent whose submit died before it wrote the id down; None when there is none."""
        if generation.sequence not in self.directory.intents:
            return None
        self.progress.doubtful = True
        found = self._await(generation, AFTER_CRASH_SECONDS)
        # One that has come and gone is no longer in the queue, but it left its own record.
        found = found or self.directory.unrecorded_generations
        return self._adopt(generation, found[0]) if found else None

    def _submit(self, generation: PlannedGeneration) -> Accepted:
        """sbatch, and when its answer is unclear the queue before any second try."""
        self._write_intent(generation)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                submitted = self.client.submit(generation.argv)
            except SlurmAmbiguous as error:
                _log.warning(
                    "sbatch gave no clear answer stamp=%s attempt=%s error=%s", generation.stamp, attempt, error
                )
                self.progress.doubtful = True
                found = self._await(generation, AFTER_SBATCH_SECONDS)
                if found:
                    self.progress.mine[found[0]] = None
                    return self._adopt(generation, found[0])
                continue
            except SlurmError as error:
                last = self.plan.generations[-1].sequence
                raise type(error)(
                    f"submitting generation {generation.sequence} of {last}: sbatch refused it",
                    part=error.part or error.message,
                    hint=error.hint,
                ) from error
            if submitted.warnings:
                self.progress.note(f"generation {generation.sequence}: sbatch says: {submitted.warnings}")
            self.progress.mine[submitted.array_job_id] = None
            return Accepted(array_job_id=submitted.array_job_id, cluster=submitted.cluster, adopted=False)
        raise SlurmAmbiguous(
            f"submitting generation {generation.sequence}: sbatch gave no clear answer {ATTEMPTS} times",
            hint="look at the controller; the same command adopts what was queued and queues the rest",
        )

    def _await(self, generation: PlannedGeneration, pauses: tuple[float, ...]) -> tuple[int, ...]:
        manifest = self.plan.manifest
        found = await_stamp(
            self.client,
            self.clock,
            stamp=generation.stamp,
            user=manifest.user,
            name=manifest.job_name,
            pauses=pauses,
        )
        if isinstance(found, Unobserved):
            raise SlurmAmbiguous(
                f"submitting generation {generation.sequence}: it may be queued, and squeue does not answer",
                part=found.reason,
                hint="repeat the command when squeue answers: it queues nothing twice",
            )
        return found

    def _adopt(self, generation: PlannedGeneration, array_job_id: int) -> Accepted:
        self.progress.note(
            f"generation {generation.sequence}: job {array_job_id} had been queued without an answer and was adopted"
        )
        return Accepted(array_job_id=array_job_id, cluster=self.plan.manifest.cluster, adopted=True)

    def _write_intent(self, generation: PlannedGeneration) -> None:
        if generation.sequence in self.directory.intents:
            return
        intent = SubmissionIntent(
            chain_id=self.plan.manifest.chain_id,
            sequence=generation.sequence,
            stamp=generation.stamp,
            argv=generation.argv,
            intended_at=format_time(self.clock.now()),
        )
        path = self.plan.run.intent(generation.sequence)
        if not write_first(path, encode_record(intent)):
            raise _overtaken(generation, path)

    def _check_and_record(self, generation: PlannedGeneration, accepted: Accepted) -> None:
        records = self._read_back(accepted)
        times = [record.submitted_at for record in records if record.submitted_at is not None]
        submitted_at = min(times) if times else None
        if accepted.array_job_id in self.progress.mine:
            self.progress.mine[accepted.array_job_id] = submitted_at
        self._refuse_changes(generation, accepted.array_job_id, records)
        submission = SubmissionId(
            chain_id=self.plan.manifest.chain_id,
            sequence=generation.sequence,
            array_job_id=accepted.array_job_id,
            cluster=accepted.cluster,
            submitted_at=format_time(submitted_at) if submitted_at else None,
            adopted=accepted.adopted,
            recorded_at=format_time(self.clock.now()),
        )
        self.progress.ids[generation.sequence] = self._record(generation, submission)

    def _record(self, generation: PlannedGeneration, submission: SubmissionId) -> SubmissionId:
        """Write the id down; what is on record now."""
        path = self.plan.run.submission_id(generation.sequence)
        if write_first(path, encode_record(submission)):
            return submission
        present = read_record(path, SubmissionId, owner_uid=self.plan.manifest.uid)
        # Another call may have found the very job in the queue before its id was on record, and adopted it.
        if isinstance(present, SubmissionId) and present.array_job_id == submission.array_job_id:
            return present
        raise _overtaken(generation, path)

    def _read_back(self, accepted: Accepted) -> tuple[JobDetail, ...]:
        """The job as Slurm has it; () with a note when it could not be seen.

        Raises SlurmAmbiguous when Slurm does not know a job that it has just accepted: an unclean death of its
        controller loses the newest jobs, and gives their ids out again.
        """
        never = threading.Event()
        seen: tuple[JobDetail, ...] | Unobserved | None = None
        for seconds in _READ_BACK_PAUSES_SECONDS:
            self.clock.wait(never, seconds)
            seen = self.client.show_job(accepted.array_job_id)
            if isinstance(seen, tuple) and seen:
                return seen
        if seen is None and not accepted.adopted:
            raise SlurmAmbiguous(
                f"reading job {accepted.array_job_id} back: sbatch gave this id, and Slurm does not know it",
                hint="its controller may have lost the job",
            )
        reason = seen.reason if isinstance(seen, Unobserved) else "it has ended and is forgotten"
        self.progress.note(f"warning: job {accepted.array_job_id} could not be read back: {reason}")
        return ()

    def _refuse_changes(self, generation: PlannedGeneration, array_job_id: int, records: tuple[JobDetail, ...]) -> None:
        # Looked at after the job itself: a predecessor that lives now lived then, and must have blocked it.
        unblocked = any(lacks_singleton(record) for record in records)
        has_predecessor = unblocked and self._has_live_predecessor(generation)
        changes = find_changes(self.plan, generation, records, has_predecessor=has_predecessor)
        if changes:
            raise SubmittedDifferently(
                f"submitting generation {generation.sequence}: job {array_job_id} is not as it was asked for",
                part="; ".join(changes),
                hint="a plugin or variable of this site changes jobs on their way in; ask its administrators",
            )

    def _has_live_predecessor(self, generation: PlannedGeneration) -> bool:
        earlier = {s.array_job_id for sequence, s in self.progress.ids.items() if sequence < generation.sequence}
        if not earlier:
            return False
        queue = self.client.queue(self.plan.manifest.user)
        if isinstance(queue, Unobserved):
            return False
        # Singleton does not wait for a task in COMPLETING.
        return any(
            task.array_job_id in earlier and not task.state.is_terminal and task.state is not JobState.COMPLETING
            for task in queue.tasks
        )

    def _end_duplicates(self) -> None:
        """After doubts: keep the oldest array job of each stamp, cancel the others."""
        manifest = self.plan.manifest
        queue = self.client.queue(manifest.user)
        if isinstance(queue, Unobserved):
            self.progress.note(f"whether a generation is queued twice could not be seen: {queue.reason}")
            return
        for generation in self.plan.generations:
            jobs = stamped_array_jobs(queue, stamp=generation.stamp, user=manifest.user, name=manifest.job_name)
            alive = tuple(job for job in jobs if any(not task.state.is_terminal for task in queue.of(job)))
            if len(alive) < 2:
                continue
            self._keep(generation, alive[0])
            extra = {job: queue.of(job)[0].submitted_at for job in alive[1:]}
            outcome = withdraw(self.client, self.clock, manifest, extra)
            self.progress.note(
                f"generation {generation.sequence} was queued twice: kept {alive[0]}, {outcome.describe()}"
            )

    def _keep(self, generation: PlannedGeneration, array_job_id: int) -> None:
        recorded = self.progress.ids[generation.sequence]
        if recorded.array_job_id == array_job_id:
            return
        kept = msgspec.structs.replace(recorded, array_job_id=array_job_id, adopted=True, submitted_at=None)
        write_atomic(self.plan.run.submission_id(generation.sequence), encode_record(kept))
        self.progress.ids[generation.sequence] = kept


def _overtaken(generation: PlannedGeneration, path: Path) -> RecordError:
    return RecordError(
        f"submitting generation {generation.sequence}: another submit or extend is at work in this directory",
        part=path.name,
        hint="wait for its end, then look with nvrx-chain status",
    )
