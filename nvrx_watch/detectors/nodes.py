"""The nodes of a run: which one does harm, which one Slurm takes away, and whether a spare is left. Pure.

The unit of spare capacity is the array task, not the node; a node that trades places with a standby one is not to
blame for that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_chain.slurm.states import NodeState
from nvrx_watch.detectors.cycle_facts import cycles_of, name_nodes, open_cycle, training_generation
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import final_verdict, holds_node
from nvrx_watch.detectors.suspects import DETECTORS as SUSPECT_DETECTORS
from nvrx_watch.detectors.wording import MOST_LISTED, count, listed, safe
from nvrx_watch.model import Finding, Generation, Queue, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

MOST_NODE_FINDINGS = 8
"""With more nodes than this in trouble it is one incident of the generation, not one page for each node."""

_PLAIN = re.compile(r"\w[\w.-]*", re.ASCII)

_LOOK_BACK = 50
"""Among so many of the newest cycles a standby node is looked for."""

_TAKEN_AWAY = frozenset(
    {
        NodeState.DOWN,
        NodeState.DRAIN,
        NodeState.DRAINED,
        NodeState.DRAINING,
        NodeState.ERROR,
        NodeState.FAIL,
        NodeState.FAILING,
    }
)


def find_spares_exhausted(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The running generation has nothing left that could replace a dead task."""
    generation, queue = training_generation(snapshot), snapshot.queue
    if generation is None or isinstance(queue, Unobserved) or final_verdict(snapshot) is not None:
        return
    job = generation.array_job_id
    alive = [row for row in queue.alive(job) if row.state.is_pending or holds_node(row)]
    if not alive or any(row.state.is_pending or row.array_task_id is None for row in alive):
        # A row without an index stands for at least one task: how many spares it hides is not known.
        return
    manifest = snapshot.subject.manifest
    if manifest is not None:
        shape = manifest.shape
        if shape.hot_spares + shape.cold_spares <= 0 or len(alive) > shape.train_tasks:
            return
        had = (
            f"it was submitted with {count(shape.hot_spares, 'hot spare')} and {count(shape.cold_spares, 'cold spare')}"
        )
        title = f"generation {job} has no spare left: {len(alive)} of {shape.train_tasks} training tasks run"
    elif _lost_its_standby(generation):
        had = "its earlier cycles had standby nodes"
        title = f"generation {job} has no standby node left and no task that waits"
    else:
        return
    yield Finding(
        detector="spares_exhausted",
        severity=Severity.WARNING,
        scope=str(job),
        title=title,
        details=(had,),
        advice="the next node that fails ends this generation: see that a further one is queued, and bring nodes back",
        array_job_ids=(job,),
    )


def _lost_its_standby(generation: Generation) -> bool:
    """Whether the present cycle has no standby node and an earlier one of the generation had."""
    present, cycles = open_cycle(generation), cycles_of(generation)
    if present is None or present.standby_nodes:
        return False
    return any(cycle.standby_nodes for cycle in cycles[-_LOOK_BACK:-1])


