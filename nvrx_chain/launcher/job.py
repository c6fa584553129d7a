"""A launcher's place in its job: connected to the host, hearing every event, saying what it does.

On the rendezvous host it also starts the control store and the coordinator. Touches: TCP connections, threads.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from dataclasses import dataclass

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.coordinator import Coordinator, Limits
from nvrx_chain.launcher.events import Cause, Ended, Event, Filled, Hosted, JobState, Opened
from nvrx_chain.launcher.guest import Guest, HostSilent
from nvrx_chain.launcher.host import CoordinatorHost
from nvrx_chain.launcher.mailbox import Mailbox
from nvrx_chain.launcher.members import Member, Spec
from nvrx_chain.launcher.reasons import Reason
from nvrx_chain.launcher.store import ControlStore, HostLost
from nvrx_chain.launcher.talk import Done, Exclude, Excluded, Hello, Join, Refused, Stop, Stopping, Welcome
from nvrx_chain.launcher.verdict import Judge, Keeper

log = logging.getLogger(__name__)

_PRESENCE = "presence"
READ_SECONDS = 30.0

News = Event | Welcome | Refused | Excluded | HostSilent
"""What comes from the job; the launcher's own threads post further messages to the same mailbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where and how the launchers of a job meet. Times in seconds."""

    host: str
    port: int
    run_id: str
    secret: str
    is_host: bool
    connect_seconds: float = 120.0
    liveness_seconds: float = 10.0
    may_be_replaced: bool = False
    allow_shared_node: bool = False


def new_agent_id(infra_rank: int) -> str:
    """Unique among all launchers that a job ever has, and short: the list of those who train holds all of them."""
    return f"{infra_rank}-{secrets.token_hex(3)}"


class Job:
    """The job as one launcher sees it. `news` is its mailbox; `take` brings `state` up to date."""

    def __init__(self, meeting: Meeting, spec: Spec, limits: Limits, member: Member, *, procs_per_node: int) -> None:
        self.meeting = meeting
        self.spec = spec
        self.limits = limits
        self.member = member
        self.news: Mailbox[object] = Mailbox()
        self.state = JobState()
        self.read = 0
        self._announcements: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._world = f"{spec.min_nodes} nodes of {procs_per_node} ranks"
        self._store: ControlStore | None = None
        self._host: CoordinatorHost | None = None
        self._guest: Guest | None = None

    def connect(self, judge: Judge, keeper: Keeper | None = None) -> None:
        """Start the store and the coordinator where this is the host; join the others. Raises NvrxError.

        `judge` and `keeper` are asked on the host only.
        """
        meeting = self.meeting
        if meeting.is_host:
            self._store = ControlStore.serve(meeting.port, meeting.run_id)
            self._host = self._start_host(self._store, judge, keeper)
            self._store.put(_PRESENCE, str(self._host.port).encode())
            address = "localhost"
        else:
            self._store = ControlStore.connect(
                meeting.host, meeting.port, meeting.run_id, within_seconds=meeting.connect_seconds
            )
            address = meeting.host
        port = self._store.get(_PRESENCE, READ_SECONDS)
        if port is None:
            raise HostLost(
                "joining the job", part=f"{meeting.host}:{meeting.port}", hint="another program holds this port"
            )
        self._guest = Guest(
            (address, int(port)),
            meeting.secret,
            Hello(member=self.member, world=self._world),
            self._receive,
            liveness_seconds=meeting.liveness_seconds,
            connect_seconds=meeting.connect_seconds,
        )
        threading.Thread(target=self._write_announcements, name="announce", daemon=True).start()
        self._guest.start()

    def _start_host(self, store: ControlStore, judge: Judge, keeper: Keeper | None) -> CoordinatorHost:
        coordinator = Coordinator(
            self.spec,
            self.limits,
            by=self.member.agent_id,
            may_be_replaced=self.meeting.may_be_replaced,
            allow_shared_node=self.meeting.allow_shared_node,
        )
        host = CoordinatorHost(
            coordinator,
            store.another(),
            self.meeting.secret,
            world=self._world,
            liveness_seconds=self.meeting.liveness_seconds,
            judge=judge,
            keeper=keeper,
        )
        try:
            host.start()
        except OSError as error:
            raise NvrxError("listening for the other launchers", hint=error.strerror or str(error)) from error
        return host

    def _receive(self, news: Welcome | Refused | Excluded | HostSilent) -> None:
        if isinstance(news, Welcome):
            threading.Thread(target=self._follow, args=(news.read_from,), name="follow", daemon=True).start()
        self.news.post(news)

    def _follow(self, number: int) -> None:
        # No deadline: the read ends with the host.
        try:
            store = self._require_store().another()
            while True:
                event = store.read(number)
                if event is not None:
                    number += 1
                    self.read = number
                    self.news.post(event)
                    if isinstance(event, Ended):
                        return
        except NvrxError as error:
            self.news.post(HostSilent("following the events of the job", hint=str(error)))

    def take(self, seconds: float = 0.0) -> list[object]:
        """What happened since the last time, in order, already part of `state`; waits for the first news so long."""
        found = self.news.wait(seconds) if seconds > 0 else self.news.take()
        for news in found:
            if isinstance(news, Opened | Filled | Hosted | Ended):
                self.state = self.state.after(news)
        return found

    def open(self, cause: Cause) -> None:
        """Announce that a round has to be made anew; all others hear it at once."""
        self._announce(Opened(round=self.state.round + 1, cause=cause, at=time.time()))

    def host_ranks(self, round_number: int, port: int) -> None:
        """Publish that the ranks of this round meet here."""
        self._announce(Hosted(round=round_number, address=self.member.address, port=port))

    def end(self, reason: Reason, detail: str) -> None:
        """Have the host end the job for everybody, this launcher included, which hears of it as of any event.

        The host writes it down first, so that it outlives the host. Whoever came first counts.
        """
        self._require_guest().say(Stop(reason=reason, detail=detail))

    def _announce(self, event: Event) -> None:
        """Write an event, in a thread: a host that is silent must not hold up who has workers to end."""
        self._announcements.put(event)

    def _write_announcements(self) -> None:
        # No deadline: it lives as long as the process, and every write has one.
        try:
            store = self._require_store().another()
            while True:
                store.append(self._announcements.get(), self.read)
        except NvrxError as error:
            self.news.post(HostSilent("announcing an event of the job", hint=str(error)))

    def join(self, round_number: int) -> None:
        """Ready for this round."""
        self._require_guest().say(Join(round=round_number, read=self.read))

    def announce_stop(self, seconds: float) -> None:
        """The workers are being stopped, which takes so long at most."""
        self._require_guest().say(Stopping(seconds=seconds))

    def report_done(self, round_number: int) -> None:
        """All workers of this round ended with 0."""
        self._require_guest().say(Done(round=round_number))

    def exclude_own_task(self, why: str) -> None:
        """Take this array task out for good."""
        self._require_guest().say(Exclude(why=why))

    def leave(self, *, host_waits_seconds: float) -> None:
        """Say goodbye. The host stays until all others have left, or for so long."""
        if self._guest is not None:
            self._guest.leave()
        if self._host is not None and not self._host.await_all_gone(host_waits_seconds):
            log.warning("some launchers have not left pid=%s", os.getpid())

    def _require_store(self) -> ControlStore:
        if self._store is None:
            raise NvrxError("talking to the job", hint="it is not connected")
        return self._store

    def _require_guest(self) -> Guest:
        if self._guest is None:
            raise NvrxError("talking to the job", hint="it is not connected")
        return self._guest
