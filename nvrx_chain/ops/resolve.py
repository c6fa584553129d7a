"""Which chain is meant: by a run directory, by a job id in any of Slurm's forms, or by nothing at all.

A job id leads to its run directory through the working directory that `scontrol show job` prints; nothing that a job
says of itself is evaluated. Touches: Slurm (one scontrol, or one squeue when several chains may be meant), the
directories that are looked into.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import IdentityError, RecordError, Unobserved, UsageError
from nvrx_chain.ops.chain import OpenChain, open_run_directory
from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.near import CHAINS_DIRECTORY
from nvrx_chain.slurm.chain_queue import sort_queue
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.job_name import JobName, parse_job_name
from nvrx_chain.slurm.model import JobDetail, QueueReading

log = logging.getLogger(__name__)

_NAME_A_DIRECTORY = "name its run directory"
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The chain that is meant, and the array job and task by which it was named, None where it was not."""

    chain: OpenChain
    array_job_id: int | None = None
    array_task_id: int | None = None


def resolve_chain(name: str | None, run_directory: Path | None, client: SlurmClient, here: Path) -> Resolved:
    """The chain meant by `name` (a job id or a path), by `run_directory`, or by neither of them.

    `here` is the current directory. Raises UsageError when it cannot be told which chain is meant, RecordError when
    there is none, IdentityError when the named job is not of a chain.
    """
    if name is not None and run_directory is not None:
        raise UsageError(
            "choosing a chain: it is named twice",
            part=f"{name} and --run-dir {run_directory}",
            hint="leave one of them out",
        )
    if run_directory is not None:
        return Resolved(chain=open_run_directory(here / run_directory))
    if name is None:
        return Resolved(chain=_find_only(client, here))
    job = parse_job_name(name)
    if job is None:
        return Resolved(chain=open_run_directory(here / name))
    return _find_by_job(job, client, here)


def _find_by_job(job: JobName, client: SlurmClient, here: Path) -> Resolved:
    details = client.show_job(job.job_id)
    if not details or isinstance(details, Unobserved):
        why = details.reason if isinstance(details, Unobserved) else "Slurm does not know it (any more)"
        return Resolved(
            chain=_find_on_record(job.job_id, here, why), array_job_id=job.job_id, array_task_id=job.array_task_id
        )
    detail = _stamped(details)
    own_index = job.array_task_id if job.array_task_id is not None else _task_of_raw_id(job, details)
    return Resolved(chain=_follow(job, detail), array_job_id=detail.array_job_id, array_task_id=own_index)


def _stamped(details: Sequence[JobDetail]) -> JobDetail:
    """The record that carries a chain's comment, else the first: a single task's comment can be changed."""
    return next((detail for detail in details if parse_comment(detail.comment) is not None), details[0])


def _task_of_raw_id(job: JobName, details: Sequence[JobDetail]) -> int | None:
    """The index of an array task that was named by its own id, e.g. the 57 behind `52_3`."""
    return next(
        (d.array_task_id for d in details if d.job_id == job.job_id and d.array_job_id != job.job_id),
        None,
    )


def _follow(job: JobName, detail: JobDetail) -> OpenChain:
    """The chain in the job's working directory, if job and directory agree on whose job it is."""
    what = f"finding the chain of job {job.job_id}"
    stamp = parse_comment(detail.comment)
    if stamp is None:
        raise IdentityError(what, part=f"it has the comment {detail.comment!r}", hint="it is no job of nvrx-chain")
    if not detail.work_dir.startswith("/"):
        raise RecordError(what, part=f"Slurm shows the working directory {detail.work_dir!r}", hint=_NAME_A_DIRECTORY)
    chain = open_run_directory(Path(detail.work_dir))
    if chain.manifest.chain_id != stamp[0]:
        raise IdentityError(
            what,
            part=f"it is of chain {stamp[0]}, and {detail.work_dir} now holds chain {chain.manifest.chain_id}",
            hint="the records of the older chain are in its history/",
        )
    if chain.manifest.user != detail.user:
        raise IdentityError(
            what,
            part=f"it belongs to {detail.user}, and the chain to {chain.manifest.user}",
            hint=f"{_NAME_A_DIRECTORY}, if it is the chain that you mean",
        )
    return chain


def _find_on_record(job_id: int, here: Path, why: str) -> OpenChain:
    """The chain near the current directory that has the job on record."""
    found = [
        chain for chain in _chains_near(here) if job_id in {known.array_job_id for known in chain.files.generations()}
    ]
    if len(found) == 1:
        return found[0]
    what = f"finding the chain of job {job_id}: {why}"
    if found:
        raise UsageError(what, part=f"{len(found)} chains have it on record: {_listed(found)}", hint=_NAME_A_DIRECTORY)
    raise RecordError(
        what, part=f"no chain in {here} or its {CHAINS_DIRECTORY}/ has it on record", hint=_NAME_A_DIRECTORY
    )


def _find_only(client: SlurmClient, here: Path) -> OpenChain:
    """The chain in the current directory, else the only live one below it; an ended one when it is the only one."""
    if os.path.lexists(RunDirectory(here).manifest):
        return open_run_directory(here)
    below = _chains_near(here)
    undecided = [chain for chain in below if _is_undecided(chain)]
    candidates = undecided or below
    if len(candidates) > 1 and undecided:
        candidates = _still_queued(undecided, client) or undecided
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise UsageError(
            f"choosing a chain: there is none in {here} or its {CHAINS_DIRECTORY}/",
            hint="name a run directory or a job",
        )
    word = "live chains" if undecided else "ended chains"
    raise UsageError(
        f"choosing a chain: {len(candidates)} {word}",
        part=_listed(candidates),
        hint="name one of them, by its directory or a job",
    )


def _is_undecided(chain: OpenChain) -> bool:
    try:
        return chain.verdict() is None
    except RecordError as error:
        log.warning("a chain counts as live: %s", error)
        return True


def _still_queued(chains: Sequence[OpenChain], client: SlurmClient) -> list[OpenChain]:
    """Those with a job in the queue. None of them when Slurm does not answer."""
    readings = {user: client.queue(user) for user in {chain.manifest.user for chain in chains}}
    return [chain for chain in chains if _is_in(readings[chain.manifest.user], chain)]


def _is_in(reading: QueueReading | Unobserved, chain: OpenChain) -> bool:
    return isinstance(reading, QueueReading) and bool(sort_queue(reading, chain.identity(reading)).live_jobs)


def _chains_near(here: Path) -> list[OpenChain]:
    """The chain of the current directory first, then those of nvrx-chains/, by name."""
    return open_chains_below(here, here / CHAINS_DIRECTORY)


def open_chains_below(first: Path, directory: Path) -> list[OpenChain]:
    """The chain in `first`, if there is one, then those directly below `directory`, by name."""
    names = list_names(directory)
    paths = [first, *(directory / name for name in (names if isinstance(names, tuple) else ()))]
    found = []
    for path in paths:
        try:
            found.append(open_run_directory(path))
        except RecordError as error:
            log.debug("no chain here: %s", error)
    return found


def _listed(chains: Sequence[OpenChain]) -> str:
    shown = ", ".join(str(chain.directory.path) for chain in chains[:_MOST_NAMED])
    return shown if len(chains) <= _MOST_NAMED else f"{shown}, and {len(chains) - _MOST_NAMED} more"
