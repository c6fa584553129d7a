"""Our rendezvous behind torch's interface, so that any elastic agent can meet with it: `--rdzv-backend nvrx`.

An agent that polls gets the rounds, the choice of nodes and the notice of lost ones; it does not get what only our own
loop does: restarts on an event, warm workers, reasons. Touches: the connections of the job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)

from nvrx_chain.errors import NvrxError, UsageError
from nvrx_chain.launcher.coordinator import Limits
from nvrx_chain.launcher.environment import SECRET
from nvrx_chain.launcher.events import Cause
from nvrx_chain.launcher.guest import HostSilent
from nvrx_chain.launcher.job import Job, Meeting, new_agent_id
from nvrx_chain.launcher.members import Member, Spec
from nvrx_chain.launcher.rank_store import RankStore
from nvrx_chain.launcher.reasons import Reason
from nvrx_chain.launcher.talk import Refused

BACKEND = "nvrx"
LEAVE_SECONDS = 10.0
NO_RESTART_EXIT_CODE = 93
"""Such an agent has no use for it; the host's coordinator wants to know it."""


class NvrxRendezvous(RendezvousHandler):  # type: ignore[misc]
    """One agent's place in the job. A standby agent waits inside `next_rendezvous`."""

    def __init__(self, job: Job, *, join_seconds: float) -> None:
        self.job = job
        self._join_seconds = join_seconds
        self._round = -1
        self._lost: str | None = None
        self._rank_store: RankStore | None = None

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Ranks meet in a store of the agent, new in every round."""
        return True

    def get_run_id(self) -> str:
        return self.job.meeting.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and wait for a seat. Raises RendezvousClosedError, -ConnectionError, -TimeoutError."""
        if self._round >= 0 and self.job.state.round == self._round:
            self.job.open(Cause(kind="worker", node=self.job.member.address, detail="its agent joined again"))
        deadline = time.monotonic() + self._join_seconds
        joined = self._round
        while True:
            self._take(1.0)
            state = self.job.state
            if state.round > max(joined, self._round):
                joined = state.round
                self.job.join(joined)
            filled = state.filled
            if filled is not None and state.round == joined and self.job.member.agent_id in filled.active:
                return self._meet(filled.active, joined, deadline)
            # One that waits as a spare has no deadline: its seat comes when another falls out.
            if filled is None and time.monotonic() > deadline:
                raise RendezvousTimeoutError(f"the round was not filled in {self._join_seconds:g} s")

    def _meet(self, active: tuple[str, ...], number: int, deadline: float) -> RendezvousInfo:
        self._round = number
        rank = active.index(self.job.member.agent_id)
        if rank == 0:
            self._rank_store = RankStore()
            self.job.host_ranks(number, self._rank_store.port)
        while (hosted := self.job.state.hosted) is None:
            self._take(1.0)
            if self.job.state.round != number:
                return self.next_rendezvous()
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError("the store of the ranks was not published in time")
        store = TCPStore(hosted.address, hosted.port, None, False, wait_for_workers=False)
        info = RendezvousStoreInfo(master_addr=hosted.address, master_port=hosted.port)
        return RendezvousInfo(store, rank, len(active), info)

    def _take(self, seconds: float) -> None:
        for news in self.job.take(seconds):
            if isinstance(news, HostSilent):
                self._lost = str(news)
            elif isinstance(news, Refused):
                raise RendezvousClosedError(news.why)
        if self._lost is not None:
            raise RendezvousConnectionError(self._lost)
        if self.job.state.ended is not None:
            raise RendezvousClosedError(f"the job has ended: {self.job.state.ended.detail}")

    def is_closed(self) -> bool:
        self.job.take()
        return self.job.state.ended is not None

    def set_closed(self) -> None:
        self.job.end(Reason.SUCCESS, "an agent closed the rendezvous")

    def num_nodes_waiting(self) -> int:
        """1 when a newer round is open, which the agent joins by restarting its ranks; spares are not counted."""
        self._take(0.0)
        return int(self.job.state.round > self._round)

    def shutdown(self) -> bool:
        self.job.leave(host_waits_seconds=LEAVE_SECONDS)
        return True


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """For `--rdzv-backend nvrx`; `--rdzv-conf` has `is_host`, `infra_rank`, `max_restarts`. Raises UsageError."""
    host, _, port = parameters.endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError("reading --rdzv-endpoint", part=parameters.endpoint, hint="write HOST:PORT")
    secret = os.environ.get(SECRET, "")
    if not secret:
        raise UsageError(f"joining the rendezvous: {SECRET} is not set", hint="give all nodes of the job the same word")
    infra_rank = parameters.get_as_int("infra_rank", int(os.environ.get("SLURM_PROCID", "0"))) or 0
    agent_id = new_agent_id(infra_rank)
    address = parameters.local_addr or os.uname().nodename
    meeting = Meeting(
        host=host,
        port=int(port),
        run_id=parameters.run_id,
        secret=secret,
        is_host=bool(parameters.get_as_bool("is_host", infra_rank == 0)),
    )
    spec = Spec(min_nodes=parameters.min_nodes, max_nodes=parameters.max_nodes)
    limits = Limits(
        max_restarts=parameters.get_as_int("max_restarts", 100) or 0, no_restart_exit_code=NO_RESTART_EXIT_CODE
    )
    member = Member(agent_id=agent_id, infra_rank=infra_rank, group=agent_id, address=address)
    # Such agents do not say how many ranks they start.
    job = Job(meeting, spec, limits, member, procs_per_node=0)
    try:
        job.connect(lambda opened, state: None)
    except NvrxError as error:
        raise RendezvousConnectionError(str(error)) from error
    return NvrxRendezvous(job, join_seconds=float(parameters.get_as_int("join_timeout", 600) or 600))


def torchrun_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torchrun loads from the entry points `torchrun.handlers`."""
    return create_handler


def register() -> None:
    """Make the backend known to torch in this process. Twice is once."""
    rendezvous_handler_registry.register(BACKEND, create_handler)
