"""What a submit would do: the facts, the problems and the plan, put together. The dry run is this and nothing more.

Touches: what gathering facts touches, the template, the user database. Changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.user import current_user
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.entry import Entry, adopt_identity, decide_entry
from nvrx_chain.submit.facts import SubmitFacts, gather_facts, launcher_version
from nvrx_chain.submit.plan import SubmitPlan, Submitter, build_plan
from nvrx_chain.submit.preflight import check_half, find_problems
from nvrx_chain.submit.problem import Problem
from nvrx_chain.submit.prologue import read_prologue
from nvrx_chain.submit.render import read_template


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitPreview:
    """What a submit would do, how it would begin, and what speaks against it."""

    plan: SubmitPlan
    entry: Entry
    directory: DirectoryState
    uid: int
    problems: tuple[Problem, ...]

    @property
    def queued_sequences(self) -> frozenset[int]:
        """The generations that a half-submitted chain has in the queue already."""
        return frozenset(self.directory.ids) if self.entry is Entry.COMPLETE else frozenset()


def preview_chain(config: ChainConfig, client: SlurmClient, clock: Clock, *, dry_run: bool) -> SubmitPreview:
    """Look at cluster and directory and plan the chain; changes nothing. Raises RecordError, UsageError.

    A dry run starts no process to look for the launcher, and does not mind a Slurm that does not answer.
    """
    user, uid = current_user()
    facts = gather_facts(config, client, user=user, uid=uid, probe=not dry_run)
    problems = find_problems(config, facts, dry_run=dry_run)
    decided = decide_entry(config, facts.directory, facts.queue, facts.cluster)
    entry = decided if isinstance(decided, Entry) else Entry.NEW
    half = facts.directory.manifest if entry is Entry.COMPLETE else None
    if half is not None:
        config = adopt_identity(config, half)
    plan = build_plan(
        config, _submitter(config, facts, clock), read_template(), prologue=read_prologue(config.prologue)
    )
    if half is not None:
        problems = (*check_half(plan, facts.directory), *problems)
    return SubmitPreview(plan=plan, entry=entry, directory=facts.directory, uid=uid, problems=problems)


def _submitter(config: ChainConfig, facts: SubmitFacts, clock: Clock) -> Submitter:
    return Submitter(
        user=facts.user,
        uid=facts.uid,
        cluster=None if isinstance(facts.cluster, Unobserved) else facts.cluster.cluster_name,
        submitted_at=format_time(clock.now()),
        launcher_version=launcher_version(facts, config.launcher.kind),
        slurm_directory=facts.slurm_directory,
    )
