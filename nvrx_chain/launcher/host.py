"""The coordinator at work on the rendezvous host: takes launchers in, follows the store, writes what comes next.

All of it happens in one thread; a second one follows the store and hands its events over. Touches: a TCP port, two
connections to the control store, threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from dataclasses import dataclass, field

import msgspec

from nvrx_chain.errors import RecordError
from nvrx_chain.launcher.coordinator import Coordinator
from nvrx_chain.launcher.events import Ended, Event, Filled, JobState, Opened
from nvrx_chain.launcher.members import Standing
from nvrx_chain.launcher.reasons import Reason
from nvrx_chain.launcher.sealed import GREETING_SECONDS, SealedStream
from nvrx_chain.launcher.store import ControlStore, HostLost
from nvrx_chain.launcher.talk import (
    Beat,
    Bye,
    Done,
    Exclude,
    Excluded,
    GuestWord,
    Hello,
    Join,
    Refused,
    Stop,
    Stopping,
    Welcome,
    parse_guest_word,
)
from nvrx_chain.launcher.verdict import Attendance, Exclusion, Judge, Keeper
from nvrx_chain.launcher.wire import BadLine

log = logging.getLogger(__name__)

MAX_STRANGERS = 256
"""Connections that have not shown the secret yet."""
BEATS_PER_LIVENESS = 5
KEPT_ROUNDS = 3
"""Events of so many rounds are kept for launchers that read late."""
START_SECONDS = 10.0


@dataclass(slots=True)
class _Guest:
    agent_id: str
    group: str
    stream: SealedStream
    read: int = 0


@dataclass(slots=True)
class _Log:
    """Which number of the store's log begins which round, so that old rounds can be forgotten."""

    next: int = 0
    kept_from: int = 0
    begins: list[int] = field(default_factory=list)


