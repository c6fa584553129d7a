"""What an extend would do: the generations that go on where a chain's submissions end. The dry run is this and no more.

An extended chain is the chain that was submitted: the sbatch options are those of its newest intent, and only the
comment changes. Touches: the run directory, Slurm (one squeue); changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.clock import Clock, parse_time
from nvrx_chain.errors import RecordError, SlurmError, Unobserved
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.control import ChainOutcome, Hold
from nvrx_chain.records.files import list_names, read_bytes, read_record
from nvrx_chain.records.layout import RunDirectory, parse_submission_name
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.identity import format_comment, parse_comment
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.submit.adopt import stamped_array_jobs
from nvrx_chain.submit.directory import DirectoryState, read_directory
from nvrx_chain.submit.inherited import HOLD, inherit_options
from nvrx_chain.submit.plan import PlannedGeneration, SubmitPlan

AT_WORK_SECONDS = 600.0
"""As long as a submit that is alive may take from an intent to its id: three times sbatch, each with its looks."""

_LAST_SEQUENCE = 999_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRequest:
    """`number` further generations for a chain. `resume_command` is how one goes on with a chain that has ended."""

    files: ChainFiles
    manifest: ChainManifest
    resume_command: str
    number: int

    @property
    def run(self) -> RunDirectory:
        return self.files.directory

    def find_end(self) -> ChainOutcome | None:
        """How the chain ended, None while it has not. Raises RecordError for a verdict that cannot be read."""
        outcome = self.files.look_for_outcome()
        if isinstance(outcome, Unobserved):
            raise RecordError(f"reading the verdict of the chain: {outcome.reason}", hint="mend or move the file")
        return outcome or self._find_ending()

    def _find_ending(self) -> ChainOutcome | None:
        """The verdict that a chain will get which ends with the generation that runs."""
        ending = self.files.look_for_ending()
        if isinstance(ending, Unobserved):
            raise RecordError(f"reading whether the chain is to end: {ending.reason}", hint="mend or move the file")
        if ending is None:
            return None
        return ChainOutcome(
            chain_id=ending.chain_id,
            verdict=Verdict.CANCELLED,
            array_job_id=ending.array_job_id,
            by=ending.by,
            why=f"{ending.why}; generation {ending.array_job_id} is the last",
            evidence=(),
            decided_at=ending.decided_at,
        )

    def refuse_ended(self) -> None:
        """Raise RecordError for a chain with a verdict, or that is to get one: its jobs would start and leave again."""
        outcome = self.find_end()
        if outcome is not None:
            raise RecordError(
                f"chain {self.manifest.job_name} has ended: {outcome.verdict.value} by {outcome.by}",
                part=outcome.why,
                hint=f"go on from its checkpoints with: {self.resume_command}",
            )

    def is_held(self) -> bool:
        """Whether the chain waits for a release. Raises RecordError for a hold that cannot be read."""
        hold = read_record(self.run.hold, Hold, owner_uid=self.files.owner_uid)
        if isinstance(hold, Unobserved):
            raise RecordError(f"reading the hold of the chain: {hold.reason}", hint="mend or move the file")
        return hold is not None and hold.chain_id == self.manifest.chain_id and hold.released_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What will be queued and put on record.

    The plan has the generations in order, those of `adopted` too: sequence -> array job that an earlier call had queued
    without writing its id down. They are no part of the number that was asked for. `no_answer`: why the queue could not
    be read.
    """

    plan: SubmitPlan
    directory: DirectoryState
    held: bool
    adopted: Mapping[int, int]
    no_answer: str | None

    @property
    def to_queue(self) -> tuple[PlannedGeneration, ...]:
        return tuple(generation for generation in self.plan.generations if generation.sequence not in self.adopted)


def plan_extension(request: ExtendRequest, client: SlurmClient, clock: Clock) -> Extension:
    """Read the chain and plan. Raises RecordError, and SlurmError when a doubtful submission cannot be looked for."""
    request.refuse_ended()
    _refuse_moved(request)
    directory = read_directory(request.run, owner_uid=request.files.owner_uid)
    options = inherit_options(request.files, request.manifest, request.run, directory)
    script = _read_script(request)
    queue = client.queue(request.manifest.user)
    held = request.is_held()
    adopted, lost = _sort_open(request, directory, queue, clock)
    last = _last_sequence(request, queue)
    further = request.number - len(lost)
    if last + further > _LAST_SEQUENCE:
        raise RecordError(
            f"extending chain {request.manifest.job_name}: no number is left after {last}",
            hint="submit a new chain with --resume when this one has ended",
        )
    sequences = sorted([*adopted, *lost[: request.number], *range(last + 1, last + 1 + further)])
    return Extension(
        plan=SubmitPlan(
            manifest=request.manifest,
            script=script,
            prologue=None,
            generations=tuple(_plan_generation(request, options, sequence, held) for sequence in sequences),
        ),
        directory=directory,
        held=held,
        adopted=adopted,
        no_answer=queue.reason if isinstance(queue, Unobserved) else None,
    )


