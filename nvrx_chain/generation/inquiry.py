"""Asking Slurm whether a task is dead, with the proof of `nvrx_chain.liveness`; one asker at a time, in a thread.

Slurm notices a silent node only after two thirds of SlurmdTimeout, so the asker makes it look: a harmless signal to the
batch step whose failed delivery marks the node. Touches: Slurm, `control/inquiry.json`.
"""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import dataclass

from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.liveness import Judgement, Life, is_unreachable, judge_task
from nvrx_chain.slurm.identity import verify_task
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.nodelist import expand_nodes

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0
BACK_OFF_SECONDS = (15.0, 30.0, 60.0, 120.0)
ASKING = "asking"


def inquire(context: TaskContext, about: int) -> Judgement:
    """Ask Slurm about one task of this generation. Takes up to the probe time; never raises for a silent Slurm."""
    context.board.note_inquiry(about, ASKING, "asking Slurm")
    before = _counter(context, about)
    row = _row(context, about)
    node = _batch_node(context, row)
    judgement = judge_task(row, node, before, _counter(context, about))
    if judgement.life is Life.ALIVE and _may_be_silent(row, node):
        assert isinstance(row, QueuedTask)
        judgement = _probe(context, about, row, before)
    context.board.note_inquiry(about, judgement.life.value, judgement.evidence)
    log.info("inquiry about=%s answer=%s evidence=%s", about, judgement.life.value, judgement.evidence)
    return judgement


def _row(context: TaskContext, about: int) -> QueuedTask | Unobserved | None:
    reading = context.client.queue(context.manifest.user)
    if isinstance(reading, Unobserved):
        return reading
    row = reading.task(context.array_job_id, about)
    if row is None:
        return None
    foreign = verify_task(row, context.chain_identity())
    if foreign is not None:
        return Unobserved(f"the queue shows another job under this id: {foreign}")
    return row


def _batch_node(context: TaskContext, row: QueuedTask | Unobserved | None) -> Node | Unobserved | None:
    """The first node of the task: run-task lives there, and with it the rendezvous of task 0."""
    if not isinstance(row, QueuedTask) or row.state.is_terminal or not row.nodelist:
        return None
    names = expand_nodes(row.nodelist)
    if not names:
        return None
    nodes = context.client.nodes([names[0]])
    return nodes if isinstance(nodes, Unobserved) else nodes.get(names[0])


def _may_be_silent(row: QueuedTask | Unobserved | None, node: Node | Unobserved | None) -> bool:
    """Slurm believes it to be running on a node that it believes to be fine: worth a nudge."""
    if not isinstance(row, QueuedTask) or row.state.is_pending:
        return False
    return not is_unreachable(node if isinstance(node, Node) else None)


def _probe(context: TaskContext, about: int, row: QueuedTask, before: int | None) -> Judgement:
    """Nudge, then poll until the node is marked, the lease moves or the probe time is over."""
    deadline = context.clock.monotonic() + context.thresholds.probe
    try:
        context.client.nudge(row.spec)
    except NvrxError as error:
        log.warning("nudge failed task=%s error=%s", row.spec, error)
    never = threading.Event()
    judgement = Judgement(life=Life.UNKNOWN, evidence="there was no time to look")
    while context.clock.monotonic() < deadline:
        context.clock.wait(never, POLL_SECONDS)
        if _counter(context, about) != before:
            return Judgement(life=Life.ALIVE, evidence=f"the lease of {row.spec} moves")
        context.board.note_inquiry(about, ASKING, "waiting for Slurm to look at the node")
        # The task itself too: one whose shell was killed is completing at first, and terminal a few seconds later.
        row_now, node = _row(context, about), _batch_node(context, row)
        judgement = judge_task(row_now, node, before, _counter(context, about))
        if judgement.life is Life.DEAD:
            break
    return judgement


def _counter(context: TaskContext, task: int) -> int | None:
    lease = context.board.lease(task)
    return lease.counter if lease else None


