"""`nvrx-chain exclude`: keep what is queued, and what will be queued, away from nodes.

`excluded.json` comes before the queue, so that an extend in between has it; then the pending tasks of every array job
of the chain get the list, and only what `scontrol show job` says afterwards proves it. What runs stays where it is.
Touches: excluded.json, Slurm.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import PreflightError, RecordError, SlurmError, Unobserved, UsageError
from nvrx_chain.ops.chain import OpenChain, read_chain_queue, require_cluster, require_own
from nvrx_chain.ops.settle import DEADLINE_SECONDS, Desk, settle
from nvrx_chain.records.control import Excluded
from nvrx_chain.records.excluded import read_excluded_nodes
from nvrx_chain.records.files import read_record
from nvrx_chain.records.manifest import SubmissionIntent
from nvrx_chain.slurm.chain_queue import ChainQueue, describe_left_alone
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.job_name import parse_job_name
from nvrx_chain.slurm.nodelist import expand_nodes, fold_nodes

log = logging.getLogger(__name__)

_OUT_OF_SERVICE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "INVAL"})


class ExcludeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `nodes`: all that the chain keeps away from now, with the reason; array job ids."""

    schema: int = 1
    chain_id: str
    name: str
    run_directory: str
    nodes: dict[str, str]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    done: tuple[int, ...]
    not_done: dict[int, str]
    left_alone: dict[int, str]
    no_answer: str | None

    @property
    def is_complete(self) -> bool:
        """Whether Slurm shows every pending task of the chain with the list."""
        return not (self.not_done or self.left_alone or self.no_answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludeRequest:
    """Which nodes, each with the reason; `remove` takes them back. `force`: also when too few nodes are left."""

    nodes: dict[str, str]
    remove: bool = False
    force: bool = False


_FORMS = "nodes are named as n3 or n[01-04,07]"


def parse_nodes(words: Sequence[str]) -> tuple[str, ...]:
    """Node names from words such as `n3` and `n[01-04,07]`. Raises UsageError."""
    found: list[str] = []
    for word in words:
        try:
            names = expand_nodes(word)
        except ValueError as error:
            raise UsageError("reading the nodes to exclude", part=str(error), hint=_FORMS) from error
        if not names:
            raise UsageError(f"reading the nodes to exclude: {word!r} names none", hint=_FORMS)
        found += names
    return tuple(dict.fromkeys(found))


def refuse_job_ids(words: Sequence[str], client: SlurmClient) -> None:
    """Raise UsageError for a job id among the nodes: other commands take the chain as their first word."""
    jobs = [word for word in words if parse_job_name(word) is not None]
    known = client.nodes(tuple(jobs)) if jobs else {}
    job = next((word for word in jobs if isinstance(known, Unobserved) or word not in known), None)
    if job is not None:
        raise UsageError(
            f"reading the nodes to exclude: {job} looks like a job id, and Slurm shows no node of that name",
            hint=f"a chain is named by --chain: nvrx-chain exclude --chain {job} NODES",
        )


def exclude_nodes(
    chain: OpenChain, desk: Desk, request: ExcludeRequest, *, seconds: float = DEADLINE_SECONDS
) -> ExcludeReport:
    """Record the nodes and give them to what waits.

    Raises IdentityError, RecordError for a chain that has ended, UsageError for a node that is not there,
    PreflightError when too few nodes would be left. Then nothing was changed.
    """
    require_own(chain, desk.operator)
    _refuse_ended(chain)
    require_cluster(chain, desk.client)
    before = read_excluded(chain)
    after = _choose(chain, desk, request, before)
    removed = tuple(name for name in request.nodes if request.remove)
    chain.files.write_excluded(
        Excluded(
            chain_id=chain.manifest.chain_id,
            nodes=after,
            by=desk.operator.signature,
            changed_at=format_time(desk.clock.now()),
        )
    )
    chore = _Exclude(desk, frozenset(after), frozenset(removed))
    last = settle(chain, desk, chore, seconds)
    return ExcludeReport(
        chain_id=chain.manifest.chain_id,
        name=chain.manifest.job_name,
        run_directory=str(chain.directory.path),
        nodes=after,
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in removed if name in before),
        done=tuple(sorted(chore.shown)),
        not_done=dict(chore.missing),
        left_alone={} if isinstance(last, Unobserved) else describe_left_alone(last),
        no_answer=last.reason if isinstance(last, Unobserved) else None,
    )


