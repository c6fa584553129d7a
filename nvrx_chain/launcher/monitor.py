"""The monitor of a node: hears what its ranks say, and notices when one has been silent for too long.

A thread of its own, which sleeps until a rank speaks or the next deadline passes; it says what it found through `post`.
All methods may be called from any thread and do not wait. Touches: unix sockets, one eventfd, a thread.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nvrx_chain.launcher.deadlines import OpenSection, RankDeadlines, Silence
from nvrx_chain.launcher.durations import Durations, calculated
from nvrx_chain.launcher.hang_limits import HangLimits
from nvrx_chain.launcher.rank_sockets import CLOSED, MAX_CONNECTIONS, RankConnection, RankSockets, accept
from nvrx_chain.launcher.rank_words import (
    COMMITTED,
    HEARD,
    MAX_WHY,
    SOCKET_VARIABLE,
    Ask,
    Calculate,
    Committed,
    Dump,
    End,
    EndAll,
    Heartbeat,
    Hello,
    Mark,
    Now,
    Start,
    Use,
    Word,
    render_refused,
    render_timeouts,
)

log = logging.getLogger(__name__)

OVERSLEPT_SECONDS = 1.0
"""A monitor that wakes so late was itself frozen, and its ranks were not heard meanwhile."""
CATCH_UP_SECONDS = 0.5
"""How long it then listens before it judges anybody."""


class Action(enum.Enum):
    """What a rank may ask of the launcher."""

    STOP_RESTARTING = "stop_restarting"
    EXCLUDE_THIS_NODE = "exclude_this_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """A rank has been silent for longer than a rule allows. Said once for each process."""

    cycle: int
    local_rank: int
    what: Silence
    limit_seconds: float
    silent_seconds: float
    section: str = ""
    open_sections: tuple[OpenSection, ...] = ()

    @property
    def wants_capture(self) -> bool:
        """Whether the stacks of the ranks of this node are worth having."""
        return self.what is Silence.SECTION

    @property
    def detail(self) -> str:
        """For people."""
        what = f"section {self.section}" if self.section else self.what.value.replace("_", " ")
        text = f"{what}: silent for {self.silent_seconds:.2f} s, limit {self.limit_seconds:g} s"
        inside = ", ".join(f"{one.name} {one.seconds:.2f} s" for one in self.open_sections[:10])
        return f"{text}; in {inside}" if inside else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A rank asked for something, and was told that it was heard."""

    cycle: int
    local_rank: int
    action: Action
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A rank reached a point of the recovery timeline. Of `committed` the first one of each process is told."""

    cycle: int
    local_rank: int
    name: str
    iteration: int | None
    at: float
    """Seconds since the epoch."""


Sign = Hung | Asked | Marked


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFile:
    """Where a process writes its stacks when it gets the dump signal. The descriptors are the receiver's to close."""

    pid: int
    process: int
    """A pidfd."""
    file: int


@dataclass(slots=True, eq=False)
class _Rank:
    """What is known of one local rank. `deadlines` is of the process of this cycle, None before it started."""

    local_rank: int
    limits: HangLimits
    seen: Durations = field(default_factory=Durations)
    listener: socket.socket | None = None
    connections: list[RankConnection] = field(default_factory=list)
    speaker: RankConnection | None = None
    deadlines: RankDeadlines | None = None
    over: bool = False
    """It has ended, is being stopped, or was said to hang: nothing of it expires any more."""
    dump: DumpFile | None = None
    iteration: int | None = None

    def rules(self, now: float) -> RankDeadlines:
        """Of the process of this cycle, which may speak before the launcher has said that it started."""
        if self.deadlines is None:
            self.deadlines = RankDeadlines(self.limits, now, self.seen)
        return self.deadlines


