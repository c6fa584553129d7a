"""Nodes on which tasks of a chain died again and again, by the chain's own records.

`find_bad_nodes` is pure. A death is a launcher's own failure, or a task whose lease stopped without a word of its end.
What most tasks of a generation had in common says nothing about a node. Touches: the run directory (reads).
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import ExitCode
from nvrx_chain.ops.chain import OpenChain
from nvrx_chain.records.control import Closed, Joined, LauncherExit, Lease, Left
from nvrx_chain.records.files import list_names, read_record
from nvrx_chain.records.layout import GenerationDirectory, is_launcher_exit, parse_indexed_name
from nvrx_chain.records.outcome import Outcome

log = logging.getLogger(__name__)

WITHIN_SECONDS = 1800.0
DIFFERENT_TASKS = 2
SAME_TASK_GENERATIONS = 3
LOOKED_AT_GENERATIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A task that died on a node, when, and by what sign. `of_tasks`: how many tasks its generation had."""

    node: str
    array_job_id: int
    array_task_id: int
    at: datetime
    why: str
    of_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNode:
    """A node and the deaths that speak against it, in the order of time."""

    name: str
    deaths: tuple[Death, ...]

    @property
    def reason(self) -> str:
        """One clause for the record."""
        tasks = " ".join(f"{death.array_job_id}_{death.array_task_id}" for death in self.deaths)
        return f"tasks {tasks} died there"


def find_bad_nodes(deaths: Iterable[Death], within_seconds: float = WITHIN_SECONDS) -> tuple[BadNode, ...]:
    """The nodes on which two different tasks died within so long, or one and the same in three generations."""
    by_node: dict[str, list[Death]] = defaultdict(list)
    for death in _without_common(tuple(deaths)):
        by_node[death.node].append(death)
    found = []
    for name, all_of_it in sorted(by_node.items()):
        telling = _different(all_of_it, within_seconds) or _repeated(all_of_it)
        if telling:
            found.append(BadNode(name=name, deaths=tuple(sorted(telling, key=lambda death: death.at))))
    return tuple(found)


def _without_common(deaths: Sequence[Death]) -> list[Death]:
    """Without generations in which more than half of the tasks died: that was no node."""
    died: dict[int, set[int]] = defaultdict(set)
    for death in deaths:
        died[death.array_job_id].add(death.array_task_id)
    return [
        death
        for death in deaths
        if len(died[death.array_job_id]) < 2 or 2 * len(died[death.array_job_id]) <= death.of_tasks
    ]


def _different(deaths: Sequence[Death], within_seconds: float) -> list[Death]:
    ordered = sorted(deaths, key=lambda death: death.at)
    for first in ordered:
        near = [death for death in ordered if 0 <= (death.at - first.at).total_seconds() <= within_seconds]
        if len({death.array_task_id for death in near}) >= DIFFERENT_TASKS:
            return near
    return []


def _repeated(deaths: Sequence[Death]) -> list[Death]:
    for task in sorted({death.array_task_id for death in deaths}):
        of_task = [death for death in deaths if death.array_task_id == task]
        if len({death.array_job_id for death in of_task}) >= SAME_TASK_GENERATIONS:
            return of_task
    return []


def read_deaths(chain: OpenChain) -> tuple[Death, ...]:
    """What the newest generations tell. A file that cannot be read is no statement."""
    known = chain.files.generations()[-LOOKED_AT_GENERATIONS:]
    return tuple(
        death for one in known for death in _of_generation(chain, chain.directory.generation(one.array_job_id))
    )