def _choose(chain: OpenChain, desk: Desk, request: ExcludeRequest, before: Mapping[str, str]) -> dict[str, str]:
    """What the chain keeps away from afterwards, with the reasons. Raises when that may not be."""
    if request.remove:
        return {name: why for name, why in before.items() if name not in request.nodes}
    _require_known(desk.client, request.nodes)
    after = {**request.nodes, **before}
    _require_room(chain, desk, tuple(after), force=request.force)
    return after


def describe_excluded(chain: OpenChain) -> ExcludeReport:
    """The report of doing nothing: what the chain keeps away from. Raises RecordError."""
    return ExcludeReport(
        chain_id=chain.manifest.chain_id,
        name=chain.manifest.job_name,
        run_directory=str(chain.directory.path),
        nodes=read_excluded(chain),
        added=(),
        removed=(),
        done=(),
        not_done={},
        left_alone={},
        no_answer=None,
    )


def read_excluded(chain: OpenChain) -> dict[str, str]:
    """The nodes that the chain keeps away from, by its record, else by its submit. Raises RecordError."""
    nodes = read_excluded_nodes(chain.files)
    return _of_submit(chain) if nodes is None else nodes


def _of_submit(chain: OpenChain) -> dict[str, str]:
    """The `--exclude` of the newest submission on record."""
    known = chain.files.generations()
    if not known:
        return {}
    path = chain.directory.intent(known[-1].sequence)
    intent = read_record(path, SubmissionIntent, owner_uid=chain.manifest.uid)
    words = intent.argv if isinstance(intent, SubmissionIntent) else ()
    listed = [word.partition("=")[2] for word in words if word.startswith("--exclude=")]
    return dict.fromkeys(parse_nodes(listed), "excluded at submit")


def _refuse_ended(chain: OpenChain) -> None:
    verdict = chain.verdict()
    if verdict is not None:
        raise RecordError(
            f"chain {chain.manifest.job_name} has ended: {verdict.verdict.value} by {verdict.by}",
            hint="give --exclude to the submit that goes on",
        )


def _require_known(client: SlurmClient, names: Iterable[str]) -> None:
    known = client.nodes(tuple(names))
    if isinstance(known, Unobserved):
        raise SlurmError(
            "looking for the nodes to exclude",
            part=known.reason,
            hint="nothing was changed; repeat it when Slurm answers",
        )
    missing = [name for name in names if name not in known]
    if missing:
        raise UsageError(
            f"excluding nodes: Slurm has no node {' '.join(missing)}", hint="nothing was changed; `sinfo -N` lists them"
        )


def _require_room(chain: OpenChain, desk: Desk, excluded: Sequence[str], *, force: bool) -> None:
    """Raise PreflightError when what is left of the partition is smaller than one generation."""
    need = chain.manifest.shape.max_nodes
    names = _partition_nodes(chain, desk.client)
    what = f"excluding {len(excluded)} nodes"
    if isinstance(names, Unobserved):
        if not force:
            raise SlurmError(
                f"{what}: how many are left is not known",
                part=names.reason,
                hint="nothing was changed; --force does it all the same",
            )
        return
    left = sorted(names - set(excluded))
    if len(left) < need:
        text = f"{what}: {len(left)} of {len(names)} nodes would be left, and a generation takes {need}"
        if not force:
            raise PreflightError(text, hint="nothing was changed; --force excludes them all the same")
        desk.say(text)
        return
    states = desk.client.nodes(left)
    if isinstance(states, Unobserved):
        return
    serving = sum(node.responding and node.state.value not in _OUT_OF_SERVICE for node in states.values())
    if serving < need:
        desk.say(f"{serving} of the {len(left)} nodes that are left are in service now, and a generation takes {need}")