class Monitor:
    """Serves the local ranks of one node for as long as the launcher lives."""

    def __init__(
        self, limits: HangLimits, local_ranks: int, post: Callable[[Sign], None], *, directory: Path | None = None
    ) -> None:
        self._sockets = RankSockets(directory)
        self._post = post
        self._factor = limits.safety_factor
        self._ranks = [_Rank(number, limits) for number in range(local_ranks)]
        self._cycle = -1
        # The receiver of a message may call back.
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_at: float | None = None
        self._listen_until = 0.0
        self._questions: list[tuple[_Rank, RankConnection, Word]] = []
        self._closed = False
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="rank-monitor", daemon=True)
        self._thread.start()

    @property
    def directory(self) -> Path:
        """Of the sockets; mode 700."""
        return self._sockets.directory

    def new_cycle(self, cycle: int) -> tuple[dict[str, str], ...]:
        """Forget the processes of the last cycle; what the environment of each local rank needs. Raises NvrxError."""
        with self._lock:
            for rank in self._ranks:
                self._forget(rank)
            self._cycle = cycle
            for rank in self._ranks:
                rank.listener = self._sockets.listen(rank.local_rank, cycle)
                self._selector.register(rank.listener, selectors.EVENT_READ, rank)
            self._ring()
            return tuple({SOCKET_VARIABLE: self._sockets.path(rank.local_rank, cycle)} for rank in self._ranks)

    def started(self, local_rank: int, at: float) -> None:
        """The process of this rank began to run (monotonic time): its rules apply from then on."""
        with self._lock:
            rank = self._ranks[local_rank]
            rank.rules(at).started_at = at
            self._plan(rank, time.monotonic())
            self._ring()

    def stopped(self, local_rank: int) -> None:
        """The process of this rank has ended: nothing of it expires any more."""
        with self._lock:
            self._ranks[local_rank].over = True

    def stopping(self) -> None:
        """All ranks are being stopped: nothing expires from now on, before the next cycle. Requests are still heard."""
        with self._lock:
            for rank in self._ranks:
                rank.over = True

    def iterations(self) -> tuple[int | None, ...]:
        """The last committed step of each local rank in this cycle."""
        with self._lock:
            return tuple(rank.iteration for rank in self._ranks)

    def dump_files(self) -> dict[int, DumpFile]:
        """By local rank: those whose stacks can be had without a debugger. The receiver closes the descriptors."""
        with self._lock:
            found = {}
            for rank in self._ranks:
                if rank.dump is not None:
                    pid, process, file = rank.dump.pid, os.dup(rank.dump.process), os.dup(rank.dump.file)
                    found[rank.local_rank] = DumpFile(pid=pid, process=process, file=file)
            return found

    def close(self) -> None:
        """End the thread and remove the sockets."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ring()
        self._thread.join(5.0)
        with self._lock:
            for rank in self._ranks:
                self._forget(rank)
            self._selector.close()
            os.close(self._wake)
        self._sockets.close()

    def _ring(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _forget(self, rank: _Rank) -> None:
        rank.deadlines = None
        rank.over = False
        rank.iteration = None
        for connection in list(rank.connections):
            self._drop(rank, connection)
        if rank.dump is not None:
            os.close(rank.dump.process)
            os.close(rank.dump.file)
            rank.dump = None
        if rank.listener is not None:
            self._selector.unregister(rank.listener)
            rank.listener.close()
            rank.listener = None
        if self._cycle >= 0:
            self._sockets.forget(rank.local_rank, self._cycle)

    def _drop(self, rank: _Rank, connection: RankConnection) -> None:
        if connection not in rank.connections:
            return
        rank.connections.remove(connection)
        if rank.speaker is connection:
            # Its rules go on: a rank can hang after its last word, too.
            rank.speaker = None
        self._selector.unregister(connection.socket)
        connection.close()

    def _run(self) -> None:
        while True:
            # No deadline while there is no rule: a call or a word wakes it.
            ready = self._selector.select(self._patience())
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                for key, _ in ready:
                    self._serve(key.fileobj, key.data, now)
                self._answer_all(now)
                # Only now: what the ranks have said meanwhile is part of the judgement.
                self._judge(now)

    def _patience(self) -> float | None:
        with self._lock:
            return None if self._wake_at is None else max(0.0, self._wake_at - time.monotonic())

    def _serve(self, source: object, owner: _Rank | None, now: float) -> None:
        if owner is None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        elif source is owner.listener:
            self._accept(owner)
        else:
            # A call of another thread may have ended it since it was seen to be ready.
            for connection in [one for one in owner.connections if one.socket is source]:
                self._read(owner, connection, now)

    def _accept(self, rank: _Rank) -> None:
        assert rank.listener is not None
        try:
            connection = accept(rank.listener, rank.local_rank)
        except OSError as error:
            # Out of descriptors: the socket would stay ready, and this thread would never rest again.
            log.error("a rank cannot connect in this cycle any more local_rank=%s error=%s", rank.local_rank, error)
            self._selector.unregister(rank.listener)
            rank.listener.close()
            rank.listener = None
            return
        if connection is None:
            return
        if len(rank.connections) >= MAX_CONNECTIONS:
            log.warning("a rank has too many connections local_rank=%s limit=%s", rank.local_rank, MAX_CONNECTIONS)
            connection.close()
            return
        rank.connections.append(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, rank)

    def _read(self, rank: _Rank, connection: RankConnection, now: float) -> None:
        words, ended = connection.read()
        for word in words:
            if not self._hear(rank, connection, word, now):
                ended = ""
                break
        self._plan(rank, now)
        if ended is not None:
            if ended and ended != CLOSED:
                log.warning("the connection of a rank ends local_rank=%s reason=%s", rank.local_rank, ended)
            self._drop(rank, connection)

    def _hear(self, rank: _Rank, connection: RankConnection, word: Word, now: float) -> bool:
        """Take in one word; False when its connection is to be ended."""
        if isinstance(word, Hello):
            return self._greet(rank, connection, now)
        if isinstance(word, Dump):
            self._take_dump(rank, connection)
        elif isinstance(word, (Ask, Calculate, Use)):
            self._questions.append((rank, connection, word))
        elif rank.speaker is connection:
            self._feed(rank, rank.rules(now), word, now)
        else:
            return False
        return True

    def _greet(self, rank: _Rank, connection: RankConnection, now: float) -> bool:
        other = rank.speaker
        if other is not None and other is not connection:
            # It may have ended a moment ago: a program that starts itself anew.
            self._read(rank, other, now)
        if rank.speaker is not None and rank.speaker is not connection:
            why = f"process {rank.speaker.pid} speaks for this rank already"
            log.warning("%s local_rank=%s pid=%s", why, rank.local_rank, connection.pid)
            connection.answer(render_refused(why))
            return False
        rank.speaker = connection
        rank.rules(now).spoke(now)
        return True

    def _feed(self, rank: _Rank, rules: RankDeadlines, word: Word, now: float) -> None:
        if isinstance(word, Heartbeat):
            rules.heartbeat(now)
        elif isinstance(word, Start):
            rules.start_section(word.name, now)
        elif isinstance(word, End):
            rules.end_section(word.name, now)
        elif isinstance(word, EndAll):
            rules.end_all_sections(now)
        elif isinstance(word, Now):
            rules.now_in(word.open, now)
        elif isinstance(word, Mark):
            rules.spoke(now)
            self._mark(rank, word.name, None)
        elif isinstance(word, Committed):
            rules.heartbeat(now)
            first, rank.iteration = rank.iteration is None, word.iteration
            if first:
                self._mark(rank, COMMITTED, word.iteration)

    def _mark(self, rank: _Rank, name: str, iteration: int | None) -> None:
        self._post(
            Marked(cycle=self._cycle, local_rank=rank.local_rank, name=name, iteration=iteration, at=time.time())
        )

    def _take_dump(self, rank: _Rank, connection: RankConnection) -> None:
        file = connection.take_handed()
        if file is None:
            return
        speaker = rank.speaker
        if rank.dump is not None and speaker is not None and rank.dump.pid == speaker.pid != connection.pid:
            # A child that took itself for the rank: the stacks of the rank are worth more.
            os.close(file)
            return
        try:
            process = os.pidfd_open(connection.pid)
        except OSError as error:
            # Its pid cannot be seen from here (0), or it has gone already.
            log.info("stacks of a rank cannot be asked for local_rank=%s error=%s", rank.local_rank, error)
            os.close(file)
            return
        if rank.dump is not None:
            os.close(rank.dump.process)
            os.close(rank.dump.file)
        rank.dump = DumpFile(pid=connection.pid, process=process, file=file)

    def _answer_all(self, now: float) -> None:
        """Answer what was asked, after everything else that was said before."""
        questions, self._questions = self._questions, []
        for rank, connection, word in questions:
            answer = self._answer(rank, word, now)
            connection.answer(answer)

    def _answer(self, rank: _Rank, word: Word, now: float) -> bytes:
        if isinstance(word, Ask):
            self._post(
                Asked(cycle=self._cycle, local_rank=rank.local_rank, action=Action(word.action), why=word.why[:MAX_WHY])
            )
        elif isinstance(word, Calculate):
            return render_timeouts(calculated((one.seen for one in self._ranks), self._factor))
        elif isinstance(word, Use):
            rank.limits = rank.limits.with_timeouts(word.timeouts)
            if rank.deadlines is not None:
                rank.deadlines.use(rank.limits, now)
                self._plan(rank, now)
        return HEARD

    def _plan(self, rank: _Rank, now: float) -> None:
        """Wake in time for this rank. That it needs no wake any more is noticed when that moment has come."""
        deadline = None if rank.over or rank.deadlines is None else rank.deadlines.next_deadline()
        if deadline is not None:
            at = max(deadline, now, self._listen_until)
            self._wake_at = at if self._wake_at is None else min(self._wake_at, at)

    def _judge(self, now: float) -> None:
        if self._wake_at is None or now < self._wake_at:
            return
        late, self._wake_at = now - self._wake_at, None
        if late > OVERSLEPT_SECONDS:
            log.warning("the monitor of the ranks was not run for %.1f s; it listens before it judges", late)
            self._listen_until = now + CATCH_UP_SECONDS
        for rank in self._ranks:
            if now >= self._listen_until:
                self._judge_rank(rank, now)
            self._plan(rank, now)

    def _judge_rank(self, rank: _Rank, now: float) -> None:
        expired = None if rank.over or rank.deadlines is None else rank.deadlines.expired(now)
        if expired is None:
            return
        rank.over = True
        hung = Hung(
            cycle=self._cycle,
            local_rank=rank.local_rank,
            what=expired.what,
            limit_seconds=expired.limit_seconds,
            silent_seconds=expired.seconds,
            section=expired.section,
            open_sections=expired.open_sections,
        )
        log.warning("a rank hangs local_rank=%s %s", rank.local_rank, hung.detail)
        self._post(hung)