def _of_generation(chain: OpenChain, directory: GenerationDirectory) -> Iterable[Death]:
    names = list_names(directory.control)
    if not isinstance(names, tuple):
        return ()
    owner, job = chain.manifest.uid, directory.array_job_id
    tasks = {item[1] for item in map(parse_indexed_name, names) if item is not None}
    left = {item[1] for item in map(parse_indexed_name, names) if item is not None and item[0] == "left"}
    found: dict[tuple[str, int], Death] = {}

    def add(node: str, task: int, at: datetime | None, why: str) -> None:
        if at is not None and node:
            found.setdefault(
                (node, task),
                Death(node=node, array_job_id=job, array_task_id=task, at=at, why=why, of_tasks=len(tasks)),
            )

    for name in filter(is_launcher_exit, names):
        record = read_record(directory.control / name, LauncherExit, owner_uid=owner)
        if not isinstance(record, LauncherExit) or record.array_job_id != job:
            continue
        if _is_own_failure(chain, record, is_host=_is_host(directory, record, owner)):
            at = parse_time(record.ended_at)
            add(record.node, record.array_task_id, at, f"its launcher ended with {record.exit_code}")
    closed = chain.files.closed_of(job)
    if closed is not None:
        for task, lease in _silent(directory, tasks - left, owner).items():
            nodes = _nodes_of(directory, task, owner) or (lease.host,)
            # Of a task of many nodes it is not known which one died.
            if len(nodes) == 1:
                add(nodes[0], task, _last_sign(directory, task, closed), _why_silent(task, closed))
    return found.values()


def _is_own_failure(chain: OpenChain, record: LauncherExit, *, is_host: bool) -> bool:
    # SIGTERM comes from a scancel, a time limit or a preemption, which may reach the launcher before it reaches us.
    if record.exit_code in (chain.manifest.launcher.no_restart_exit_code, ExitCode.TERMINATED):
        return False
    # The launcher that holds the rendezvous takes it along when it dies: that is no excuse for its own node.
    lost = record.rendezvous_lost and not (is_host and record.exit_code != ExitCode.HOST_LOST)
    return record.exit_code != 0 and not record.asked_to_stop and not lost


def _is_host(directory: GenerationDirectory, record: LauncherExit, owner: int) -> bool:
    """Whether the rendezvous of the generation is on its node: the first one of task 0."""
    return record.array_task_id == 0 and record.node in _nodes_of(directory, 0, owner)[:1]


def _silent(directory: GenerationDirectory, tasks: Iterable[int], owner: int) -> Mapping[int, Lease]:
    """The leases of tasks that wrote one and never that they left."""
    found = {}
    for task in sorted(tasks):
        lease = read_record(directory.lease(task), Lease, owner_uid=owner)
        if (
            isinstance(lease, Lease)
            and lease.array_job_id == directory.array_job_id
            and _never_left(directory, task, owner)
        ):
            found[task] = lease
    return found


def _never_left(directory: GenerationDirectory, task: int, owner: int) -> bool:
    return not isinstance(read_record(directory.left(task), Left, owner_uid=owner), Left)


def _nodes_of(directory: GenerationDirectory, task: int, owner: int) -> tuple[str, ...]:
    joined = read_record(directory.joined(task), Joined, owner_uid=owner)
    return joined.nodes if isinstance(joined, Joined) else ()


def _last_sign(directory: GenerationDirectory, task: int, closed: Closed) -> datetime | None:
    """When its lease was written last; when the generation was closed where that is not known."""
    try:
        at = os.stat(directory.lease(task), follow_symlinks=False).st_mtime
    except OSError as error:
        log.debug("no time of a lease task=%s error=%s", task, error)
        return parse_time(closed.closed_at)
    return datetime.fromtimestamp(at, tz=timezone.utc)


def _why_silent(task: int, closed: Closed) -> str:
    if task == 0 and closed.outcome is Outcome.LEASE_LOST and closed.evidence:
        return closed.evidence[0]
    return "its lease stopped, and it never said that it left"


def render_bad_nodes(found: Sequence[BadNode]) -> str:
    """The evidence for people."""
    lines = []
    for node in found:
        lines.append(f"{node.name}: {len(node.deaths)} deaths")
        lines += [
            f"  {death.at.strftime('%Y-%m-%dT%H:%M:%SZ')}  {death.array_job_id}_{death.array_task_id}: {death.why}"
            for death in node.deaths
        ]
    return "\n".join(lines)
