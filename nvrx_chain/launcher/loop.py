"""The launcher of one node at work: hears the job, watches its workers, and carries out what `node.py` decides.

One thread and one poll over descriptors; what could wait for the network, a disk or a GPU does so in another thread and
posts what came of it. Touches: processes, signals, the connections of the job.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.capture import Captured, CaptureSettings, start_capture
from nvrx_chain.launcher.events import Cause, Ended, Filled, Hosted, Opened
from nvrx_chain.launcher.guest import HostSilent
from nvrx_chain.launcher.job import Job
from nvrx_chain.launcher.node import (
    Action,
    Actions,
    CheckHealth,
    EndJob,
    ExcludeTask,
    HostWorkers,
    Join,
    Leave,
    Node,
    OpenRound,
    Phase,
    ReportDone,
    StartWorkers,
    StopWorkers,
)
from nvrx_chain.launcher.node_signals import ENDING, Signals
from nvrx_chain.launcher.pool import AllStopped, Happened, Unkillable
from nvrx_chain.launcher.rank_words import COMMITTED
from nvrx_chain.launcher.ranks import Ranks
from nvrx_chain.launcher.reasons import Reason
from nvrx_chain.launcher.signs import Action as Request
from nvrx_chain.launcher.signs import Asked, Hung, Marked
from nvrx_chain.launcher.talk import Excluded, Refused, Welcome
from nvrx_chain.launcher.timeline import Timeline

log = logging.getLogger(__name__)

STOP_SLACK_SECONDS = 1.0
"""Between the end of the grace and the last worker gone; the others wait so much longer."""


class HasPort(Protocol):
    """A store in which ranks meet."""

    @property
    def port(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the loop needs of the rest of the launcher. The first two are called in a thread of their own."""

    check_health: Callable[[int], str | None]
    """What is wrong with the node in this round; None when nothing is."""
    reclaim: Callable[[], None] | None
    """Wait until the memory of ended workers is free; None where there is none to wait for."""
    start_rank_store: Callable[[], HasPort]
    timeline: Timeline
    capture: CaptureSettings | None
    """How the stacks of ranks are captured when one hangs in a section; None for not at all."""
    welcomed: Callable[[Welcome], None]
    """This launcher was taken in."""
    tend: Callable[[], float | None]
    """What else the main thread has to see to at every turn; when it wants to be called again (monotonic clock)."""
    watched: Callable[[], list[int]]
    """Descriptors whose readability means that `tend` has something to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """This launcher has found its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotConnected:
    """It has not."""

    error: NvrxError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The health of this node is known."""

    round: int
    sick: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """What the ended workers held is free, or was waited for in vain."""


class NodeLoop:
    """See the module. `run` returns why this launcher left."""

    def __init__(
        self,
        job: Job,
        node: Node,
        ranks: Ranks,
        parts: Parts,
        connect: Callable[[], None],
        *,
        refill_seconds: float,
    ) -> None:
        self._job = job
        self._node = node
        self._ranks = ranks
        self._parts = parts
        self._connect = connect
        self._refill_seconds = refill_seconds
        self._signals = Signals()
        self._refill_at: float | None = None
        self._tend_at: float | None = None
        self._reclaiming = False
        self._deferred: StartWorkers | None = None
        self._capturing: Hung | None = None
        self._rank_store: HasPort | None = None
        self._left: Leave | None = None
        self._recovering = 0
        """The round that the marks before its ranks start belong to."""

    @property
    def running(self) -> StartWorkers | None:
        """The seat in which ranks of this node were started last."""
        return self._ranks.seat

    def run(self) -> Leave:
        """Take part in the job to its end. For the main thread."""
        self._signals.install()
        self._in_thread("connect", self._try_connect)
        self._ranks.pool.park_missing()
        while self._left is None:
            self._wait()
            self._turn()
        self._ranks.close()
        return self._left

    def _try_connect(self) -> object:
        try:
            self._connect()
        except NvrxError as error:
            return NotConnected(error=error)
        return Connected()

    def _in_thread(self, name: str, work: Callable[[], object]) -> None:
        def run() -> None:
            self._job.news.post(work())

        threading.Thread(target=run, name=name, daemon=True).start()

    def _wait(self) -> None:
        watched = select.poll()
        own = (self._signals.fileno(), self._job.news.fileno())
        for descriptor in (*own, *self._ranks.pool.watched(), *self._parts.watched()):
            watched.register(descriptor, select.POLLIN)
        due = [at for at in (self._ranks.pool.deadline(), self._refill_at, self._tend_at) if at is not None]
        # Without a time to look at, nothing happens until a descriptor says so.
        watched.poll(max(0.0, min(due) - time.monotonic()) * 1000 if due else None)

    def _turn(self) -> None:
        for number in self._signals.take():
            if number in ENDING:
                log.warning("told to end signal=%s", number.name)
                self._do(self._node.told_to_end(f"the launcher was sent {number.name}"))
            else:
                self._ranks.pool.signal_ranks(number)
        self._hear(self._job.take())
        for happened in self._ranks.look():
            self._do(self._take(happened))
        if self._refill_at is not None and time.monotonic() >= self._refill_at:
            self._refill()
        self._tend_at = self._parts.tend()

    def _refill(self) -> None:
        self._refill_at = None
        self._ranks.pool.park_missing()

    def _hear(self, messages: list[object]) -> None:
        for message in messages:
            if isinstance(message, Opened):
                self._note_failure(message.round)
        if any(isinstance(message, Opened | Filled | Hosted | Ended) for message in messages):
            self._do(self._node.heard(self._job.state))
        for message in messages:
            self._do(self._answer(message))

    def _answer(self, message: object) -> Actions:
        if isinstance(message, Filled):
            self._parts.timeline.mark(message.round, "round_filled")
        elif isinstance(message, Hung | Captured | Asked | Marked):
            return self._answer_monitor(message)
        elif isinstance(message, Checked):
            return self._node.checked(message.round, message.sick)
        elif isinstance(message, Reclaimed):
            self._reclaiming = False
            if self._deferred is not None:
                self._start(self._deferred)
        elif isinstance(message, Welcome):
            self._parts.welcomed(message)
        elif isinstance(message, HostSilent):
            return self._node.lost_host(str(message))
        elif isinstance(message, NotConnected):
            log.error("%s", message.error)
            return self._node.refused(str(message.error))
        elif isinstance(message, Refused):
            return self._node.refused(message.why)
        elif isinstance(message, Excluded):
            return self._node.excluded(message.why)
        return ()

    def _answer_monitor(self, message: Hung | Captured | Asked | Marked) -> Actions:
        """What the monitor of the ranks says; what is of an older cycle is over."""
        if message.cycle != self._node.round:
            return ()
        if isinstance(message, Marked):
            self._take_mark(message)
            return ()
        if isinstance(message, Asked):
            log.warning("rank %s asks: %s: %s", message.local_rank, message.action.value, message.why)
            if message.action is Request.EXCLUDE_THIS_NODE:
                return self._node.exclude(f"rank {self._ranks.number(message.local_rank)} asked for it: {message.why}")
            return (EndJob(reason=Reason.WORKLOAD_STOP, detail=message.why),)
        if isinstance(message, Hung):
            return self._take_hang(message)
        for stacks in message.stacks:
            where = stacks.path if stacks.path is not None else f"none: {stacks.why_not}"
            log.warning("stacks of rank %s: %s", stacks.rank, where)
        hung, self._capturing = self._capturing, None
        return () if hung is None else self._fail_by_hang(hung)

    def _take_mark(self, marked: Marked) -> None:
        first_step = marked.name == COMMITTED
        rank = self._ranks.number(marked.local_rank)
        name = "first_step" if first_step else marked.name
        self._parts.timeline.mark(marked.cycle, name, marked.at, rank=rank, iteration=marked.iteration)
        if first_step and self._refill_at is not None:
            # The start is over: what is parked now disturbs no rank that imports.
            self._refill()

    def _take_hang(self, hung: Hung) -> Actions:
        log.error("rank %s hangs: %s", self._ranks.number(hung.local_rank), hung.detail)
        self._note_failure(hung.cycle + 1)
        if self._capturing is not None:
            return ()
        capture = self._parts.capture
        if capture is None or capture.seconds <= 0 or not hung.wants_capture:
            return self._fail_by_hang(hung)
        self._capturing = hung
        start_capture(capture, hung.cycle, self._ranks.targets(), self._ranks.dump_files(), self._job.news.post)
        return ()

    def _fail_by_hang(self, hung: Hung) -> Actions:
        member = self._job.member
        return self._node.failed(self._ranks.cause_of_hang(hung, member.agent_id, member.address))

    def _take(self, happened: Happened) -> Actions:
        if isinstance(happened, AllStopped):
            log.info("workers are gone seconds=%.3f killed=%s", happened.seconds, happened.killed)
            if not self._node.is_leaving:
                self._parts.timeline.mark(self._recovering, "workers_stopped")
            self._begin_reclaim()
            return self._node.stopped()
        if isinstance(happened, Unkillable):
            return self._node.unkillable(f"processes do not die of SIGKILL: {', '.join(map(str, happened.pids))}")
        if happened.code == 0:
            return self._node.all_done() if not self._ranks.pool.ranks else ()
        member = self._job.member
        cause = self._ranks.cause_of_end(happened, member.agent_id, member.address)
        log.warning("a rank failed rank=%s pid=%s code=%s %s", cause.rank, happened.pid, happened.code, cause.detail)
        self._note_failure(self._node.round + 1)
        return self._node.failed(cause)

    def _note_failure(self, next_round: int) -> None:
        """This node knows of a failure, by itself or from another, that leads to this round."""
        if next_round > self._recovering:
            self._recovering = next_round
            self._parts.timeline.mark(next_round, "failure_detected")

    def _begin_reclaim(self) -> None:
        reclaim = self._parts.reclaim
        if reclaim is None or self._reclaiming:
            return
        self._reclaiming = True

        def work() -> Reclaimed:
            reclaim()
            return Reclaimed()

        self._in_thread("reclaim", work)

    def _do(self, actions: Actions) -> None:
        for action in actions:
            self._carry_out(action)
        if self._node.phase is Phase.STANDBY:
            self._ranks.pool.park_missing()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, CheckHealth):
            number = action.round
            self._in_thread("health", lambda: Checked(round=number, sick=self._parts.check_health(number)))
        elif isinstance(action, Join):
            self._job.join(action.round)
            self._parts.timeline.mark(action.round, "joined")
        elif isinstance(action, HostWorkers):
            self._host_ranks(action)
        elif isinstance(action, StartWorkers):
            self._start(action)
        elif isinstance(action, StopWorkers):
            self._stop(action)
        elif isinstance(action, OpenRound):
            self._job.open(action.cause)
        elif isinstance(action, ReportDone):
            self._job.report_done(self._node.round)
        elif isinstance(action, ExcludeTask):
            log.error("this node takes part no more reason=%s", action.why)
            self._job.exclude_own_task(action.why)
        elif isinstance(action, EndJob):
            self._job.end(action.reason, action.detail)
        elif isinstance(action, Leave):
            self._left = action

    def _host_ranks(self, action: HostWorkers) -> None:
        try:
            self._rank_store = self._parts.start_rank_store()
        except NvrxError as error:
            self._do(self._node.exclude(str(error)))
            return
        self._job.host_ranks(action.round, self._rank_store.port)

    def _start(self, action: StartWorkers) -> None:
        self._deferred = action if self._reclaiming else None
        if self._reclaiming:
            return
        try:
            self._ranks.start(action)
        except NvrxError as error:
            # Some may run already: they end with the round that this opens.
            log.error("%s", error)
            cause = Cause(kind="worker", agent_id=self._job.member.agent_id, detail=str(error))
            self._do(self._node.failed(cause))
            return
        self._refill_at = time.monotonic() + self._refill_seconds
        self._parts.timeline.mark(action.round, "workers_started")
        log.info("workers started round=%s group_rank=%s", action.round, action.group_rank)

    def _stop(self, action: StopWorkers) -> None:
        self._deferred = self._refill_at = self._capturing = None
        if action.tell_host:
            self._job.announce_stop(action.grace_seconds + STOP_SLACK_SECONDS)
        self._ranks.stop(action.grace_seconds)
        for happened in self._ranks.look():
            self._do(self._take(happened))