class CoordinatorHost:
    """Serves one job until its process ends. `port` is known after `start`."""

    def __init__(
        self,
        coordinator: Coordinator,
        store: ControlStore,
        secret: str,
        *,
        world: str,
        liveness_seconds: float,
        judge: Judge,
        keeper: Keeper | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._follow_store = store.another()
        self._secret = secret
        self._world = world
        self._liveness = liveness_seconds
        self._judge = judge
        self._keeper = keeper
        self._loop = asyncio.new_event_loop()
        self._guests: dict[str, _Guest] = {}
        self._strangers = 0
        self._log = _Log()
        self._written = -1
        self._judging = False
        self._judged_round = -1
        self._is_noting = False
        self._wanted_end: Ended | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._all_gone = threading.Event()
        self.port = 0

    def start(self) -> None:
        """Listen on a free port. Raises OSError."""
        listener = socket.create_server(("", 0), backlog=1024)
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._run, args=(listener,), name="coordinator", daemon=True).start()
        threading.Thread(target=self._follow, name="follow-store", daemon=True).start()

    def await_all_gone(self, seconds: float) -> bool:
        """Wait until the job has ended and every launcher has left; False when some are still there after that time."""
        return self._all_gone.wait(seconds)

    def exclude(self, group: str, why: str) -> None:
        """As `Coordinator.exclude`, from another thread."""
        self._loop.call_soon_threadsafe(self._take_exclusion, group, why)

    def end(self, reason: Reason, detail: str) -> None:
        """End the job for everybody, from another thread. Whoever came first counts."""
        self._loop.call_soon_threadsafe(self._want_end, reason, detail, None)

    def _want_end(self, reason: Reason, detail: str, by: str | None) -> None:
        if self._wanted_end is None:
            self._wanted_end = self._coordinator.end(reason, detail, time.time(), by=by)
        self._drive()

    def _take_exclusion(self, group: str, why: str) -> None:
        self._coordinator.exclude(group, why)
        self._tell_excluded(group, why)
        self._drive()

    def _tell_excluded(self, group: str, why: str) -> None:
        """Send the launchers of an excluded task away: they would wait for a seat to the end, and hold their nodes."""
        for guest in self._guests.values():
            if guest.group == group:
                guest.stream.send(msgspec.json.encode(Excluded(why=why)))

    def _run(self, listener: socket.socket) -> None:
        self._loop.run_until_complete(self._serve_forever(listener))

    async def _serve_forever(self, listener: socket.socket) -> None:
        async with await asyncio.start_server(self._serve, sock=listener, limit=65536) as server:
            self._drive()
            await server.serve_forever()

    def _follow(self) -> None:
        number = 0
        # No deadline: it lives as long as the store, which is in this process.
        with contextlib.suppress(HostLost):
            while True:
                event = self._follow_store.read(number)
                if event is not None:
                    self._loop.call_soon_threadsafe(self._hear, number, event)
                    number += 1

    def _hear(self, number: int, event: Event) -> None:
        before = self._coordinator.state.round
        self._coordinator.heard(event, time.monotonic())
        self._log.next = number + 1
        if self._coordinator.state.round != before:
            self._log.begins.append(number)
            self._forget_old()
        if self._keeper is not None:
            self._keeper.heard(event)
        self._note_departure()
        self._drive()

    def _forget_old(self) -> None:
        """Drop events that are older than some rounds and that every launcher has read: the log would grow for ever."""
        if len(self._log.begins) <= KEPT_ROUNDS:
            return
        oldest = self._log.begins[-KEPT_ROUNDS - 1]
        limit = min([oldest, *(guest.read for guest in self._guests.values())])
        while self._log.kept_from < limit:
            self._store.forget(self._log.kept_from)
            self._log.kept_from += 1
        self._log.begins = self._log.begins[-KEPT_ROUNDS - 1 :]

    def _drive(self) -> None:
        """Carry out the coordinator's next step, or set the clock for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # What was written is heard in a moment, in its place among what others wrote.
        if self._written >= self._log.next or self._is_noting or self._is_judging():
            return
        if self._wanted_end is not None and self._coordinator.state.ended is None:
            self._announce(self._wanted_end)
            return
        step = self._coordinator.next_step(time.monotonic(), time.time())
        if step.event is not None:
            self._announce(step.event)
        elif step.until is not None:
            delay = max(0.0, step.until - time.monotonic())
            self._timer = self._loop.call_later(delay, self._drive)

    def _announce(self, event: Event) -> None:
        """Write an event into the store, and before that into the records what must outlive this process."""
        if self._keeper is None or isinstance(event, Opened):
            self._written, _ = self._store.append(event, self._log.next)
            return
        self._is_noting = True
        attendance = self._coordinator.attendance()
        threading.Thread(target=self._note, args=(self._keeper, event, attendance), name="note", daemon=True).start()

    def _note(self, keeper: Keeper, event: Filled | Ended, attendance: Attendance) -> None:
        try:
            keeper.before(event, attendance)
        except Exception:  # records that cannot be kept must not stop the job
            log.exception("writing down %s failed, it goes on", type(event).__name__)
        self._loop.call_soon_threadsafe(self._publish, event)

    def _publish(self, event: Filled | Ended) -> None:
        self._is_noting = False
        state = self._coordinator.state
        if state.ended is None and (isinstance(event, Ended) or event.round == state.round):
            self._written, _ = self._store.append(event, self._log.next)
        self._drive()

    def _is_judging(self) -> bool:
        """Whether the verdict about this round is still awaited; asks for it when it was not yet."""
        state = self._coordinator.state
        if self._judging:
            return True
        if state.ended is not None or state.cause is None or state.round <= self._judged_round or state.round == 0:
            return False
        self._judging, self._judged_round = True, state.round
        opened = Opened(round=state.round, cause=state.cause, at=time.time())
        threading.Thread(target=self._ask_judge, args=(opened, state), name="judge", daemon=True).start()
        return True

    def _ask_judge(self, opened: Opened, state: JobState) -> None:
        verdict: Ended | Exclusion | None = None
        try:
            verdict = self._judge(opened, state)
        except Exception:  # a verdict that cannot be had must not stop the restart
            log.exception("judging round %s failed, it goes on", opened.round)
        self._loop.call_soon_threadsafe(self._take_verdict, verdict)

    def _take_verdict(self, verdict: Ended | Exclusion | None) -> None:
        self._judging = False
        if isinstance(verdict, Exclusion):
            group = self._coordinator.exclude_suspect(verdict.agent_ids, verdict.why)
            if group is not None:
                log.warning("an array task is excluded group=%s reason=%s", group, verdict.why)
                self._tell_excluded(group, verdict.why)
            verdict = verdict.otherwise if group is None else None
        if verdict is not None and self._wanted_end is None:
            self._wanted_end = verdict
        self._drive()

    def _note_departure(self) -> None:
        if self._coordinator.state.ended is not None and not self._guests:
            self._all_gone.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A launcher that vanished or a stranger that talks nonsense: its connection ends, nothing else does.
        guest: _Guest | None = None
        how = "its connection ended"
        try:
            guest = await self._greet(reader, writer)
            if guest is not None:
                how = await self._converse(guest)
        except asyncio.TimeoutError:
            how = f"it said nothing for {self._liveness:g} s"
        except (BadLine, RecordError, OSError, ValueError) as error:
            how = str(error)
        finally:
            writer.close()
            if guest is not None:
                self._lose(guest, how)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Guest | None:
        if self._strangers >= MAX_STRANGERS:
            return None
        self._strangers += 1
        try:
            stream = await SealedStream.accept(reader, writer, self._secret)
            line = await stream.receive(GREETING_SECONDS)
        finally:
            self._strangers -= 1
        word = None if line is None else parse_guest_word(line)
        if not isinstance(word, Hello):
            return None
        refusal = self._refuse(word)
        if refusal is not None:
            log.warning("a launcher is refused node=%s reason=%s", word.member.address, refusal.why)
            stream.send(msgspec.json.encode(refusal))
            await stream.drain(GREETING_SECONDS)
            return None
        member = word.member
        guest = _Guest(agent_id=member.agent_id, group=member.group, stream=stream, read=self._log.kept_from)
        self._guests[guest.agent_id] = guest
        stream.send(msgspec.json.encode(Welcome(read_from=self._log.kept_from)))
        return guest

    def _refuse(self, hello: Hello) -> Refused | None:
        if hello.world != self._world:
            return Refused(why=f"it was started for {hello.world}, this job for {self._world}", again=False)
        if self._coordinator.state.ended is not None:
            return None  # it reads in the store how the job ended, and leaves with that code
        why = self._coordinator.hello(hello.member)
        excluded = hello.member.group in self._coordinator.excluded
        return None if why is None else Refused(why=why, again=not excluded)

    async def _converse(self, guest: _Guest) -> str:
        beating = asyncio.ensure_future(self._beat(guest.stream))
        try:
            while (line := await guest.stream.receive(self._liveness)) is not None:
                word = parse_guest_word(line)
                if isinstance(word, Bye):
                    self._coordinator.leave(guest.agent_id, Standing.LEFT, "it left")
                    return "it left"
                self._take(guest, word)
                if not isinstance(word, Beat):
                    self._drive()
            return "its connection ended"
        finally:
            beating.cancel()

    def _take(self, guest: _Guest, word: GuestWord) -> None:
        if isinstance(word, Join):
            guest.read = max(guest.read, word.read)
            self._coordinator.join(guest.agent_id, word.round)
        elif isinstance(word, Stopping):
            self._coordinator.stopping(guest.agent_id, time.monotonic() + word.seconds)
        elif isinstance(word, Done):
            self._coordinator.done(guest.agent_id, word.round)
        elif isinstance(word, Exclude):
            self._coordinator.exclude(guest.group, word.why)
            self._tell_excluded(guest.group, word.why)
        elif isinstance(word, Stop):
            self._want_end(word.reason, word.detail, guest.agent_id)

    async def _beat(self, stream: SealedStream) -> None:
        while True:
            await asyncio.sleep(self._liveness / BEATS_PER_LIVENESS)
            stream.send(msgspec.json.encode(Beat()))

    def _lose(self, guest: _Guest, how: str) -> None:
        self._guests.pop(guest.agent_id, None)
        self._coordinator.leave(guest.agent_id, Standing.LOST, how)
        self._note_departure()
        self._drive()
