"""The current generation of a chain for the screen: its tasks, nodes and spares, folded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.nodelist import expand_nodes, fold_nodes
from nvrx_chain.slurm.states import NodeState
from nvrx_watch.model import Generation, Queue, Snapshot
from nvrx_watch.ui.marks import GenerationMark, MarkKind, TaskFold, accounted_rows, fold_tasks
from nvrx_watch.ui.words import escape

_MOST_SICK = 6
_SICK = frozenset(
    {NodeState.DOWN, NodeState.DRAIN, NodeState.DRAINED, NodeState.DRAINING, NodeState.ERROR}
    | {NodeState.FAIL, NodeState.FAILING, NodeState.REBOOT, NodeState.MAINT}
)


class NodeFold(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes as one Slurm node list. `text` is `?` where they are not known."""

    text: str
    count: int


class Spares(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks in reserve now, and how many the shape has; None where that is not known."""

    hot: int | None
    hot_of: int | None
    cold: int | None
    cold_of: int | None
    at_least: bool


class CurrentGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """The newest generation that has begun. `tasks` None: the queue was not seen.

    `active` and `standby` come from the newest cycle record, else `active` is what Slurm shows as held; None: there
    is no record and nothing is held.
    """

    array_job_id: int
    position: int
    of: int
    kind: MarkKind
    word: str
    phase: str | None
    started_at: datetime | None
    tasks: tuple[TaskFold, ...] | None
    active: NodeFold | None
    standby: NodeFold | None
    sick: tuple[str, ...]
    spares: Spares


def describe_current(snapshot: Snapshot, marks: Sequence[GenerationMark]) -> CurrentGeneration | None:
    """The current generation; None before the first has begun."""
    one = snapshot.current()
    if one is None:
        return None
    position = snapshot.generations.index(one)
    mark = marks[position]
    seen = isinstance(snapshot.queue, Queue) and one.array_job_id not in snapshot.queue.doubtful
    rows = snapshot.queue.rows(one.array_job_id) if isinstance(snapshot.queue, Queue) else ()
    lease = one.leases.get(0)
    active, standby = _nodes(one, rows)
    return CurrentGeneration(
        array_job_id=one.array_job_id,
        position=position + 1,
        of=len(snapshot.generations),
        kind=mark.kind,
        word=mark.word,
        phase=escape(lease.phase, 40) if lease is not None and mark.kind is MarkKind.RUNNING else None,
        started_at=_started_at(snapshot, one),
        tasks=fold_tasks(rows) if seen else None,
        active=active,
        standby=standby,
        sick=_sick(snapshot, one, rows),
        spares=_spares(snapshot, one, rows, seen=seen),
    )


def _started_at(snapshot: Snapshot, one: Generation) -> datetime | None:
    """When Slurm started task 0: its time limit runs from then."""
    if isinstance(snapshot.queue, Queue):
        row = snapshot.queue.task(one.array_job_id, 0)
        if row is not None and row.started_at is not None:
            return row.started_at
    first = [row for row in accounted_rows(snapshot, one.array_job_id) if row.array_task_id == 0]
    return first[-1].started_at if first else None


def _nodes(one: Generation, rows: Sequence[QueuedTask]) -> tuple[NodeFold | None, NodeFold | None]:
    if isinstance(one.cycles, Unobserved):
        return NodeFold(text="?", count=0), NodeFold(text="?", count=0)
    if one.cycles:
        newest = one.cycles[-1]
        return _fold(newest.active_nodes), _fold(newest.standby_nodes)
    return _fold(_held_nodes(rows)), None


def _held_nodes(rows: Sequence[QueuedTask]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for row in rows:
        if row.state.is_terminal or row.state.is_pending:
            continue
        try:
            names.update(dict.fromkeys(expand_nodes(row.nodelist)))
        except ValueError:
            names[row.nodelist] = None
    return tuple(names)


def _fold(names: Sequence[str]) -> NodeFold | None:
    if not names:
        return None
    try:
        text = fold_nodes(names)
    except ValueError:
        # A record may hold any text: it is shown as it is, and nobody takes it for a node list.
        text = ",".join(names[:20])
    return NodeFold(text=escape(text), count=len(set(names)))


def _sick(snapshot: Snapshot, one: Generation, rows: Sequence[QueuedTask]) -> tuple[str, ...]:
    """The nodes of this generation that Slurm calls unwell, with its word."""
    if isinstance(snapshot.nodes, Unobserved):
        return ()
    used = dict.fromkeys(_held_nodes(rows))
    if isinstance(one.cycles, Sequence) and one.cycles:
        used |= dict.fromkeys((*one.cycles[-1].active_nodes, *one.cycles[-1].standby_nodes))
    found = [snapshot.nodes[name] for name in used if name in snapshot.nodes]
    return tuple(_sick_text(node) for node in found if _is_sick(node))[:_MOST_SICK]


def _is_sick(node: Node) -> bool:
    return node.state in _SICK or not node.responding


def _sick_text(node: Node) -> str:
    reason = f" ({escape(node.reason, 60)})" if node.reason else ""
    return f"{escape(node.name, 80)} {escape(node.raw_state, 40)}{reason}"


def _spares(snapshot: Snapshot, one: Generation, rows: Sequence[QueuedTask], *, seen: bool) -> Spares:
    manifest = snapshot.subject.manifest
    shape = manifest.shape if manifest is not None else None
    holding = sum(not row.state.is_pending and not row.state.is_terminal for row in rows)
    pending = [row for row in rows if row.state.is_pending]
    hot = max(0, holding - shape.train_tasks) if shape is not None and seen else None
    return Spares(
        hot=hot,
        hot_of=shape.hot_spares if shape is not None else None,
        cold=len(pending) if seen else None,
        cold_of=shape.cold_spares if shape is not None else None,
        at_least=any(row.array_task_id is None for row in pending),
    )
