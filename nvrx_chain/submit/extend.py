"""`nvrx-chain extend`: further generations for a chain that has not ended. The entry for the command and for programs.

Touches: what its parts touch, and submissions/ and history/ of the run directory when something is taken back.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from typing import Any

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.errors import NvrxError, RecordError, SlurmAmbiguous, SlurmError
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.submit.enqueue import Enqueuer, Progress, SubmittedDifferently
from nvrx_chain.submit.extension import ExtendRequest, Extension, plan_extension
from nvrx_chain.submit.rundir import make_directories, move_submissions
from nvrx_chain.submit.show import SCHEMA, render_json
from nvrx_chain.submit.withdraw import Withdrawal, withdraw

_log = logging.getLogger(__name__)


class ExtendResult(msgspec.Struct, frozen=True, kw_only=True):
    """Generations that are in the queue and on record now.

    `array_job_ids` are in the order of `sequences`; `adopted` are those of them that an earlier call had queued.
    """

    schema: int = 1
    chain_id: str
    name: str
    run_directory: str
    sequences: tuple[int, ...]
    array_job_ids: tuple[int, ...]
    adopted: tuple[int, ...]
    queued_tasks: int
    held: bool
    notes: tuple[str, ...]


def extend_chain(
    request: ExtendRequest, client: SlurmClient, clock: Clock, *, say: Callable[[str], None] = _log.info
) -> ExtendResult:
    """Queue further generations. `say` hears each note as it comes up.

    Raises RecordError or SlurmError before anything is queued; after that any NvrxError says what is queued and how to
    go on.
    """
    extension = plan_extension(request, client, clock)
    if extension.no_answer is not None:
        raise SlurmError(
            f"extending chain {request.manifest.job_name}: the queue could not be read",
            part=extension.no_answer,
            hint="nothing was queued",
        )
    progress = Progress(say=say)
    if extension.held:
        progress.note(_held_line(request))
    make_directories(extension.plan.run, request.manifest.uid)
    failure: NvrxError | None = None
    # Planning asked Slurm, which may have taken long.
    request.refuse_ended()
    try:
        Enqueuer(
            plan=extension.plan, directory=extension.directory, client=client, clock=clock, progress=progress
        ).enqueue()
    except NvrxError as error:
        failure = error
    _refuse_ended_meanwhile(request, extension, progress, failure, client, clock)
    if failure is not None:
        raise _explain(request, extension, progress, failure, client, clock) from failure
    _note_other_hold(request, extension, progress)
    return _result(request, extension, progress)


def _refuse_ended_meanwhile(
    request: ExtendRequest,
    extension: Extension,
    progress: Progress,
    failure: NvrxError | None,
    client: SlurmClient,
    clock: Clock,
) -> None:
    """Take everything back when the chain got its verdict while it was extended: the last generation was faster.

    Whoever wrote the verdict has cleared the queue already, perhaps before these jobs came into it.
    """
    try:
        outcome = request.find_end()
    except RecordError as error:
        progress.note(f"warning: whether the chain has ended meanwhile is not known: {error}")
        return
    if outcome is not None:
        withdrawal = _take_back(request, extension, progress, failure, client, clock)
        raise _ended(request, outcome, withdrawal) from failure


def _ended(request: ExtendRequest, outcome: ChainOutcome, withdrawal: Withdrawal) -> RecordError:
    cancel = f"; end them with nvrx-chain cancel {_where(request)}" if withdrawal.remaining else ""
    return RecordError(
        f"chain {request.manifest.job_name} ended while it was extended: {outcome.verdict.value} by {outcome.by}",
        part=outcome.why,
        hint=f"taken back: {withdrawal.describe()}{cancel}; go on from its checkpoints with: {request.resume_command}",
    )


def _take_back(
    request: ExtendRequest,
    extension: Extension,
    progress: Progress,
    failure: NvrxError | None,
    client: SlurmClient,
    clock: Clock,
) -> Withdrawal:
    """Cancel what this call has queued, then take its records away. Never touches what an earlier call has queued."""
    withdrawal = withdraw(client, clock, request.manifest, progress.mine)
    # A job that may still turn up must be found by its own records.
    if not withdrawal.remaining and not isinstance(failure, SlurmAmbiguous):
        mine = [number for number, known in progress.ids.items() if known.array_job_id in progress.mine]
        _forget(request, [*mine, *_refused(extension, progress, failure)], progress)
    return withdrawal


def _refused(extension: Extension, progress: Progress, failure: NvrxError | None) -> list[int]:
    """The generation that Slurm certainly does not have. Its intent is of this call: an earlier one leaves doubt."""
    if not isinstance(failure, SlurmError) or isinstance(failure, SlurmAmbiguous) or progress.doubtful:
        return []
    return [each.sequence for each in extension.plan.generations if each.sequence not in progress.ids][:1]


def _forget(request: ExtendRequest, sequences: list[int], progress: Progress) -> None:
    """Off the record: a generation that waits for one that is not queued would never count as the last."""
    try:
        move_submissions(request.run, sequences, f"{request.manifest.chain_id}-extend")
    except RecordError as error:
        progress.note(f"warning: {error}")


def _explain(
    request: ExtendRequest,
    extension: Extension,
    progress: Progress,
    failure: NvrxError,
    client: SlurmClient,
    clock: Clock,
) -> NvrxError:
    """The same error, with what is queued now and how to go on."""
    if isinstance(failure, SubmittedDifferently):
        withdrawal = _take_back(request, extension, progress, failure, client, clock)
        hint = f"taken back: {withdrawal.describe()}"
    else:
        _forget(request, _refused(extension, progress, failure), progress)
        wanted = [each.sequence for each in extension.to_queue]
        queued = [progress.ids[number].array_job_id for number in wanted if number in progress.ids]
        hint = (
            f"queued: {' '.join(map(str, queued)) or 'nothing'}, {len(queued)} of {len(wanted)} further generations;"
            f" nvrx-chain status {_where(request)} shows the chain"
        )
        missing = len(wanted) - len(queued)
        if missing:
            hint += f", nvrx-chain extend {_where(request)} --by {missing} queues the rest"
    parts = [part for part in (failure.part, failure.hint) if part]
    return type(failure)(failure.message, part="; ".join(parts) or None, hint=hint)


def _note_other_hold(request: ExtendRequest, extension: Extension, progress: Progress) -> None:
    """Say it when the chain was held or released meanwhile: that call has not seen these jobs."""
    try:
        held = request.is_held()
    except RecordError as error:
        progress.note(f"warning: {error}")
        return
    if held and not extension.held:
        progress.note(f"the chain was held meanwhile: nvrx-chain hold {_where(request)} holds these generations too")
    elif extension.held and not held:
        progress.note(
            f"the chain was released meanwhile: nvrx-chain release {_where(request)} lets these generations go"
        )


def _held_line(request: ExtendRequest) -> str:
    return f"the chain is held: nvrx-chain release {_where(request)} starts it"


def _where(request: ExtendRequest) -> str:
    return f"--run-dir {shlex.quote(str(request.run.path))}"


def _result(request: ExtendRequest, extension: Extension, progress: Progress) -> ExtendResult:
    sequences = tuple(generation.sequence for generation in extension.plan.generations)
    jobs = tuple(progress.ids[sequence].array_job_id for sequence in sequences)
    adopted = tuple(job for job in jobs if job not in progress.mine)
    return ExtendResult(
        chain_id=request.manifest.chain_id,
        name=request.manifest.job_name,
        run_directory=str(request.run.path),
        sequences=sequences,
        array_job_ids=jobs,
        adopted=adopted,
        queued_tasks=request.manifest.shape.total * (len(jobs) - len(adopted)),
        held=extension.held,
        notes=tuple(progress.notes),
    )


def render_extended(result: ExtendResult, *, as_json: bool) -> str:
    """The generations that are queued now, and what one types next."""
    if as_json:
        return render_json(result)
    where = shlex.quote(result.run_directory)
    jobs = zip(result.sequences, result.array_job_ids, strict=True)
    return "\n".join(
        (
            f"extended    {result.name} (chain {result.chain_id})",
            f"array jobs  {', '.join(f'{job} (generation {sequence})' for sequence, job in jobs)}",
            f"directory   {where}",
            f"next        nvrx-chain status --run-dir {where}",
        )
    )


def render_extension(request: ExtendRequest, extension: Extension, *, as_json: bool) -> str:
    """The dry run: the exact command of each generation that would be queued."""
    manifest, queued = request.manifest, extension.to_queue
    if as_json:
        return render_json(_as_data(request, extension))
    tasks = manifest.shape.total
    lines = [
        f"chain {manifest.chain_id}, name {manifest.job_name}, run directory {shlex.quote(manifest.run_directory)}",
        f"{len(queued)} further generations of {tasks} array tasks; {tasks * len(queued)} tasks in all",
    ]
    if extension.held:
        lines.append(_held_line(request))
    if extension.no_answer is not None:
        lines.append(f"the queue could not be read, and an extend would be refused: {extension.no_answer}")
    lines += [
        f"generation {sequence}: job {job} is there and not on record, it would be adopted"
        for sequence, job in extension.adopted.items()
    ]
    commands = [line for each in queued for line in (f"# generation {each.sequence}", each.command)]
    return "\n".join([*(f"# {line}" for line in lines), *commands])


def _as_data(request: ExtendRequest, extension: Extension) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "dry_run": True,
        "chain_id": request.manifest.chain_id,
        "name": request.manifest.job_name,
        "run_directory": request.manifest.run_directory,
        "generations": [
            {
                "sequence": generation.sequence,
                "stamp": generation.stamp,
                "argv": ["sbatch", *generation.argv],
                "command": generation.command,
            }
            for generation in extension.to_queue
        ],
        "queued_tasks": request.manifest.shape.total * len(extension.to_queue),
        "held": extension.held,
        "adopted": tuple(extension.adopted.values()),
        "no_answer": extension.no_answer,
    }
