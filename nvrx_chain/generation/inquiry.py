"""Asking Slurm whether a task is dead, with the proof of `nvrx_chain.liveness`; one asker at a time, in the background.

Slurm notices a silent node only after two thirds of SlurmdTimeout, so the asker makes it look: a harmless signal to the
batch step whose failed delivery marks the node. Touches: Slurm, `control/inquiry.json`.
"""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import dataclass

from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.liveness import Judgement, Life, is_unreachable, judge_task, stillness_seconds
from nvrx_chain.records.control import Inquiry
from nvrx_chain.slurm.batch_node import read_batch_node
from nvrx_chain.slurm.identity import verify_task
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)

POLL_SECONDS = 4.0
FIRST_LOOK_SECONDS = 10.0
"""Slurm calls a node that still seemed well silent no sooner than its own message time-out (10 s) after the nudge."""
QUEUE_EVERY = 4
"""The node is what an asker waits for; the task is looked at with each fourth look. A controller that
serves a thousand jobs feels each call."""
BACK_OFF_SECONDS = (15.0, 30.0, 60.0, 120.0)
ASKING = "asking"


class LeaseEye:
    """One task's lease during an inquiry: whether its counter moves, and for how long it is known to have stood still.

    What the board's watcher saw before counts, when it is the same counter.
    """

    def __init__(self, context: TaskContext, task: int) -> None:
        self._context = context
        self._task = task
        seen = context.watcher.latest().leases.get(task)
        lease = context.board.look_for_lease(task)
        self._began = context.clock.monotonic()
        self._before = lease.counter if lease is not None and not isinstance(lease, Unobserved) else lease
        self._after = self._before
        self._still_before = seen.still_seconds if seen is not None and seen.counter == self._before else 0.0
        self.interval_seconds = seen.interval_seconds if seen else context.thresholds.lease_interval
        self.still_seconds = self._still_before

    def look(self) -> None:
        """Read the lease again."""
        looked_at = self._context.clock.monotonic()
        lease = self._context.board.look_for_lease(self._task)
        self._after = lease.counter if lease is not None and not isinstance(lease, Unobserved) else lease
        self.still_seconds = self._still_before + looked_at - self._began

    @property
    def moved(self) -> bool:
        """Whether the counter was seen to change."""
        return self._after != self._before and not isinstance(self._after, Unobserved)

    @property
    def stood_long_enough(self) -> bool:
        """Whether its standing still says anything."""
        return self.still_seconds >= stillness_seconds(self.interval_seconds)

    def judge(self, row: QueuedTask | Unobserved | None, node: Node | Unobserved | None) -> Judgement:
        """Look once more and judge."""
        self.look()
        return judge_task(
            row,
            node,
            self._before,
            self._after,
            still_seconds=self.still_seconds,
            interval_seconds=self.interval_seconds,
        )


def inquire(context: TaskContext, about: int) -> Judgement:
    """Ask Slurm about one task of this generation. Takes up to the probe time; never raises for a silent Slurm."""
    context.board.note_inquiry(about, ASKING, "asking Slurm")
    eye = LeaseEye(context, about)
    row = _row(context, about)
    node = read_batch_node(context.client, row)
    judgement = eye.judge(row, node)
    if isinstance(row, QueuedTask) and _is_open(row, node, eye):
        judgement = _probe(context, about, row, eye, node)
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


def _is_open(row: QueuedTask, node: Node | Unobserved | None, eye: LeaseEye) -> bool:
    """Slurm believes it to run, its lease stands still, and there is no proof yet: worth a nudge and some patience."""
    if row.state.is_terminal or row.state.is_pending or isinstance(node, Unobserved) or eye.moved:
        return False
    return not (is_unreachable(node) and eye.stood_long_enough)


