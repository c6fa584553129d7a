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
from nvrx_chain.launcher.environment import World, round_environment
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
from nvrx_chain.launcher.pool import AllStopped, Happened, Pool, RankEnded, Unkillable
from nvrx_chain.launcher.talk import Excluded, Refused

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
    explain: Callable[[int, int], str]
    """What rank (round, local rank) wrote about its own end."""
    mark: Callable[[int, str], None]
    """Note that a step of the recovery of this round is done."""


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
        pool: Pool,
        world: World,
        parts: Parts,
        connect: Callable[[], None],
        *,
        refill_seconds: float,
    ) -> None:
        self._job = job
        self._node = node
        self._pool = pool
        self._world = world
        self._parts = parts
        self._connect = connect
        self._refill_seconds = refill_seconds
        self._signals = Signals()
        self._refill_at: float | None = None
        self._reclaiming = False
        self._deferred: StartWorkers | None = None
        self._rank_store: HasPort | None = None
        self._left: Leave | None = None
        self._running: StartWorkers | None = None

    @property
    def running(self) -> StartWorkers | None:
        """The seat in which ranks of this node were started last."""
        return self._running

    def run(self) -> Leave:
        """Take part in the job to its end. For the main thread."""
        self._signals.install()
        self._in_thread("connect", self._try_connect)
        self._pool.park_missing()
        while self._left is None:
            self._wait()
            self._turn()
        self._pool.close()
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
        for descriptor in (self._signals.fileno(), self._job.news.fileno(), *self._pool.watched()):
            watched.register(descriptor, select.POLLIN)
        due = [at for at in (self._pool.deadline(), self._refill_at) if at is not None]
        # Without a time to look at, nothing happens until a descriptor says so.
        watched.poll(max(0.0, min(due) - time.monotonic()) * 1000 if due else None)

    def _turn(self) -> None:
        for number in self._signals.take():
            if number in ENDING:
                log.warning("told to end signal=%s", number.name)
                self._do(self._node.told_to_end(f"the launcher was sent {number.name}"))
            else:
                self._pool.signal_ranks(number)
        self._hear(self._job.take())
        # Failures first: the last rank that ends with 0 beside one that failed does not end the round well.
        for happened in sorted(self._pool.look(), key=_is_success):
            self._do(self._take(happened))
        if self._refill_at is not None and time.monotonic() >= self._refill_at:
            self._refill_at = None
            self._pool.park_missing()

    def _hear(self, messages: list[object]) -> None:
        if any(isinstance(message, Opened | Filled | Hosted | Ended) for message in messages):
            self._do(self._node.heard(self._job.state))
        for message in messages:
            self._do(self._answer(message))

    def _answer(self, message: object) -> Actions:
        if isinstance(message, HostSilent):
            return self._node.lost_host(str(message))
        if isinstance(message, NotConnected):
            log.error("%s", message.error)
            return self._node.refused(str(message.error))
        if isinstance(message, Refused):
            return self._node.refused(message.why)
        if isinstance(message, Excluded):
            return self._node.excluded(message.why)
        if isinstance(message, Checked):
            return self._node.checked(message.round, message.sick)
        if isinstance(message, Reclaimed):
            self._reclaiming = False
            if self._deferred is not None:
                self._start(self._deferred)
        return ()

    def _take(self, happened: Happened) -> Actions:
        if isinstance(happened, AllStopped):
            log.info("workers are gone seconds=%.3f killed=%s", happened.seconds, happened.killed)
            self._parts.mark(self._node.round, "workers_stopped")
            self._begin_reclaim()
            return self._node.stopped()
        if isinstance(happened, Unkillable):
            return self._node.unkillable(f"processes do not die of SIGKILL: {', '.join(map(str, happened.pids))}")
        if happened.code != 0:
            return self._node.failed(self._cause_of(happened))
        return self._node.all_done() if not self._pool.ranks else ()

    def _cause_of(self, ended: RankEnded) -> Cause:
        group_rank = self._running.group_rank if self._running is not None else 0
        rank = group_rank * self._world.procs_per_node + ended.local_rank
        log.warning("a rank failed rank=%s pid=%s code=%s", rank, ended.pid, ended.code)
        self._parts.mark(self._node.round, "failure_detected")
        return Cause(
            kind="worker",
            agent_id=self._job.member.agent_id,
            node=self._job.member.address,
            rank=rank,
            exit_code=ended.code,
            detail=self._parts.explain(self._node.round, ended.local_rank),
        )

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
            self._pool.park_missing()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, CheckHealth):
            number = action.round
            self._in_thread("health", lambda: Checked(round=number, sick=self._parts.check_health(number)))
        elif isinstance(action, Join):
            self._job.join(action.round)
            self._parts.mark(action.round, "joined")
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
        changed = [
            round_environment(self._world, action.hosted, action.group_rank, local_rank)
            for local_rank in range(self._pool.size)
        ]
        self._running = action
        try:
            self._pool.start(changed)
        except NvrxError as error:
            # Some may run already: they end with the round that this opens.
            log.error("%s", error)
            cause = Cause(kind="worker", agent_id=self._job.member.agent_id, detail=str(error))
            self._do(self._node.failed(cause))
            return
        self._refill_at = time.monotonic() + self._refill_seconds
        self._parts.mark(action.round, "workers_started")
        log.info("workers started round=%s group_rank=%s", action.round, action.group_rank)

    def _stop(self, action: StopWorkers) -> None:
        self._deferred = None
        self._refill_at = None
        if action.tell_host:
            self._job.announce_stop(action.grace_seconds + STOP_SLACK_SECONDS)
        self._pool.stop(action.grace_seconds)
        for happened in self._pool.look():
            self._do(self._take(happened))


def _is_success(happened: Happened) -> bool:
    return isinstance(happened, RankEnded) and happened.code == 0
