"""A chain as an operator has opened it: its files, its manifest, whose it is, and what of it is in the queue.

Touches: the run directory (reads), Slurm (one squeue for a queue; one `scontrol show config` where the manifest names
a cluster).
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import IdentityError, RecordError, Unobserved
from nvrx_chain.records.chain import ChainFiles, open_chain
from nvrx_chain.records.control import ChainOutcome, Ending, Hold
from nvrx_chain.records.files import read_record
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.slurm.chain_queue import ChainQueue, sort_queue
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.identity import ChainIdentity
from nvrx_chain.slurm.model import QueueReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """As whom the command acts, and where. `on_behalf`: who typed it, when that is somebody else (see operator.py)."""

    user: str
    uid: int
    host: str
    on_behalf: str | None = None

    @property
    def signature(self) -> str:
        """How a record names this person."""
        return f"{self.on_behalf or self.user} on {self.host}"

    @property
    def role(self) -> str:
        """What this person is to the chain."""
        return "its user" if self.on_behalf is None else "an operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChain:
    """The chain of one run directory. Files that belong to anybody but its user or root are not believed."""

    files: ChainFiles
    manifest: ChainManifest

    @property
    def directory(self) -> RunDirectory:
        return self.files.directory

    def verdict(self) -> ChainOutcome | None:
        """How the chain ended, None while it has not. Raises RecordError for a verdict that cannot be read."""
        record = read_record(self.directory.outcome, ChainOutcome, owner_uid=self.manifest.uid)
        if isinstance(record, Unobserved):
            raise RecordError(f"reading the verdict of the chain: {record.reason}", hint="mend or move the file")
        return record if record is not None and record.chain_id == self.manifest.chain_id else None

    def hold(self) -> Hold | None:
        """The newest hold of the chain, released or not. Raises RecordError for one that cannot be read."""
        record = read_record(self.directory.hold, Hold, owner_uid=self.manifest.uid)
        if isinstance(record, Unobserved):
            raise RecordError(f"reading the hold of the chain: {record.reason}", hint="mend or move the file")
        return record if record is not None and record.chain_id == self.manifest.chain_id else None

    def ending(self) -> Ending | None:
        """The order that the running generation is the last. Raises RecordError for one that cannot be read."""
        record = self.files.look_for_ending()
        if isinstance(record, Unobserved):
            raise RecordError(f"reading whether the chain is to end: {record.reason}", hint="mend or move the file")
        return record

    @property
    def resume_command(self) -> str:
        """How one starts a new chain in this directory after this one has ended."""
        return f"nvrx-chain submit --resume --run-dir {shlex.quote(str(self.directory.path))} ..."

    def identity(self, reading: QueueReading) -> ChainIdentity:
        """By what the chain's jobs are known: ids on record, and jobs with the stamp of an unresolved submission."""
        submitted = {known.array_job_id: parse_time(known.submitted_at) for known in self.files.generations()}
        stamps = {intent.stamp for intent in self.files.open_intents()}
        for task in reading.tasks:
            # sbatch's reply got lost: without this a cancel would leave the job, and it would start.
            if task.comment in stamps and task.array_job_id not in submitted:
                submitted[task.array_job_id] = None
        return ChainIdentity(
            chain_id=self.manifest.chain_id,
            job_name=self.manifest.job_name,
            user=self.manifest.user,
            submitted_at=submitted,
        )


def open_run_directory(path: Path) -> OpenChain:
    """The chain in a directory. Raises RecordError when there is none, or its files are not its user's."""
    directory = RunDirectory(path)
    claimed = open_chain(directory).manifest()
    # Whoever can write into the directory can write a manifest: it speaks only for the user that owns the file.
    files = open_chain(directory, owner_uid=claimed.uid)
    return OpenChain(files=files, manifest=files.manifest())


def require_own(chain: OpenChain, operator: Operator) -> None:
    """Raise IdentityError unless the operator may act on the chain from this directory."""
    manifest = chain.manifest
    # By name as well: a manifest of one's own can name jobs of another.
    if (operator.uid, operator.user) != (manifest.uid, manifest.user):
        raise IdentityError(
            f"acting on chain {manifest.job_name}",
            part=f"it belongs to {manifest.user}, and this is {operator.user}",
            hint=f"refused; it is for {manifest.user}, and for root with --act-as-operator of cancel, hold and release",
        )
    recorded = Path(manifest.run_directory)
    try:
        is_copy = not os.path.samefile(recorded, chain.directory.path)
    except OSError:
        return
    if is_copy:
        # A verdict or a hold in a copy is read by no job, while the ids in it name the jobs of the original.
        raise IdentityError(
            f"acting on chain {manifest.job_name}",
            part=f"{chain.directory.path} is a copy of its directory",
            hint=f"name {recorded}",
        )


def find_other_cluster(chain: OpenChain, client: SlurmClient) -> str | None:
    """Which other cluster the chain was submitted on, as one clause; None when it is this one or nobody knows."""
    submitted_on = chain.manifest.cluster
    if submitted_on is None:
        return None
    config = client.config()
    if isinstance(config, Unobserved) or config.cluster_name == submitted_on:
        return None
    return f"it was submitted on cluster {submitted_on}, and this is {config.cluster_name}"


def require_cluster(chain: OpenChain, client: SlurmClient) -> None:
    """Raise IdentityError on another cluster: an empty queue there would look like a chain that is gone."""
    other = find_other_cluster(chain, client)
    if other is not None:
        raise IdentityError(f"acting on chain {chain.manifest.job_name}", part=other, hint="run this there")


def read_chain_queue(chain: OpenChain, client: SlurmClient) -> ChainQueue | Unobserved:
    """One squeue, and what of it is this chain's; `Unobserved` also while it is not known which jobs those are."""
    known = chain.files.list_generations()
    if isinstance(known, Unobserved):
        # Every job of the chain would look like somebody else's, and so like nothing left to do.
        return known
    reading = client.queue(chain.manifest.user)
    return reading if isinstance(reading, Unobserved) else sort_queue(reading, chain.identity(reading))