def _refuse_moved(request: ExtendRequest) -> None:
    recorded = Path(request.manifest.run_directory)
    try:
        if os.path.samefile(recorded, request.run.path):
            return
        why = "which is another directory"
    except OSError as error:
        why = f"which cannot be found: {error.strerror}"
    # Every job of the chain runs in, and writes into, the directory that its submit named.
    raise RecordError(
        f"extending chain {request.manifest.job_name}: it was submitted in {recorded}",
        part=why,
        hint="extend it by that directory; if the directory was moved, move it back",
    )


def _read_script(request: ExtendRequest) -> str:
    script = read_bytes(request.run.script, owner_uid=request.files.owner_uid)
    if not isinstance(script, bytes):
        why = "it is not there" if script is None else script.reason
        raise RecordError(
            f"reading the script of the chain, {request.run.script}",
            part=why,
            hint="put it back; each job shows its copy: scontrol write batch_script JOBID",
        )
    return script.decode("utf-8", errors="surrogateescape")


def _sort_open(
    request: ExtendRequest, directory: DirectoryState, queue: QueueReading | Unobserved, clock: Clock
) -> tuple[dict[int, int], list[int]]:
    """The submissions without an id: (those with an array job, those that were never queued).

    Raises RecordError for one that may be under way at this moment: it would be queued twice.
    """
    adopted: dict[int, int] = {}
    lost: list[int] = []
    for sequence, intent in sorted(directory.intents.items()):
        if sequence in directory.ids:
            continue
        what = f"extending chain {request.manifest.job_name}: generation {sequence} has no array job on record"
        if isinstance(queue, Unobserved):
            raise SlurmError(what, part=f"it may be queued, and {queue.reason}", hint="nothing was queued")
        stamp = format_comment(request.manifest.chain_id, sequence)
        if intent.stamp != stamp:
            raise RecordError(what, part=f"its stamp is {intent.stamp!r}, not {stamp!r}", hint="move the file")
        jobs = stamped_array_jobs(queue, stamp=stamp, user=request.manifest.user, name=request.manifest.job_name)
        found = jobs or directory.unrecorded_generations
        if found:
            adopted[sequence] = found[0]
        elif _seconds_since(intent.intended_at, clock) < AT_WORK_SECONDS:
            raise RecordError(
                what,
                part=f"another submit or extend is at work on it since {intent.intended_at}, or died",
                hint=f"nothing was queued; repeat this command when that is {AT_WORK_SECONDS / 60:.0f} minutes ago",
            )
        else:
            lost.append(sequence)
    return adopted, lost


def _seconds_since(text: str, clock: Clock) -> float:
    """How long ago; 0 for a time of the future, of a clock that is ahead, and for what is no time."""
    at = parse_time(text)
    return 0.0 if at is None else max(0.0, (clock.now() - at).total_seconds())


def _last_sequence(request: ExtendRequest, queue: QueueReading | Unobserved) -> int:
    """The highest number in use, by the names of all submissions and by what the queue still shows.

    A job that was taken off the record stays listed for a while: with its number given out again, a next one whose
    sbatch gives no answer would be taken for it.
    """
    names = list_names(request.run.submissions)
    if isinstance(names, Unobserved):
        raise RecordError(names.reason, hint="repeat the command when it can be listed again")
    parsed = [parse_submission_name(name) for name in names or ()]
    used = [item[0] for item in parsed if item is not None]
    for task in () if isinstance(queue, Unobserved) else queue.tasks:
        stamp = parse_comment(task.comment)
        ours = (task.user, task.name) == (request.manifest.user, request.manifest.job_name)
        if ours and stamp is not None and stamp[0] == request.manifest.chain_id:
            used.append(stamp[1] or 0)
    return max(used, default=0)


def _plan_generation(request: ExtendRequest, options: tuple[str, ...], sequence: int, held: bool) -> PlannedGeneration:
    stamp = format_comment(request.manifest.chain_id, sequence)
    script = str(RunDirectory(Path(request.manifest.run_directory)).script)
    words = [f"--comment={stamp}" if word.startswith("--comment=") else word for word in options]
    # Held as the others are: it would start when the running one ends, and take nodes only to wait on them.
    hold = (HOLD,) if held else ()
    return PlannedGeneration(sequence=sequence, stamp=stamp, argv=(*words, *hold, script))
