"""`nvrx-chain prune`: remove what old, ended generations left: logs, control files, cycle records, history/.

Only files that nvrx-chain and the launchers make are known by name, and only they go; whatever else lies there stays
and is counted. Every directory is opened relative to the one before it and never through a link, and nothing of another
user is removed. Checkpoints, manifest, verdict, submissions and the records of generations are never touched.
Touches: those files, Slurm (one squeue).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import msgspec

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import SlurmError, Unobserved
from nvrx_chain.ops.chain import OpenChain, read_chain_queue, require_cluster, require_own
from nvrx_chain.ops.settle import Desk
from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import SEGMENT_HEALTH, parse_indexed_name
from nvrx_chain.slurm.chain_queue import ChainQueue

log = logging.getLogger(__name__)

KEPT_GENERATIONS = 2
"""The newest: what they left is looked at first when something is wrong."""

FENCED_AFTER = timedelta(hours=1)
"""By then a task that is cut off has stopped its ranks by itself, whatever its thresholds are."""

_PARTS: dict[str, re.Pattern[str]] = {
    "control": re.compile(
        rf"\.?[a-z_]+(?:\.[\w.-]+)?\.json(?:\.\d+\.[0-9a-f]+\.tmp)?|{SEGMENT_HEALTH}\.\d+\.\d+", re.ASCII
    ),
    "logs": re.compile(r"(?:task|launcher|app)(?:_[\w.-]+)?\.log(?:\.\d+)?", re.ASCII),
    "cycle_infos": re.compile(r"cycle_info\.[\w.-]*", re.ASCII),
}
_OF_HISTORY = re.compile(r"\.?(?:chain|chain_outcome|hold|ending|excluded|\d{4,9}(?:\.id)?)\.json", re.ASCII)
_SUBMISSIONS = "submissions"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """`keep` newest generations stay; so does what ended less than `older_than` ago."""

    keep: int = KEPT_GENERATIONS
    older_than: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """One file that goes: its generation (None: of history/), its directory below the run directory, name and size."""

    job: int | None
    directory: tuple[str, ...]
    name: str
    size: int


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
            hint="nothing was removed",
        )
    kept = _find_kept(chain, queue, request, desk.clock.now())
    left_alone: dict[str, str] = {}
    doomed: list[Doomed] = []
    sizes: dict[int, int] = {}
    with _open(chain.directory.path, ()) as root:
        if root is not None:
            for job in _started(root):
                if job not in kept:
                    found = list(_of_generation(root, job, chain.manifest.uid, left_alone))
                    doomed += found
                    sizes[job] = sum(one.size for one in found)
            past = list(_of_history(root, chain.manifest.uid, left_alone))
            doomed += past
    report = PruneReport(
        chain_id=chain.manifest.chain_id,
        name=chain.manifest.job_name,
        run_directory=str(chain.directory.path),
        dry_run=True,
        bytes_by_generation={job: size for job, size in sizes.items() if size},
        history=sum(one.size for one in doomed if one.directory[0] == "history"),
        files=len(doomed),
        bytes=sum(one.size for one in doomed),
        kept=kept,
        left_alone=left_alone,
        not_removed={},
    )
    return PrunePlan(doomed=tuple(doomed), report=report)


def prune(chain: OpenChain, plan: PrunePlan, progress: Callable[[int], None]) -> PruneReport:
    """Remove it. `progress` hears the bytes of each file. A file that is gone already is no error."""
    not_removed: dict[str, str] = {}
    removed: list[Doomed] = []
    with _open(chain.directory.path, ()) as root:
        for one in plan.doomed if root is not None else ():
            assert root is not None
            why = _remove(root, one, chain.manifest.uid)
            if why is None:
                removed.append(one)
            else:
                not_removed["/".join((*one.directory, one.name))] = why
            progress(one.size)
        if root is not None:
            _remove_empty(root, {one.directory for one in removed})
    return msgspec.structs.replace(
        plan.report,
        dry_run=False,
        bytes_by_generation={job: size for job in plan.report.bytes_by_generation if (size := _size_of(removed, job))},
        history=sum(one.size for one in removed if one.directory[0] == "history"),
        files=len(removed),
        bytes=sum(one.size for one in removed),
        not_removed=not_removed,
    )


def _size_of(removed: list[Doomed], job: int) -> int:
    return sum(one.size for one in removed if one.job == job)


def _find_kept(chain: OpenChain, queue: ChainQueue, request: PruneRequest, now: datetime) -> dict[int, str]:
    """The generations that stay, and why."""
    known = [one.array_job_id for one in chain.files.generations()]
    with _open(chain.directory.path, ()) as root:
        # Not those on record alone: one whose submit died on the way trains, and the fence reads an older chain's too.
        begun = _started(root) if root is not None else []
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


@contextlib.contextmanager
def _open(root: int | os.PathLike[str], parts: Sequence[str]) -> Iterator[int | None]:
    """A descriptor of a directory, reached without a link below `root`; None when it is not there."""
    with contextlib.ExitStack() as stack:
        try:
            if isinstance(root, int):
                descriptor = os.dup(root)
            else:
                descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            for part in parts:
                descriptor = os.open(part, _DIRECTORY, dir_fd=descriptor)
                stack.callback(os.close, descriptor)
        except OSError as error:
            log.debug("not opened parts=%s error=%s", parts, error)
            yield None
            return
        yield descriptor


def _started(root: int) -> list[int]:
    with _open(root, ("generations",)) as directory:
        names = os.listdir(directory) if directory is not None else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _of_generation(root: int, job: int, owner: int, left_alone: dict[str, str]) -> Iterator[Doomed]:
    for part, known in _PARTS.items():
        yield from _list(root, ("generations", str(job), part), known, owner, left_alone, job=job)
    batch_output = re.compile(rf"slurm-{job}_\d{{1,9}}\.log", re.ASCII)
    # The directory of all generations: the others' are no news.
    yield from _list(root, ("logs",), batch_output, owner, {}, job=job)


def _of_history(root: int, owner: int, left_alone: dict[str, str]) -> Iterator[Doomed]:
    with _open(root, ("history",)) as directory:
        names = sorted(os.listdir(directory)) if directory is not None else []
    for name in names:
        for parts in (("history", name), ("history", name, _SUBMISSIONS)):
            yield from _list(root, parts, _OF_HISTORY, owner, left_alone, job=None)


def _list(
    root: int,
    parts: tuple[str, ...],
    known: re.Pattern[str],
    owner: int,
    left_alone: dict[str, str],
    *,
    job: int | None,
) -> Iterator[Doomed]:
    with _open(root, parts) as directory:
        if directory is None:
            return
        for name in sorted(os.listdir(directory)):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if name == _SUBMISSIONS and stat.S_ISDIR(status.st_mode):
                continue
            why = _why_not(name, status, known, owner)
            if why is None:
                yield Doomed(job=job, directory=parts, name=name, size=status.st_size)
            else:
                left_alone["/".join((*parts, name))] = why


def _why_not(name: str, status: os.stat_result, known: re.Pattern[str], owner: int) -> str | None:
    """Why a file stays; None when it may go. A link goes as itself; what it points to is never looked at."""
    if status.st_uid != owner:
        return f"it belongs to uid {status.st_uid}"
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        return "it is no file"
    return None if known.fullmatch(name) else "nvrx-chain does not know it"


def _remove(root: int, one: Doomed, owner: int) -> str | None:
    """Remove one file. None when it is gone, else why it stays."""
    with _open(root, one.directory) as directory:
        if directory is None:
            return None
        try:
            status = os.stat(one.name, dir_fd=directory, follow_symlinks=False)
            if status.st_uid != owner or stat.S_ISDIR(status.st_mode):
                return "it is another one now"
            os.unlink(one.name, dir_fd=directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"it cannot be removed: {error.strerror}"
    return None


def _remove_empty(root: int, directories: set[tuple[str, ...]]) -> None:
    """Remove directories that are empty now, the deepest first; logs/ of the run directory stays: Slurm makes none."""
    wanted = {parts for parts in directories if len(parts) > 1}
    wanted |= {parts[:-1] for parts in wanted if parts[-1] == _SUBMISSIONS}
    for parts in sorted(wanted, key=len, reverse=True):
        with _open(root, parts[:-1]) as parent:
            if parent is not None:
                # Not empty: something that is not ours to remove lies there.
                with contextlib.suppress(OSError):
                    os.rmdir(parts[-1], dir_fd=parent)


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


def render_size(size: int) -> str:
    """Bytes in the unit that suits them."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
