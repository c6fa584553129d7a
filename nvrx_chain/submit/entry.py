"""What a submit does with the chain that a run directory already holds: start, complete, resume, or refuse. Pure."""

from __future__ import annotations

import dataclasses
import enum
import shlex
from dataclasses import dataclass

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.manifest import ChainManifest, Launcher
from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.model import ClusterConfig, QueueReading
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.plan import SubmitPlan

_MAY_DIFFER = frozenset({"submitted_at", "package_version", "cluster", "launcher"})


class Entry(enum.Enum):
    """How a submit begins."""

    NEW = "new"
    """No chain is there."""
    COMPLETE = "complete"
    """A submit died half way: queue what is missing, under the same chain_id."""
    RESUME = "resume"
    """A chain has ended: move its records to history/ and start a new one from its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing may be submitted into the directory."""

    message: str
    hint: str


def decide_entry(
    config: ChainConfig,
    directory: DirectoryState,
    queue: QueueReading | Unobserved,
    cluster: ClusterConfig | Unobserved,
) -> Entry | Refusal:
    """Judge the directory by its records and the queue. A chain that cannot be shown to have ended counts as alive."""
    manifest = directory.manifest
    if manifest is None:
        return Entry.NEW
    if not isinstance(cluster, Unobserved) and manifest.cluster not in (None, cluster.cluster_name):
        return Refusal(
            message=f"{config.run_directory} holds a chain of cluster {manifest.cluster}",
            hint="submit there, or choose another --run-dir",
        )
    ended = directory.outcome is not None and directory.outcome.chain_id == manifest.chain_id
    if directory.missing and not ended and not config.resume:
        return Entry.COMPLETE
    if isinstance(queue, Unobserved):
        return Refusal(
            message=f"{config.run_directory} holds chain {manifest.chain_id}, which may be alive: {queue.reason}",
            hint="choose another --run-dir, or try again when Slurm answers",
        )
    alive = live_array_jobs(queue, manifest.chain_id)
    if alive:
        return Refusal(
            message=f"{config.run_directory} holds the live chain {manifest.job_name}, jobs"
            f" {' '.join(map(str, alive))}",
            hint=f"nvrx-chain status or nvrx-chain cancel --run-dir {shlex.quote(str(config.run_directory))}",
        )
    if config.resume:
        return Entry.RESUME
    verdict = directory.outcome.verdict.value if ended and directory.outcome else "no generation is left"
    return Refusal(
        message=f"{config.run_directory} holds chain {manifest.job_name}, which has ended: {verdict}",
        hint="--resume starts a new chain there from its checkpoints",
    )


def live_array_jobs(queue: QueueReading, chain_id: str) -> tuple[int, ...]:
    """The array jobs of a chain that Slurm has not ended, by their stamp."""
    found = set()
    for task in queue.tasks:
        stamp = parse_comment(task.comment)
        if stamp is not None and stamp[0] == chain_id and not task.state.is_terminal:
            found.add(task.array_job_id)
    return tuple(sorted(found))


def adopt_identity(config: ChainConfig, manifest: ChainManifest) -> ChainConfig:
    """The config under the name and id of the half-submitted chain that it completes."""
    name = manifest.job_name if config.name_is_made_up else config.name
    return dataclasses.replace(config, chain_id=manifest.chain_id, name=name)


def find_differences(plan: SubmitPlan, directory: DirectoryState) -> Refusal | None:
    """None when the plan is the one that was half carried out; a chain of two different halves would not hand off."""
    manifest = directory.manifest
    if manifest is None:
        return None
    differing = [
        name
        for name in ChainManifest.__struct_fields__
        if name not in _MAY_DIFFER and getattr(manifest, name) != getattr(plan.manifest, name)
    ]
    if _without_version(manifest) != _without_version(plan.manifest):
        differing.append("launcher")
    if any(
        (intent := directory.intents.get(generation.sequence)) is not None and intent.argv != generation.argv
        for generation in plan.generations
    ):
        differing.append("sbatch options")
    if not differing:
        return None
    return Refusal(
        message=f"{manifest.run_directory} holds the half-submitted chain {manifest.job_name} with other settings:"
        f" {', '.join(differing)}",
        hint="repeat the options of that submit, or nvrx-chain cancel it and use --resume",
    )


def _without_version(manifest: ChainManifest) -> Launcher:
    return msgspec.structs.replace(manifest.launcher, version=None)