def _partition_nodes(chain: OpenChain, client: SlurmClient) -> set[str] | Unobserved:
    """The nodes of the partitions that the chain's jobs are in; of the default one while none is in the queue."""
    partitions, queue = client.partitions(), read_chain_queue(chain, client)
    if isinstance(partitions, Unobserved):
        return partitions
    if isinstance(queue, Unobserved):
        return queue
    wanted = {name for rows in queue.arrays.values() for row in rows for name in row.partition.split(",") if name}
    chosen = [one for one in partitions if (one.name in wanted if wanted else one.is_default)]
    try:
        names = {name for one in chosen for name in expand_nodes(one.nodelist)}
    except ValueError as error:
        return Unobserved(str(error))
    return names or Unobserved(f"no nodes of partition {' '.join(sorted(wanted)) or '(default)'} are shown")


@dataclass(slots=True)
class _Exclude:
    """The chore: every pending record of the chain has the nodes in its list, and none that was taken back.

    What somebody else excluded by hand stays.
    """

    desk: Desk
    wanted: frozenset[str]
    unwanted: frozenset[str]
    shown: set[int] = field(default_factory=set)
    missing: dict[int, str] = field(default_factory=dict)
    _refusals: dict[int, str] = field(default_factory=dict)
    _targets: dict[int, frozenset[str]] = field(default_factory=dict)

    def is_done(self, queue: ChainQueue) -> bool:
        self.missing, self._targets = {}, {}
        waiting = [job for job in queue.arrays if any(task.state.is_pending for task in queue.alive(job))]
        for job in waiting:
            self._look(job)
        self.shown = {job for job in waiting if job not in self.missing}
        return not self.missing

    def _look(self, job: int) -> None:
        details = self.desk.client.show_job(job)
        if isinstance(details, Unobserved):
            self.missing[job] = details.reason
            return
        pending = [one for one in details or () if one.array_job_id == job and one.state.is_pending]
        if any("ExcNodeList" not in one.fields for one in pending):
            self.missing[job] = "this client does not show excluded nodes: repeat it with --slurm-client command"
            return
        try:
            lists = [frozenset(expand_nodes(one.fields["ExcNodeList"])) for one in pending]
        except ValueError as error:
            self.missing[job] = str(error)
            return
        targets = [(now | self.wanted) - self.unwanted for now in lists]
        if lists != targets:
            self._targets[job] = frozenset().union(*targets)
            self.missing[job] = self._refusals.get(job, "its list is not as it was asked for")

    def act(self, queue: ChainQueue, passes: int) -> None:
        for job, nodes in self._targets.items():
            log.info("excluding array_job_id=%s nodes=%s", job, sorted(nodes))
            try:
                self.desk.client.exclude(str(job), sorted(nodes))
            except SlurmError as error:
                # Also said of an array with running tasks, whose pending ones have it now: the next look tells.
                self._refusals[job] = str(error)


def render_exclude(report: ExcludeReport) -> str:
    """The report for people."""
    listed = fold_nodes(report.nodes) or "no node"
    lines = [f"{report.name} (chain {report.chain_id}) keeps away from {listed}"]
    lines += [f"excluded     {name}: {report.nodes[name]}" for name in report.added]
    if report.removed:
        lines.append(f"taken back   {' '.join(report.removed)}")
    if report.done:
        lines.append(f"queued jobs  {' '.join(str(job) for job in report.done)} have the list")
    lines += [f"not changed  {job}: {why}" for job, why in report.not_done.items()]
    lines += [f"left alone   {job}: {why}" for job, why in report.left_alone.items()]
    if report.no_answer:
        lines.append(f"unknown      Slurm could not be read: {report.no_answer}")
    if not report.is_complete:
        lines.append("repeat this command for the rest; an extend has the list in any case")
    return "\n".join(lines)
