"""Submitting a chain from start to end: preview, directory, queue. The entry for the command and for programs.

Touches: what its parts touch; decides nothing itself beyond their order.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.clock import Clock
from nvrx_chain.errors import NvrxError
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.enqueue import Enqueuer, Progress, SubmittedDifferently
from nvrx_chain.submit.entry import Entry
from nvrx_chain.submit.preflight import refuse_errors
from nvrx_chain.submit.preview import SubmitPreview, preview_chain
from nvrx_chain.submit.problem import Severity
from nvrx_chain.submit.rollback import roll_back
from nvrx_chain.submit.rundir import claim_directory, make_directories, move_to_history, write_script

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResult:
    """A chain whose generations are all in the queue. `array_job_ids` are in the order of the generations."""

    chain_id: str
    name: str
    run_directory: Path
    array_job_ids: tuple[int, ...]
    cluster: str | None
    queued_tasks: int
    notes: tuple[str, ...]


def submit_chain(
    config: ChainConfig, client: SlurmClient, clock: Clock, *, say: Callable[[str], None] = _log.info
) -> SubmitResult:
    """Queue a chain, or what is missing of a half-submitted one. `say` hears each warning and note as it comes up.

    Raises PreflightError before anything is written, RecordError before anything is queued; after that any NvrxError
    says what is queued and how to go on.
    """
    preview = preview_chain(config, client, clock, dry_run=False)
    progress = Progress(say=say)
    for problem in preview.problems:
        if problem.severity is not Severity.ERROR:
            progress.note(str(problem))
    refuse_errors(preview.problems)
    plan = preview.plan
    directory = _prepare(preview, progress)
    try:
        Enqueuer(plan=plan, directory=directory, client=client, clock=clock, progress=progress).enqueue()
    except NvrxError as error:
        raise _explain(error, config, preview, progress, client, clock) from error
    manifest = plan.manifest
    return SubmitResult(
        chain_id=manifest.chain_id,
        name=manifest.job_name,
        run_directory=plan.run.path,
        array_job_ids=tuple(progress.ids[generation.sequence].array_job_id for generation in plan.generations),
        cluster=manifest.cluster,
        queued_tasks=plan.queued_tasks,
        notes=tuple(progress.notes),
    )


def _prepare(preview: SubmitPreview, progress: Progress) -> DirectoryState:
    """Make the run directory ready; what it holds of the chain that is now being queued."""
    plan = preview.plan
    make_directories(plan.run, preview.uid)
    if preview.entry is Entry.COMPLETE:
        write_script(plan)
        progress.note(f"note: completing chain {plan.manifest.job_name}, which an earlier submit left half queued")
        return preview.directory
    former = preview.directory.manifest
    moved = move_to_history(plan.run, former.chain_id if former else f"before-{plan.manifest.chain_id}")
    if moved is not None:
        progress.note(f"note: the records of an ended chain are now in {moved}")
        make_directories(plan.run, preview.uid)
    claim_directory(plan)
    return DirectoryState(exists=True)


def _explain(
    error: NvrxError,
    config: ChainConfig,
    preview: SubmitPreview,
    progress: Progress,
    client: SlurmClient,
    clock: Clock,
) -> NvrxError:
    """The same error, with what is queued now and how to go on."""
    plan = preview.plan
    if config.rollback or isinstance(error, SubmittedDifferently):
        hint = f"rolled back: {roll_back(plan, preview.entry, progress, error, client, clock).describe()}"
    else:
        queued = " ".join(str(submission.array_job_id) for submission in progress.ids.values()) or "nothing"
        where = shlex.quote(str(plan.run.path))
        hint = (
            f"queued: {queued}, of {plan.manifest.chain_depth} generations with {plan.queued_tasks} array tasks in all;"
            f" the same command with --run-dir {where} queues the rest, nvrx-chain cancel --run-dir {where} ends it,"
            " --rollback would have cancelled it"
        )
    parts = [part for part in (error.part, error.hint) if part]
    return type(error)(error.message, part="; ".join(parts) or None, hint=hint)
