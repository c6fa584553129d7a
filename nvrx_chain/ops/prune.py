"""`nvrx-chain prune`: remove what old, ended generations left: logs, control files, cycle records, history/.

Which generations go is decided here, which files of them in `prune_files`: whatever else lies there stays and is
counted. Checkpoints, manifest, verdict, submissions and the records of generations are never touched. Touches: those
files, Slurm (one squeue).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TypedDict

import msgspec

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import SlurmError, Unobserved
from nvrx_chain.ops.chain import OpenChain, read_chain_queue, require_cluster, require_own
from nvrx_chain.ops.prune_files import (
    Doomed,
    find_of_generation,
    find_of_history,
    list_started,
    open_below,
    remove_empty,
    remove_file,
)
from nvrx_chain.ops.settle import Desk
from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import parse_indexed_name
from nvrx_chain.sizes import render_size
from nvrx_chain.slurm.chain_queue import ChainQueue

KEPT_GENERATIONS = 2
"""The newest: what they left is looked at first when something is wrong."""

FENCED_AFTER = timedelta(hours=1)
"""By then a task that is cut off has stopped its ranks by itself, whatever its thresholds are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """`keep` newest generations stay; so does what ended less than `older_than` ago."""

    keep: int = KEPT_GENERATIONS
    older_than: timedelta = timedelta()


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    """What goes, or went. `bytes_by_generation`: array job -> bytes; `history`: bytes of older chains' records.

    `left_alone`: path -> why: files that are nobody's we know, or somebody else's. `kept`: array job -> why.
    `not_removed`: path -> why it could not be removed.
    """

    schema: int = 1
    chain_id: str
    name: str
    run_directory: str
    dry_run: bool
    bytes_by_generation: dict[int, int]
    history: int
    files: int
    bytes: int
    kept: dict[int, str]
    left_alone: dict[str, str]
    not_removed: dict[str, str]

    @property
    def is_complete(self) -> bool:
        """Nothing that was to go is still there."""
        return not self.not_removed


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What would go. Made before the question, carried out after it."""

    doomed: tuple[Doomed, ...]
    report: PruneReport


def plan_prune(chain: OpenChain, desk: Desk, request: PruneRequest) -> PrunePlan:
    """Look for what may go. Raises IdentityError for chains of others, SlurmError while it is not known what lives."""
    require_own(chain, desk.operator)
    require_cluster(chain, desk.client)
    queue = read_chain_queue(chain, desk.client)
    if isinstance(queue, Unobserved):
        raise SlurmError(
            f"pruning chain {chain.manifest.job_name}: what of it lives is not known",
            part=queue.reason,
            hint="nothing was removed; repeat this command when Slurm answers",
        )
    kept = _find_kept(chain, queue, request, desk.clock.now())
    left_alone: dict[str, str] = {}
    doomed = _find_doomed(chain, kept, left_alone)
    report = PruneReport(
        chain_id=chain.manifest.chain_id,
        name=chain.manifest.job_name,
        run_directory=str(chain.directory.path),
        dry_run=True,
        kept=kept,
        left_alone=left_alone,
        not_removed={},
        **_count(doomed),
    )
    return PrunePlan(doomed=doomed, report=report)


def _find_doomed(chain: OpenChain, kept: Container[int], left_alone: dict[str, str]) -> tuple[Doomed, ...]:
    """Every file that goes, generation by generation."""
    owner = chain.manifest.uid
    found: list[Doomed] = []
    with open_below(chain.directory.path, ()) as root:
        if root is not None:
            for job in list_started(root):
                if job not in kept:
                    found += find_of_generation(root, job, owner, left_alone)
            found += find_of_history(root, owner, left_alone)
    return tuple(found)


class _Counts(TypedDict):
    bytes_by_generation: dict[int, int]
    history: int
    files: int
    bytes: int


def _count(files: Sequence[Doomed]) -> _Counts:
    sizes: dict[int, int] = {}
    for one in files:
        if one.job is not None and one.size:
            sizes[one.job] = sizes.get(one.job, 0) + one.size
    total = sum(one.size for one in files)
    return {
        "bytes_by_generation": sizes,
        "history": sum(one.size for one in files if one.job is None),
        "files": len(files),
        "bytes": total,
    }


def prune(chain: OpenChain, plan: PrunePlan, progress: Callable[[int], None]) -> PruneReport:
    """Remove it. `progress` hears the bytes of each file. A file that is gone already is no error."""
    not_removed: dict[str, str] = {}
    removed: list[Doomed] = []
    with open_below(chain.directory.path, ()) as root:
        for one in plan.doomed if root is not None else ():
            assert root is not None
            why = remove_file(root, one, chain.manifest.uid)
            if why is None:
                removed.append(one)
            else:
                not_removed["/".join((*one.directory, one.name))] = why
            progress(one.size)
        if root is not None:
            remove_empty(root, {one.directory for one in removed})
    return msgspec.structs.replace(plan.report, dry_run=False, not_removed=not_removed, **_count(removed))


def _find_kept(chain: OpenChain, queue: ChainQueue, request: PruneRequest, now: datetime) -> dict[int, str]:
    """The generations that stay, and why."""
    known = [one.array_job_id for one in chain.files.generations()]
    with open_below(chain.directory.path, ()) as root:
        # Not those on record alone: one whose submit died on the way trains, and the fence reads an older chain's too.
        begun = list_started(root) if root is not None else []
    newest = [job for job in known if job in begun]
    kept = dict.fromkeys(newest[max(0, len(newest) - request.keep) :], "one of the newest")
    for job in begun:
        ended_at = _ended_at(chain, job)
        if ended_at is None and chain.verdict() is not None:
            ended_at = _last_written(chain, job)
        if queue.alive(job) or job in queue.doubtful or job in queue.strays:
            kept[job] = "it is in the queue"
        elif ended_at is None:
            # Its ranks may live on a node that is cut off, and they look for their closed file.
            kept[job] = "how it ended is not on record"
        elif now - ended_at < FENCED_AFTER and _has_silent_task(chain, job):
            # The next generation's fence reads its leases, also that of a chain that is resumed here.
            kept[job] = "a task of it has not said that it left, and may live on"
        elif now - ended_at < request.older_than:
            kept.setdefault(job, "it ended too short ago")
    return kept


def _has_silent_task(chain: OpenChain, job: int) -> bool:
    """Whether a task came and did not write that it left. True when that cannot be read."""
    names = list_names(chain.directory.generation(job).control)
    if not isinstance(names, tuple):
        return names is not None
    parsed = [item for item in map(parse_indexed_name, names) if item is not None]
    return bool({task for _, task in parsed} - {task for kind, task in parsed if kind == "left"})


def _ended_at(chain: OpenChain, job: int) -> datetime | None:
    record, closed = chain.files.record_of(job), chain.files.closed_of(job)
    if record is not None and record.ended_at is not None:
        return parse_time(record.ended_at)
    return parse_time(closed.closed_at) if closed is not None else None


def _last_written(chain: OpenChain, job: int) -> datetime | None:
    """When something of a generation was written last: no task of one that nobody closed can have ended later."""
    times = []
    for path in (chain.directory.generation(job).path, chain.directory.generation(job).control):
        with contextlib.suppress(OSError):
            times.append(os.lstat(path).st_mtime)
    return datetime.fromtimestamp(max(times), tz=timezone.utc) if times else None


def render_prune(report: PruneReport) -> str:
    """The report for people, or what a dry run would remove."""
    word = "would go" if report.dry_run else "removed"
    lines = [f"{report.name} (chain {report.chain_id}): {report.files} files, {render_size(report.bytes)} {word}"]
    lines += [f"{job:<12} {render_size(size)}" for job, size in report.bytes_by_generation.items()]
    if report.history:
        lines.append(f"history      {render_size(report.history)}")
    lines += [f"kept         {job}: {why}" for job, why in report.kept.items()]
    shown = list(report.left_alone.items())[:10]
    lines += [f"left alone   {path}: {why}" for path, why in shown]
    if len(report.left_alone) > len(shown):
        lines.append(f"left alone   and {len(report.left_alone) - len(shown)} more")
    lines += [f"not removed  {path}: {why}" for path, why in list(report.not_removed.items())[:10]]
    if report.not_removed:
        lines.append(f"{len(report.not_removed)} of them are still there: repeat this command when that is mended")
    return "\n".join(lines)