class Inquirer:
    """Runs at most one inquiry at a time in a thread, so that the loop that steers the ranks never waits for Slurm."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._thread: threading.Thread | None = None
        self._answer: Judgement | None = None
        self._about: int | None = None

    @property
    def busy(self) -> bool:
        """An inquiry is under way or its answer has not been taken yet."""
        return self._thread is not None

    def ask(self, about: int) -> None:
        """Start an inquiry."""
        self._about = about
        self._answer = None
        self._thread = threading.Thread(target=self._run, args=(about,), name="inquiry", daemon=True)
        self._thread.start()

    def take(self) -> tuple[int, Judgement] | None:
        """The answer once there is one; it is handed out once."""
        if self._thread is None or self._thread.is_alive() or self._about is None:
            return None
        self._thread = None
        answer = self._answer or Judgement(life=Life.UNKNOWN, evidence="the inquiry ended without an answer")
        return self._about, answer

    def _run(self, about: int) -> None:
        try:
            self._answer = inquire(self._context, about)
        except NvrxError as error:
            self._answer = Judgement(life=Life.UNKNOWN, evidence=f"the inquiry failed: {error}")


@dataclass(slots=True)
class _Raised:
    at: float
    reason: str


class InquiryWatch:
    """Whether another task is at Slurm right now: `inquiry.json` changed within the quiet time, on our own clock."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._seen: tuple[str, str, str] | None = None
        self._changed_at: float | None = None

    def somebody_asks(self) -> bool:
        """Read the file now."""
        inquiry = self._context.board.inquiry()
        now = self._context.clock.monotonic()
        seen = (inquiry.host, inquiry.evidence, inquiry.asked_at) if inquiry else None
        if seen != self._seen:
            self._seen = seen
            self._changed_at = now
        own = self._context.identity.array_task_id
        if inquiry is None or inquiry.array_task_id == own or self._changed_at is None:
            return False
        return now - self._changed_at < self._context.thresholds.inquiry_quiet


class HostQuestion:
    """Whether task 0 is dead, as the peers ask it: in turn, not while somebody else is asking, with back-off.

    The lowest live index asks first, each next one a turn later; nobody asks while `inquiry.json` changed within the
    quiet time.
    """

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._inquirer = Inquirer(context)
        self._raised: _Raised | None = None
        self._not_before = 0.0
        self._failures = 0
        self._others = InquiryWatch(context)

    def raise_(self, reason: str) -> None:
        """Something made this peer doubt that task 0 lives. Raising it again changes nothing."""
        if self._raised is None:
            log.info("asking whether task 0 lives reason=%s", reason)
            self._raised = _Raised(at=self._context.clock.monotonic(), reason=reason)

    def drop(self) -> None:
        """The doubt is over: the lease moves."""
        if self._raised is not None and not self._inquirer.busy:
            log.info("task 0 lives: its lease moves")
            self._raised = None
            self._failures = 0

    @property
    def is_asking(self) -> bool:
        """Whether this peer's own inquiry is under way."""
        return self._inquirer.busy

    def raised_seconds(self) -> float:
        """For how long the question has been open; 0 when it is not."""
        return self._context.clock.monotonic() - self._raised.at if self._raised else 0.0

    def tick(self, snapshot: Snapshot) -> Judgement | None:
        """Advance; the answer of Slurm when this peer's own inquiry has just ended."""
        taken = self._inquirer.take()
        if taken is not None:
            self._schedule_next(taken[1])
            return taken[1]
        now = self._context.clock.monotonic()
        if self._raised is None or self._inquirer.busy or now < self._not_before:
            return None
        if now - self._raised.at < self._turn(snapshot) or self._others.somebody_asks():
            return None
        self._inquirer.ask(0)
        return None

    def _turn(self, snapshot: Snapshot) -> float:
        live = snapshot.live_peers()
        own = self._context.identity.array_task_id
        rank = live.index(own) if own in live else len(live)
        return rank * self._context.thresholds.inquiry_turn

    def _schedule_next(self, judgement: Judgement) -> None:
        if judgement.life is Life.DEAD:
            return
        pause = BACK_OFF_SECONDS[min(self._failures, len(BACK_OFF_SECONDS) - 1)]
        self._failures += 1
        self._not_before = self._context.clock.monotonic() + pause * random.uniform(0.8, 1.2)