def _probe(
    context: TaskContext, about: int, known: QueuedTask, eye: LeaseEye, node: Node | Unobserved | None
) -> Judgement:
    """Nudge, then look until there is proof, the lease moves or the probe time is over."""
    deadline = context.clock.monotonic() + context.thresholds.probe
    try:
        context.client.nudge(known.spec)
    except NvrxError as error:
        log.warning("nudge failed task=%s error=%s", known.spec, error)
    judgement = Judgement(life=Life.UNKNOWN, evidence="there was no time to look")
    row: QueuedTask | Unobserved | None = known
    looks = 0
    seems_well = isinstance(node, Node) and not is_unreachable(node) and _runs(known)
    pause = FIRST_LOOK_SECONDS if seems_well else POLL_SECONDS
    while context.clock.monotonic() < deadline:
        _wait_while_still(context, about, eye, pause)
        pause = POLL_SECONDS
        looks += 1
        node = read_batch_node(context.client, row)
        judgement = eye.judge(row, node)
        # The task itself too: one whose shell was killed is completing at first, and terminal a few seconds later.
        # And a death is only believed with a row that was read after it.
        if looks % QUEUE_EVERY == 0 or not _runs(row) or judgement.life is Life.DEAD:
            row = _row(context, about)
            judgement = eye.judge(row, node)
        if judgement.life is Life.DEAD or eye.moved:
            break
    return judgement


def _wait_while_still(context: TaskContext, about: int, eye: LeaseEye, seconds: float) -> None:
    """Wait, with an eye on the lease, which costs Slurm nothing: one that moves ends it."""
    never = threading.Event()
    deadline = context.clock.monotonic() + seconds
    while not eye.moved and (left := deadline - context.clock.monotonic()) > 0:
        context.clock.wait(never, min(left, POLL_SECONDS))
        context.board.note_inquiry(about, ASKING, "waiting for Slurm to look at the node")
        eye.look()


def _runs(row: QueuedTask | Unobserved | None) -> bool:
    return isinstance(row, QueuedTask) and row.state is JobState.RUNNING


class Inquirer:
    """Runs at most one inquiry at a time in the background: the loop that steers the ranks never waits for Slurm."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._work: Background[Judgement] = Background(context.spawn, "inquiry")
        self._about = 0

    @property
    def busy(self) -> bool:
        """An inquiry is under way or its answer has not been taken yet."""
        return self._work.busy

    def ask(self, about: int) -> None:
        """Start an inquiry."""
        self._about = about
        self._work.start(lambda: inquire(self._context, about))

    def take(self) -> tuple[int, Judgement] | None:
        """The answer once there is one; it is handed out once."""
        finished = self._work.take()
        if finished is None:
            return None
        answer = finished.value
        if isinstance(answer, Unobserved):
            answer = Judgement(life=Life.UNKNOWN, evidence=answer.reason)
        return self._about, answer


@dataclass(slots=True)
class _Raised:
    at: float
    reason: str


class InquiryWatch:
    """For how long no other task has been at Slurm: since `inquiry.json` last changed, on our own clock."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._seen: tuple[int, str, str] | None = None
        self._changed_at: float | None = None

    def observe(self, inquiry: Inquiry | None) -> None:
        """Take in the newest inquiry. Seen all the time, an old file is known to be old when the question comes."""
        if inquiry is None or inquiry.array_task_id == self._context.identity.array_task_id:
            return
        seen = (inquiry.array_task_id, inquiry.evidence, inquiry.asked_at)
        if seen != self._seen:
            self._seen = seen
            self._changed_at = self._context.clock.monotonic()

    def quiet_seconds(self) -> float | None:
        """Since when nobody else asks; None when nobody ever did."""
        return None if self._changed_at is None else self._context.clock.monotonic() - self._changed_at


class HostQuestion:
    """Whether task 0 is dead, as the peers ask it: in turn, not while somebody else is asking, with back-off.

    The lowest live index asks first, each next one a turn later. After somebody else asked, the same order counts from
    the end of the quiet time: otherwise everybody whose turn has passed would ask at the same moment.
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
        self._others.observe(snapshot.inquiry)
        taken = self._inquirer.take()
        if taken is not None:
            self._schedule_next(taken[1])
            return taken[1]
        now = self._context.clock.monotonic()
        if self._raised is None or self._inquirer.busy or now < self._not_before:
            return None
        turn, quiet = self._turn(snapshot), self._others.quiet_seconds()
        if now - self._raised.at < turn:
            return None
        if quiet is not None and quiet < self._context.thresholds.inquiry_quiet + turn:
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