def find_drained_active_node(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Slurm takes a node away on which the running generation has a task."""
    queue, nodes = snapshot.queue, snapshot.nodes
    if isinstance(queue, Unobserved) or isinstance(nodes, Unobserved):
        return
    # First the few nodes in trouble: the node lists of a healthy run need not be read at all.
    bad = {node.name: node for node in nodes.values() if node.state in _TAKEN_AWAY or not node.responding}
    generation = training_generation(snapshot) if bad else None
    if generation is None:
        return
    job = generation.array_job_id
    rows = [row for row in queue.rows(job) if holds_node(row)]
    hit = {name: row for row in rows for name in _nodes_of(row.nodelist) if name in bad}
    if len(hit) > MOST_NODE_FINDINGS:
        silent = not any(bad[name].responding for name in hit)
        what = f"{len(hit)} nodes of generation {job}: {name_nodes(frozenset(hit))}"
        yield _drained(job, str(job), what, (), silent=silent)
        return
    for name, row in sorted(hit.items()):
        node = bad[name]
        what = f"node {safe(name)}, where {row.spec} runs"
        yield _drained(job, name, what, _state_lines(node), silent=not node.responding)


def _state_lines(node: Node) -> tuple[str, ...]:
    silent = "" if node.responding else ", does not respond"
    reason = f"Slurm's reason: {safe(node.reason)}" if node.reason else "Slurm gives no reason"
    return (f"state: {safe(node.raw_state)}{silent}", reason)


def _drained(job: int, scope: str, what: str, details: tuple[str, ...], *, silent: bool) -> Finding:
    draining = "a draining node lets its task end and takes no new one; a spare takes over then, if one is left"
    gone = "Slurm gives a silent node up after SlurmdTimeout; the peers of its task go on without it before that"
    return Finding(
        detector="drained_active_node",
        severity=Severity.WARNING,
        scope=scope,
        title=f"drained, down or silent: {what}",
        details=details,
        advice=gone if silent else draining,
        array_job_ids=(job,),
    )


def find_duplicate_node(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Two running tasks of one generation are on one node."""
    queue = snapshot.queue
    if isinstance(queue, Unobserved):
        return
    for job in sorted(queue.arrays):
        shared = _shared_nodes(queue, job)
        if not shared:
            continue
        node, specs = min(shared.items())
        more = f" (and {count(len(shared) - 1, 'further node')} alike)" if len(shared) > 1 else ""
        yield Finding(
            detector="duplicate_node",
            severity=Severity.CRITICAL,
            scope=str(job),
            title=f"tasks {listed(specs)} share node {safe(node)}{more}",
            details=(f"shared nodes: {listed(sorted(shared), MOST_LISTED)}",),
            advice="launchers of one address collide in the rendezvous: submit with --exclusive, and cancel the task"
            f" that came last: scancel {specs[-1]}",
            array_job_ids=(job,),
        )


def _shared_nodes(queue: Queue, job: int) -> dict[str, tuple[str, ...]]:
    """The nodes on which more than one task of an array job runs, with the specs of the tasks in order of start."""
    rows = {row.spec: row for row in queue.rows(job) if row.nodelist and holds_node(row)}
    where = Counter(name for row in rows.values() for name in set(_nodes_of(row.nodelist)))
    shared = {name for name, number in where.items() if number > 1}
    if not shared:
        return {}
    in_order = sorted(rows.values(), key=_start)
    return {name: tuple(row.spec for row in in_order if name in _nodes_of(row.nodelist)) for name in shared}


def _start(row: QueuedTask) -> tuple[float, int]:
    started = row.started_at
    return (started.timestamp() if started is not None else 0.0, row.job_id)


@lru_cache(maxsize=4096)
def _nodes_of(nodelist: str) -> tuple[str, ...]:
    """The names in a task's node list; () for one that Slurm could not have printed.

    Kept over the passes of a daemon: the lists of a running generation are the same each time.
    """
    try:
        return expand_nodes(nodelist)
    except ValueError:
        # A list that was cut short: which nodes it means is not known, so nothing is said about them.
        return ()


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="spares_exhausted",
        severity=Severity.WARNING,
        needs=frozenset({Source.QUEUE, Source.CYCLES}),
        fires="the running generation was submitted with spares and has none left: no task waits, and no more tasks run"
        " than train. For a chain that nvrx-chain did not submit: its present cycle has no standby node, an earlier one"
        " of the same generation had, and no task waits",
        quiet="a task waits, or a row of the queue stands for several tasks that cannot be told apart; the generation"
        " is closed or was submitted without spares; the chain has a final verdict",
        todo="the next node that fails ends this generation: see that a further one is queued, and that drained nodes"
        " come back",
        check=find_spares_exhausted,
    ),
    *SUSPECT_DETECTORS,
    Detector(
        name="drained_active_node",
        severity=Severity.WARNING,
        needs=frozenset({Source.QUEUE, Source.NODES}),
        fires="a node of a running task of the present generation is drained, draining, failing or down, or does not"
        " answer Slurm; its reason is said",
        quiet="no task of the generation runs there (any more); the task is COMPLETING; the generation is closed",
        todo="nothing while a spare is left: it takes over when the node's task dies. Else see `spares_exhausted`",
        check=find_drained_active_node,
    ),
    Detector(
        name="duplicate_node",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE}),
        fires="two running tasks of one generation are on the same node",
        quiet="one of them is COMPLETING or has ended; a node list cannot be read",
        todo="two launchers of one address collide in the rendezvous: cancel the task that came last, and submit with"
        " `--exclusive`",
        check=find_duplicate_node,
    ),
)
