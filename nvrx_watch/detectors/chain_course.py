"""Does the chain get from one generation to the next, and is the running one what it should be? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nvrx_chain.clock import parse_time, render_age
from nvrx_chain.errors import Unobserved
from nvrx_chain.liveness import is_unreachable, lease_is_stale
from nvrx_chain.records.control import Closed, Lease, Rendezvous
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_chain.slurm.states import JobState
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import holds_node, hours, ordered_jobs, seconds_since, task_zero_end
from nvrx_watch.detectors.wording import listed, safe, specs
from nvrx_watch.memory import completing_name, lease_name
from nvrx_watch.model import ActionKind, ActionRequest, Finding, Generation, Queue, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds


def find_overlap(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Tasks of an older generation hold nodes beside those of the newest."""
    queue = snapshot.queue
    if isinstance(queue, Unobserved):
        return
    holders = [job for job in ordered_jobs(snapshot) if _may_train(snapshot, queue.running(job))]
    for older in holders[:-1]:
        newer = holders[-1]
        seconds = _overlaps_for(snapshot, queue, older, newer)
        if seconds is None or seconds <= thresholds.overlap_grace:
            continue
        both_run = any(map(holds_node, queue.running(older))) and any(map(holds_node, queue.running(newer)))
        states = Counter(safe(row.raw_state) for row in queue.running(older))
        words = listed(f"{number} {state}" for state, number in states.most_common())
        yield Finding(
            detector="generation_overlap",
            severity=Severity.CRITICAL if both_run else Severity.WARNING,
            scope=f"{older}-{newer}",
            title=f"generations {older} and {newer} hold nodes at once for {render_age(seconds)} ({older}: {words})",
            details=(
                f"{older}: {_places(queue.running(older))}",
                f"{newer}: {_places(queue.running(newer))}",
                *_shared(queue.running(older), queue.running(newer)),
            ),
            advice=f"make sure that no rank of {older} still writes: look at its nodes, then scancel {older}",
            array_job_ids=(older, newer),
        )


def _may_train(snapshot: Snapshot, rows: Sequence[QueuedTask]) -> bool:
    """Whether running tasks are a generation's. A foreign job that is no array may be a part of a heterogeneous job."""
    return any(row.is_array or snapshot.subject.is_ours for row in rows)


def _overlaps_for(snapshot: Snapshot, queue: Queue, older: int, newer: int) -> float | None:
    """Since the later of the two began; where Slurm has no start, since when this watcher sees COMPLETING tasks."""
    starts = [
        min((row.started_at for row in queue.running(job) if row.started_at is not None), default=None)
        for job in (older, newer)
    ]
    known = [at for at in starts if at is not None]
    if len(known) == len(starts):
        return seconds_since(max(known), snapshot.taken_at)
    if not snapshot.memory.value(completing_name(older)):
        return None
    return snapshot.memory.steady_seconds(completing_name(older), snapshot.taken_at)


def _places(rows: Sequence[QueuedTask]) -> str:
    return listed(f"{row.spec} {row.raw_state} on {row.nodelist}" for row in rows)


def _shared(older: Sequence[QueuedTask], newer: Sequence[QueuedTask]) -> tuple[str, ...]:
    both = {row.nodelist for row in older} & {row.nodelist for row in newer} - {""}
    return (f"both are on {listed(sorted(both))}",) if both else ()


