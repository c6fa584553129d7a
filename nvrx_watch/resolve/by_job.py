"""A chain by any job id of it, live or ended: through scontrol, else sacct, else the records near the user.

Touches: Slurm (one scontrol; where that knows nothing, one sacct; for a chain that is not ours one `show config`, and
one squeue when the job has ended), the run directory that the job names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from nvrx_chain.errors import IdentityError, RecordError, SlurmError, Unobserved, UsageError
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.near import CHAINS_DIRECTORY
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.job_name import parse_job_name
from nvrx_chain.slurm.model import JobDetail
from nvrx_chain.slurm.user import user_name
from nvrx_watch.resolve.by_directory import FindAccount, OwnChain, find_on_record, open_own
from nvrx_watch.resolve.watched import ForeignHints, ReadScript, Watched, find_account, shown

_EVER = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LARGEST_JOB_ID = (1 << 32) - 1
_MOST_NAMED = 5
_NAME_A_DIRECTORY = "name its run directory by --run-dir"


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm says of the job. `comment` None: accounting does not keep comments here, or it had none."""

    array_job_id: int
    name: str
    user: str
    work_dir: str
    comment: str | None
    command: str
    is_live: bool


def resolve_job(
    text: str,
    client: SlurmClient,
    hints: ForeignHints,
    *,
    read_script: ReadScript,
    here: Path,
    find_account: FindAccount = find_account,
) -> Watched:
    """The chain of a job id in any form (`123`, `123_0`, `123_[2-4%2]`, the own id of an array task).

    `here` is the current directory. Raises UsageError for a text that is no job id, SlurmError when the job cannot be
    seen, RecordError when its run directory cannot be read, IdentityError when the two do not belong together.
    """
    named = parse_job_name(text)
    if named is None or not 0 < named.job_id <= _LARGEST_JOB_ID:
        raise UsageError(
            "finding the chain", part=f"{shown(text)!r} is no job id", hint="a directory is named by --run-dir"
        )
    job = _ask_slurm(named.job_id, client)
    search = _Search(client=client, hints=hints, read_script=read_script, here=here, find_account=find_account)
    if isinstance(job, str):
        return search.without_slurm(named.job_id, job)
    own = _own_chain(job, find_account)
    return own.watched(job.array_job_id) if own is not None else search.foreign(job)


def _ask_slurm(job_id: int, client: SlurmClient) -> _Job | str:
    """What Slurm knows of the job, else why that cannot be told."""
    details = client.show_job(job_id)
    if details and not isinstance(details, Unobserved):
        return _from_detail(details)
    rows = client.accounting([job_id], _EVER)
    if not isinstance(rows, Unobserved):
        named = [row for row in rows if row.array_job_id == job_id and row.user and row.name]
        if named:
            # An id that was given out again: the last one is meant.
            row = max(named, key=lambda one: one.submitted_at or _EVER)
            return _Job(
                array_job_id=job_id,
                name=row.name,
                user=row.user,
                work_dir=row.work_dir,
                comment=row.comment or None,
                command="",
                is_live=False,
            )
    if isinstance(details, Unobserved):
        return details.reason
    return "Slurm does not show it (it is gone, or private to its owner)"


def _from_detail(details: Sequence[JobDetail]) -> _Job:
    # The comment of a single task can be changed; the others still carry that of the chain.
    detail = next((one for one in details if parse_comment(one.comment) is not None), details[0])
    return _Job(
        array_job_id=detail.array_job_id,
        name=detail.name,
        user=detail.user,
        work_dir=detail.work_dir,
        comment=detail.comment,
        command=detail.command,
        is_live=any(not one.state.is_terminal for one in details),
    )


def _own_chain(job: _Job, find_account: FindAccount) -> OwnChain | None:
    """The chain of ours that the job is of, None when it is of none."""
    if job.comment is None:
        return _own_by_record(job, find_account)
    stamp = parse_comment(job.comment)
    if stamp is None:
        return None
    what = f"finding the chain of job {job.array_job_id}"
    if not job.work_dir.startswith("/"):
        raise RecordError(
            what, part=f"Slurm shows the working directory {shown(job.work_dir)!r}", hint=_NAME_A_DIRECTORY
        )
    chain = open_own(Path(job.work_dir), find_account)
    if chain.manifest.chain_id != stamp[0]:
        raise _newer_chain(job, chain, f"it is of chain {stamp[0]}")
    _check_user(job, chain, find_account)
    return chain


