"""Undoing a submit that could not be completed, so that the run directory is as it was before the call.

Touches: Slurm (through withdraw), chain_outcome.json and history/ of the run directory.
"""

from __future__ import annotations

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import NvrxError, SlurmAmbiguous
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.files import encode_record, write_first
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.submit.enqueue import Progress
from nvrx_chain.submit.entry import Entry
from nvrx_chain.submit.plan import SubmitPlan
from nvrx_chain.submit.rundir import move_submissions, move_to_history
from nvrx_chain.submit.withdraw import Withdrawal, withdraw


def roll_back(
    plan: SubmitPlan, entry: Entry, progress: Progress, error: NvrxError, client: SlurmClient, clock: Clock
) -> Withdrawal:
    """Cancel what this call has queued, then take its records away. Never touches what an earlier call has queued."""
    if entry is not Entry.COMPLETE:
        # First, so that a generation which starts while the others are being cancelled refuses to train.
        write_first(plan.run.outcome, encode_record(_outcome(plan, error, clock)))
    withdrawal = withdraw(client, clock, plan.manifest, progress.mine)
    # A job that may still turn up must find the outcome, or at least its own records.
    if withdrawal.remaining or isinstance(error, SlurmAmbiguous):
        return withdrawal
    if entry is Entry.COMPLETE:
        mine = [sequence for sequence, s in progress.ids.items() if s.array_job_id in progress.mine]
        move_submissions(plan.run, mine, f"{plan.manifest.chain_id}-rolled-back")
    else:
        move_to_history(plan.run, plan.manifest.chain_id)
    return withdrawal


def _outcome(plan: SubmitPlan, error: NvrxError, clock: Clock) -> ChainOutcome:
    return ChainOutcome(
        chain_id=plan.manifest.chain_id,
        verdict=Verdict.CANCELLED,
        array_job_id=None,
        by="nvrx-chain submit",
        why="the submit could not be completed and was rolled back",
        evidence=(str(error),),
        decided_at=format_time(clock.now()),
    )