def find_unreachable(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Task 0 runs as far as Slurm knows, and nothing shows that it does."""
    queue = snapshot.queue
    if isinstance(queue, Unobserved):
        return
    for generation in snapshot.generations:
        row = queue.task(generation.array_job_id, 0)
        # What is suspended or stopped stands still and lives; a closed generation is find_not_leaving's.
        if row is None or row.state is not JobState.RUNNING or generation.closed is not None:
            continue
        node = _node_of(snapshot, row)
        still = _lease_still(snapshot, generation)
        if is_unreachable(node):
            assert node is not None
            yield from _lost_node(snapshot, generation, row, node, still, thresholds)
        elif still is not None and _is_stale(generation, still, thresholds):
            yield _silent(generation, row, node, still)


def _node_of(snapshot: Snapshot, row: QueuedTask) -> Node | None:
    """The batch host of a task, None when it cannot be named or was not looked at."""
    try:
        names = expand_nodes(row.nodelist)
    except ValueError:
        return None
    return snapshot.nodes.get(names[0]) if names and not isinstance(snapshot.nodes, Unobserved) else None


def _lease_still(snapshot: Snapshot, generation: Generation) -> float | None:
    """For how long this watcher has seen task 0's counter stand still; None when it has not seen it twice."""
    lease, name = generation.leases.get(0), lease_name(generation.array_job_id, 0)
    if not isinstance(lease, Lease) or snapshot.memory.value(name) != lease.counter:
        return None
    return snapshot.memory.steady_seconds(name, snapshot.taken_at)


def _is_stale(generation: Generation, still: float, thresholds: WatchThresholds) -> bool:
    return lease_is_stale(still, generation.leases[0].interval_seconds, thresholds.lease_stale)


def _lost_node(
    snapshot: Snapshot,
    generation: Generation,
    row: QueuedTask,
    node: Node,
    still: float | None,
    thresholds: WatchThresholds,
) -> Iterator[Finding]:
    """Node gone: with a lease that stands still it is a fence, without any lease it is a warning, else it waits."""
    job, where = generation.array_job_id, f"{safe(node.name)} is {safe(node.raw_state)}"
    reason = (f"Slurm's reason: {safe(node.reason)}",) if node.reason else ()
    if still is None and 0 not in generation.leases:
        yield Finding(
            detector="task0_unreachable",
            severity=Severity.WARNING,
            scope=str(job),
            title=f"the node of {row.spec} does not answer: {where}",
            details=reason,
            advice="Slurm ends the task after SlurmdTimeout; an administrator can set the node down at once",
            array_job_ids=(job,),
        )
    elif still is not None and _is_stale(generation, still, thresholds):
        why = f"{where} and the lease of {row.spec} stands still for {render_age(still)}"
        yield Finding(
            detector="task0_unreachable",
            severity=Severity.CRITICAL,
            scope=str(job),
            title=f"task 0 of {job} is lost: {why}",
            details=reason,
            advice=f"the next generation waits for it: scancel {job}, once it is sure that the node is gone",
            array_job_ids=(job,),
            action=ActionRequest(kind=ActionKind.FENCE, array_job_id=job, why=why, command=f"scancel {job}"),
        )


def _silent(generation: Generation, row: QueuedTask, node: Node | None, still: float) -> Finding:
    where = f"{safe(node.name)} is {safe(node.raw_state)}" if node is not None else f"node {safe(row.nodelist)}"
    return Finding(
        detector="task0_unreachable",
        severity=Severity.WARNING,
        scope=str(generation.array_job_id),
        title=f"the lease of {row.spec} stands still for {render_age(still)} while Slurm shows it running ({where})",
        details=("an old lease alone proves nothing: it can be the file system as well",),
        advice=f"look at its node and its task log: nvrx-chain logs {row.spec}",
        array_job_ids=(generation.array_job_id,),
    )


def find_not_leaving(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """A closed generation still holds nodes: whoever closed it is dead, or what it asked of Slurm was not done."""
    queue = snapshot.queue
    if isinstance(queue, Unobserved):
        return
    for generation in snapshot.generations:
        closed, job = generation.closed, generation.array_job_id
        rows = tuple(filter(holds_node, queue.running(job)))
        if not isinstance(closed, Closed) or not rows:
            continue
        seconds = seconds_since(parse_time(closed.closed_at), snapshot.taken_at)
        if seconds is None or seconds <= thresholds.not_leaving:
            continue
        lost, command = _lost_task_zero(snapshot, queue, generation, thresholds), f"scancel {job}"
        request = None
        if lost is not None:
            request = ActionRequest(kind=ActionKind.FENCE, array_job_id=job, why=lost, command=command)
        since = render_age(seconds)
        yield Finding(
            detector="closed_generation_stays",
            severity=Severity.CRITICAL,
            scope=str(job),
            title=f"generation {job} was closed as {closed.outcome.value} {since} ago and still holds nodes",
            details=(f"closed by {safe(closed.closed_by)}", _places(rows), *([lost] if lost is not None else [])),
            advice=f"the next generation waits for it: make sure that nothing of it writes, then {command}",
            array_job_ids=(job,),
            action=request,
        )


def _lost_task_zero(
    snapshot: Snapshot, queue: Queue, generation: Generation, thresholds: WatchThresholds
) -> str | None:
    """Why task 0 is lost: Slurm ended it, or its node and its lease are silent. None while that cannot be said."""
    end = task_zero_end(snapshot, generation.array_job_id)
    if end is not None:
        return f"task 0 of {generation.array_job_id} is {safe(end.raw_state)}"
    row = queue.task(generation.array_job_id, 0)
    if row is None or row.state is not JobState.RUNNING:
        return None
    node, still = _node_of(snapshot, row), _lease_still(snapshot, generation)
    if node is None or not is_unreachable(node) or still is None or not _is_stale(generation, still, thresholds):
        return None
    where = f"{safe(node.name)} is {safe(node.raw_state)}"
    return f"{where} and the lease of {row.spec} stands still for {render_age(still)}"


def find_assembling(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """A generation holds nodes and waits for its tasks."""
    queue, manifest = snapshot.queue, snapshot.subject.manifest
    if isinstance(queue, Unobserved) or manifest is None:
        return
    for generation in snapshot.generations:
        meeting, job = generation.rendezvous, generation.array_job_id
        if meeting is None and generation.closed is None:
            yield from _silent_start(snapshot, queue, generation, thresholds)
        if not isinstance(meeting, Rendezvous) or meeting.started_at is not None or generation.closed is not None:
            continue
        row = queue.task(job, 0)
        seconds = seconds_since(parse_time(meeting.published_at), snapshot.taken_at)
        if row is None or not holds_node(row) or seconds is None or seconds <= thresholds.assembling:
            continue
        here, needed = len(generation.joined - generation.left), manifest.shape.train_tasks
        reasons = Counter(safe(one.reason or "no reason") for one in queue.pending(job))
        idle = _held_seconds(snapshot, queue.running(job)) * max(1, manifest.shape.nodes_per_task)
        yield Finding(
            detector="generation_assembling",
            severity=Severity.WARNING,
            scope=str(job),
            title=f"generation {job} waits for its tasks for {render_age(seconds)}: {here} of {needed} have joined",
            details=(
                f"pending: {listed(f'{number} {why}' for why, number in reasons.most_common()) or 'none'}",
                f"{hours(idle):.1f} node-hours held without training",
            ),
            advice="free nodes, or cancel the generation when they will not come",
            array_job_ids=(job,),
        )


def _silent_start(
    snapshot: Snapshot, queue: Queue, generation: Generation, thresholds: WatchThresholds
) -> Iterator[Finding]:
    """Task 0 runs and has written nothing that a peer could meet it by."""
    job = generation.array_job_id
    row = queue.task(job, 0)
    seconds = seconds_since(row.started_at, snapshot.taken_at) if row is not None and holds_node(row) else None
    if row is None or seconds is None or seconds <= thresholds.assembling or generation.cycles:
        return
    running = queue.running(job)
    yield Finding(
        detector="generation_assembling",
        severity=Severity.CRITICAL if seconds > 2 * thresholds.assembling else Severity.WARNING,
        scope=str(job),
        title=f"task 0 of generation {job} runs for {render_age(seconds)} and has published no rendezvous",
        details=(f"{len(running)} tasks hold nodes, {hours(_held_seconds(snapshot, running)):.1f} task-hours so far",),
        advice=f"look at what hangs on {safe(row.nodelist)}: nvrx-chain logs {row.spec}; then scancel {job}",
        array_job_ids=(job,),
    )


def _held_seconds(snapshot: Snapshot, rows: Sequence[QueuedTask]) -> float:
    return sum(seconds_since(row.started_at, snapshot.taken_at) or 0.0 for row in rows)


def find_foreign_jobs(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Live jobs that take part in the chain's singleton, or say that they are the chain's, without being on record."""
    queue, subject = snapshot.queue, snapshot.subject
    if isinstance(queue, Unobserved):
        return
    by_job: dict[int, list[QueuedTask]] = {}
    for row in queue.foreign:
        if not row.state.is_terminal:
            by_job.setdefault(row.array_job_id, []).append(row)
    for job, rows in by_job.items():
        by_name = any(row.name == subject.name and row.user == subject.user for row in rows)
        why = f"has the chain's job name {safe(subject.name)}: Slurm lets only one of them run at a time"
        yield _foreign(job, why if by_name else "carries the chain's comment", f"it is {_states(rows)}")
    for job, doubt in queue.doubtful.items():
        if job not in by_job:
            yield _foreign(job, "is on record, and the queue shows that id differently", safe(doubt))


def _states(rows: Sequence[QueuedTask]) -> str:
    states = Counter(safe(row.raw_state) for row in rows)
    return f"{listed(f'{number} {state}' for state, number in states.most_common())} ({listed(specs(rows))})"


def _foreign(job: int, why: str, detail: str) -> Finding:
    return Finding(
        detector="foreign_job_in_chain",
        severity=Severity.WARNING,
        scope=str(job),
        title=f"job {job} is not of this chain and {why}",
        details=(detail,),
        advice=f"it is never touched from here; find out whose it is: scontrol show job {job}",
        array_job_ids=(),
    )


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="generation_overlap",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE}),
        fires="tasks of two generations hold nodes at once for longer than the grace: a warning while those of one are"
        " COMPLETING, critical when both run. Singleton does not wait for COMPLETING tasks",
        quiet="the older generation is gone within the grace, as KillWait allows",
        todo="look at the nodes of the older generation: what hangs there (stuck file system, zombie) can still write."
        " Cancel it by its job id when it runs",
        check=find_overlap,
    ),
    Detector(
        name="task0_unreachable",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE, Source.RECORDS}),
        fires="task 0 is RUNNING for Slurm, its node is down or does not answer, and this watcher saw its lease stand"
        " still for the limit: critical. One of the two alone is a warning: the lease, or the node of a task that"
        " writes no lease",
        quiet="the lease moves, whatever Slurm says of the node; the generation is closed; the lease was not seen for"
        " long enough; the task is suspended or COMPLETING",
        todo="make sure that the node is gone, then run the scancel that is printed; `--act --allow fence` proves it"
        " first and then does the same",
        check=find_unreachable,
    ),
    Detector(
        name="closed_generation_stays",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE, Source.RECORDS}),
        fires="a generation was closed longer ago than the limit and tasks of it still hold nodes: its peers died"
        " before they cleared it, a cancel was refused, or a fence broke off",
        quiet="nothing of it holds a node but what is COMPLETING (generation_overlap sees to that), or it was closed"
        " just now",
        todo="look at the nodes that are named, then run the scancel; where task 0 has ended or its node is gone,"
        " `--act --allow fence` proves it, goes on where a fence broke off, and takes the tasks that have left",
        check=find_not_leaving,
    ),
    Detector(
        name="generation_assembling",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.QUEUE, Source.RECORDS}),
        fires="task 0 has published the rendezvous and has not started training for the limit; how many tasks have"
        " joined, why the others wait and the node-hours held so far are said. Also when task 0 runs for the limit and"
        " has published nothing at all (a hanging import or mount): critical after twice the limit",
        quiet="the generation has started, is closed, or task 0 holds no node",
        todo="free nodes, lower what the job asks for, or cancel the generation."
        " `--assemble-timeout` of submit bounds the wait",
        check=find_assembling,
    ),
    Detector(
        name="foreign_job_in_chain",
        severity=Severity.WARNING,
        needs=frozenset({Source.QUEUE}),
        fires="a live job of the same user has the chain's job name, or its comment, and is not on record; or a job id"
        " on record shows another name, user, comment or submit time",
        quiet="the job has ended, or belongs to another user",
        todo="rename or cancel the other job; submit chains with unique names. It is never touched from here",
        check=find_foreign_jobs,
    ),
)