def _own_by_record(job: _Job, find_account: FindAccount) -> OwnChain | None:
    """By the records in the working directory, where no comment is known: id, user and name must all be the job's."""
    if not job.work_dir.startswith("/") or not os.path.lexists(RunDirectory(Path(job.work_dir)).manifest):
        return None
    chain = open_own(Path(job.work_dir), find_account)
    if (chain.manifest.user, chain.manifest.job_name) != (job.user, job.name):
        return None
    if not chain.has_on_record(job.array_job_id):
        raise _newer_chain(job, chain, "that chain does not have it on record")
    _check_user(job, chain, find_account)
    return chain


def _newer_chain(job: _Job, chain: OwnChain, part: str) -> IdentityError:
    return IdentityError(
        f"finding the chain of job {job.array_job_id}",
        part=f"{part}, and {shown(job.work_dir)} now holds chain {chain.manifest.chain_id}",
        hint="the newer chain is watched with --run-dir; the older one is in its history/",
    )


def _check_user(job: _Job, chain: OwnChain, find_account: FindAccount) -> None:
    account = find_account(job.user)
    if chain.manifest.user != job.user or (account is not None and account.uid != chain.manifest.uid):
        raise IdentityError(
            f"finding the chain of job {job.array_job_id}",
            part=f"the job belongs to {shown(job.user)}, and the chain to {shown(chain.manifest.user)}"
            f" (uid {chain.manifest.uid})",
        )


class _Search(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look for a chain of which Slurm alone does not say enough."""

    client: SlurmClient
    hints: ForeignHints
    read_script: ReadScript
    here: Path
    find_account: FindAccount

    def without_slurm(self, job_id: int, why: str) -> Watched:
        """By the records near the current directory; by the job name that the user gave; else an error."""
        found = find_on_record(job_id, self.here, self.find_account)
        if len(found) == 1:
            return found[0].watched(job_id)
        if found:
            paths = ", ".join(shown(str(chain.path)) for chain in found[:_MOST_NAMED])
            raise UsageError(
                f"finding the chain of job {job_id}",
                part=f"{len(found)} chains have it on record: {paths}",
                hint=_NAME_A_DIRECTORY,
            )
        if not self.hints.job_name:
            where = f"{shown(str(self.here))} or its {CHAINS_DIRECTORY}/"
            raise SlurmError(
                f"cannot see job {job_id}: {why}", hint=f"no chain in {where} has it on record; {_NAME_A_DIRECTORY}"
            )
        return self.foreign(
            _Job(
                array_job_id=job_id,
                name=self.hints.job_name,
                user=self.hints.user or user_name(os.geteuid()),
                work_dir="",
                comment="",
                command="",
                is_live=False,
            )
        )

    def foreign(self, job: _Job) -> Watched:
        """A chain that is not ours, which is known by the name and the user of the job."""
        # Late: a parser of batch scripts is nothing that a chain of ours has to wait for.
        from nvrx_watch.resolve.foreign import ForeignJob, watch_foreign

        config = self.client.config()
        if isinstance(config, Unobserved):
            # The cluster is part of the key under which alerts and state are kept: it must not come and go.
            raise SlurmError(f"cannot see on which cluster job {job.array_job_id} is: {config.reason}")
        name = self.hints.job_name
        if name is not None and name != job.name:
            what = f"finding the chain of job {job.array_job_id}"
            raise UsageError(what, part=f"its name is {shown(job.name)!r}, not {shown(name)!r}", hint="see --job-name")
        command, script_ids = job.command, [job.array_job_id]
        # Slurm drops the script of an ended job; every generation of a chain has the same one.
        twin = None if job.is_live else _live_twin(self.client, job.user, job.name)
        if twin is not None:
            command, script_ids = command or twin.command, [*script_ids, twin.array_job_id]
        foreign = ForeignJob(
            array_job_id=job.array_job_id,
            name=job.name,
            user=job.user,
            account=self.find_account(job.user),
            cluster=config.cluster_name or None,
            work_directory=job.work_dir or (twin.work_dir if twin is not None else ""),
            command=command,
            script_ids=tuple(script_ids),
        )
        return watch_foreign(foreign, self.hints, self.read_script, self.here)


def _live_twin(client: SlurmClient, user: str, name: str) -> JobDetail | None:
    """A job of the same user and name that Slurm has not ended."""
    reading = client.queue(user)
    if isinstance(reading, Unobserved):
        return None
    mine = [task for task in reading.tasks if (task.user, task.name) == (user, name)]
    live = [task.array_job_id for task in mine if not task.state.is_terminal]
    details = client.show_job(max(live)) if live else None
    return details[0] if details and not isinstance(details, Unobserved) else None
