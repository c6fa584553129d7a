"""Fencing the predecessor: no rank of this generation starts while one of an earlier generation may still live.

Singleton does not wait for COMPLETING tasks, and a node that Slurm gave up can live on. So the earlier generation is
closed first (its tasks read that and stop), and then each of its tasks must have left, be ended on a node that answers,
or have a lease that stood still longer than its own fence and drain take. `judge_fence` is pure. Touches: Slurm,
control/.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.hooks import Hook, switched_off
from nvrx_chain.liveness import LeaseWatch, fenced_after_seconds, is_unreachable
from nvrx_chain.records.control import LeaseSeen
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.slurm.identity import verify_task
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
ASK_SLURM_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTask:
    """What is known about one task of an earlier generation that may have had ranks."""

    array_task_id: int
    left: bool
    row: QueuedTask | None
    nodes: tuple[Node, ...]
    still_seconds: float | None
    interval_seconds: float | None


def judge_fence(task: EarlierTask, thresholds: Thresholds) -> str | None:
    """Why the ranks of an earlier task may still live; None when they cannot.

    An end on nodes that answer is proof, but for NODE_FAIL: on a node that came back the processes of the failed task
    live on until its slurmd has been told, measured 4 s and up to KillWait.
    """
    if task.left:
        return None
    interval = task.interval_seconds or thresholds.lease_interval
    needed = fenced_after_seconds(interval, thresholds.self_fence, thresholds.drain, thresholds.fence_margin)
    if task.still_seconds is not None and task.still_seconds >= needed:
        return None
    state = task.row.raw_state if task.row else "not listed"
    if task.row is not None and task.row.state.is_terminal and task.row.state is not JobState.NODE_FAIL:
        silent = [node for node in task.nodes if is_unreachable(node)]
        if task.nodes and not silent:
            return None
        if not task.nodes and not task.row.nodelist:
            return None
        state += f" on {', '.join(node.name for node in silent) or task.row.nodelist}, which does not answer"
    still = "was never seen" if task.still_seconds is None else f"stood still for {task.still_seconds:.0f} s"
    where = f" on {task.row.nodelist}" if task.row and task.row.nodelist else ""
    return f"task {task.array_task_id}{where} is {state}, has not left, its lease {still} of {needed:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmView:
    """What Slurm said last: the rows of the earlier tasks that are ours, and the nodes of these."""

    rows: Mapping[tuple[int, int], QueuedTask]
    nodes: Mapping[str, Node]


_NOTHING_SEEN = SlurmView(rows={}, nodes={})


class Fence:
    """Waits until every earlier generation of this chain is certainly without ranks."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._watches: dict[int, LeaseWatch] = {}
        self._boards: dict[int, Board] | Unobserved = Unobserved("not looked yet")
        self._told: set[int] = set()
        self._asked_at: float | None = None
        self._question: Background[SlurmView] = Background(context.spawn, "question about the predecessor")
        self._slurm = _NOTHING_SEEN

    def _unfenced(self) -> list[int] | Unobserved:
        """Earlier generations, newest first, back to and including the last one that launched: its own fence has
        cleared everything before it."""
        before = self._context.chain.directories_before(self._context.array_job_id)
        if isinstance(before, Unobserved):
            return before
        jobs = []
        for job in before:
            jobs.append(job)
            record = self._context.chain.record_of(job)
            if record is not None and record.launched_at is not None:
                break
        return jobs

    def _find_boards(self) -> dict[int, Board] | Unobserved:
        if isinstance(self._boards, Unobserved):
            jobs = self._unfenced()
            if isinstance(jobs, Unobserved):
                return jobs
            context = self._context
            self._boards = {
                job: Board(
                    context.chain.directory.generation(job), context.identity, context.clock, context.board.owner_uid
                )
                for job in jobs
            }
        return self._boards

    def close_earlier(self) -> tuple[str, ...]:
        """Tell every earlier generation that it is over, unless it knows. What could not be told is returned."""
        boards = self._find_boards()
        if isinstance(boards, Unobserved):
            return (f"the earlier generations: {boards.reason}",)
        failed = []
        for job, board in boards.items():
            if job in self._told:
                continue
            try:
                self._close(board)
                self._told.add(job)
            except NvrxError as error:
                failed.append(f"generation {job}: it could not be told that it is over, {error}")
        return tuple(failed)

    def _close(self, board: Board) -> None:
        board.prepare()
        if board.closed() is None:
            board.close(
                Outcome.SUPERSEDED,
                exit_code=None,
                evidence=(f"generation {self._context.array_job_id} started on {self._context.identity.host}",),
                leases={},
            )

    def blockers(self) -> tuple[str, ...]:
        """What must still end, one sentence a task; empty when this generation may start ranks."""
        if switched_off(Hook.NO_FENCE):
            return ()
        found = list(self.close_earlier())
        boards = self._find_boards()
        if isinstance(boards, Unobserved):
            return tuple(found)
        for job, board in boards.items():
            for task in self._earlier_tasks(job, board):
                why = judge_fence(task, self._context.thresholds)
                if why is not None:
                    found.append(f"generation {job}: {why}")
        return tuple(found)

    def _earlier_tasks(self, job: int, board: Board) -> list[EarlierTask]:
        left, joined, leased = board.indexed("left"), board.indexed("joined"), board.indexed("lease")
        if isinstance(left, Unobserved) or isinstance(joined, Unobserved) or isinstance(leased, Unobserved):
            # A directory that cannot be listed says nothing: every task that could exist counts as present.
            left, joined = (), tuple(range(self._context.manifest.shape.total))
            leased = ()
        open_tasks = sorted((set(joined) | set(leased)) - set(left))
        if not open_tasks:
            return []
        watch = self._watches.setdefault(job, LeaseWatch())
        now = self._context.clock.monotonic()
        watch.observe(board.leases(tuple(open_tasks)), self._context.clock.monotonic())
        closed, cleared = board.closed(), board.cleared()
        believed = [record for record in (closed, cleared) if record and not isinstance(record, Unobserved)]
        # Not what a watcher outside saw: it may have looked at leases that were excused, since the directory stalled
        # for every task and not for it.
        seen = [record.leases for record in believed if record.array_task_id >= 0]
        self._ask_slurm(now)
        return [self._earlier_task(job, task, watch, seen, now) for task in open_tasks]

    def _earlier_task(
        self, job: int, task: int, watch: LeaseWatch, seen: Sequence[Mapping[str, LeaseSeen]], now: float
    ) -> EarlierTask:
        row = self._slurm.rows.get((job, task))
        still = watch.still_seconds(task, now)
        views = (leases.get(str(task)) for leases in seen)
        # The counter only grows, so while it is the same it stood still from the others' look until ours as well.
        credit = [view.still_seconds for view in views if view is not None and view.counter == watch.counter(task)]
        if still is not None:
            still += max(0.0, *credit) if credit else 0.0
        names = _names(row)
        # A node that Slurm says nothing about is no node that answers.
        known = self._slurm.nodes
        nodes = [known[name] for name in names] if all(name in known for name in names) else []
        return EarlierTask(
            array_task_id=task,
            left=False,
            row=row,
            nodes=tuple(nodes),
            still_seconds=still,
            interval_seconds=watch.interval(task),
        )

    def _ask_slurm(self, now: float) -> None:
        """Ask from time to time, in the background: a TERM that comes meanwhile must be answered within KillWait."""
        if self._asked_at is None or now - self._asked_at >= ASK_SLURM_SECONDS:
            if not self._question.busy:
                self._asked_at = now
            self._question.start(self._look)
        answered = self._question.take()
        if answered is not None:
            self._slurm = _NOTHING_SEEN if isinstance(answered.value, Unobserved) else answered.value

    def _look(self) -> SlurmView:
        reading = self._context.client.queue(self._context.manifest.user)
        boards = self._find_boards()
        if isinstance(reading, Unobserved) or isinstance(boards, Unobserved):
            return _NOTHING_SEEN
        identity = self._context.chain_identity()
        rows: dict[tuple[int, int], QueuedTask] = {}
        for job in boards:
            for task in {row.array_task_id for row in reading.of(job) if row.array_task_id is not None}:
                row = reading.task(job, task)
                # An id can have been given out again: the end of somebody else's job is no proof.
                if row is not None and verify_task(row, identity) is None:
                    rows[job, task] = row
        names = sorted({name for row in rows.values() for name in _names(row)})
        nodes = self._context.client.nodes(names) if names else {}
        return SlurmView(rows=rows, nodes={} if isinstance(nodes, Unobserved) else nodes)


def _names(row: QueuedTask | None) -> tuple[str, ...]:
    """The nodes of a task; none that could be asked about when its list cannot be read."""
    try:
        return expand_nodes(row.nodelist if row else "")
    except ValueError as error:
        log.warning("%s", error)
        return ()
