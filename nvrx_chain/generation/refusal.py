"""When task 0 may not run at all: a finished or doomed chain, a restart by Slurm, a later generation.

Touches: the run directory; writes the verdict that an earlier task 0 died before it could.
"""

from __future__ import annotations

import logging

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation import closing
from nvrx_chain.generation.closing import GenerationEnd
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.records.outcome import CHAIN_VERDICT, Outcome

log = logging.getLogger(__name__)


def find_refusal(context: TaskContext) -> GenerationEnd | None:
    """A finished or doomed chain, a restart under no-requeue, a later generation: nothing may run."""
    if context.identity.restart_count > 0:
        # Nothing is known about the ranks of the first start: its node may live on, cut off.
        why = f"Slurm restarted this task ({context.identity.restart_count}) in spite of --no-requeue"
        return refuse(why, ranks_gone=False)
    over = context.chain.look_for_outcome()
    if isinstance(over, Unobserved):
        return refuse(f"the verdict on the chain cannot be read: {over.reason}")
    if over is not None:
        return refuse(f"the chain is over: {over.verdict.value}, {over.why}", chain_is_over=True)
    for job in context.chain.earlier_generations(context.array_job_id)[:1]:
        closed = context.chain.closed_of(job)
        if closed is not None and closed.outcome in CHAIN_VERDICT:
            # Its task 0 died between closing and the verdict.
            closing.decide_chain(context, GenerationEnd(outcome=closed.outcome, evidence=closed.evidence))
            return refuse(f"generation {job} ended as {closed.outcome.value}", chain_is_over=True)
    later = context.chain.later_generation(context.array_job_id)
    if later is not None:
        return refuse(f"the later generation {later} has published")
    if context.watcher.latest().closed is not None:
        return refuse("this generation was closed before its task 0 started")
    return _refuse_after_last(context)


def _refuse_after_last(context: TaskContext) -> GenerationEnd | None:
    """A chain that was to end with an earlier generation: whoever was to cancel this one did not come to it."""
    ending = context.chain.look_for_ending()
    if isinstance(ending, Unobserved):
        return refuse(f"whether the chain is to end cannot be read: {ending.reason}")
    if ending is None or ending.array_job_id == context.array_job_id:
        return None
    why = f"the chain ended with generation {ending.array_job_id}, by {ending.by}"
    closing.decide_chain(context, GenerationEnd(outcome=Outcome.REFUSED, evidence=(why,)))
    return refuse(why, chain_is_over=True)


def refuse(why: str, *, chain_is_over: bool = False, ranks_gone: bool = True) -> GenerationEnd:
    """The end of a generation that launches nothing, said in the log."""
    log.warning("refusing to run: %s", why)
    return GenerationEnd(outcome=Outcome.REFUSED, evidence=(why,), chain_is_over=chain_is_over, ranks_gone=ranks_gone)
