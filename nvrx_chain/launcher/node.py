"""What one launcher does next, given what happens to its job and to its own workers. Pure.

Each thing that happens gives the actions to carry out, in order; `agent.py` carries them out and says what came of
them. A node without workers waits in a round; one whose workers run or end hears of a new round and stops them first.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nvrx_chain.launcher.events import Cause, Ended, Hosted, JobState
from nvrx_chain.launcher.reasons import Reason


class Phase(enum.Enum):
    """Where a launcher stands."""

    WAITING = "waiting"
    """For the first round, without workers."""
    CHECKING = "checking"
    """No workers; whether the node is healthy is being found out."""
    JOINED = "joined"
    STANDBY = "standby"
    """The round was filled without it."""
    STARTING = "starting"
    """It trains in this round, whose meeting place is not known yet."""
    RUNNING = "running"
    DONE = "done"
    """All its workers ended with 0, others may go on."""
    STOPPING = "stopping"
    EXCLUDED = "excluded"
    """It only serves the others as their rendezvous host."""
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """How long, in seconds, workers may take after TERM before they are killed."""

    restart: float
    ending: float
    """When the job or this launcher was told to end: ranks save what they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHealth:
    """Find out whether this node may join the round."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Say that this node is ready for the round."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWorkers:
    """Start the store in which the ranks of this round meet, and publish it."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """Start the ranks of this node."""

    round: int
    group_rank: int
    hosted: Hosted


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorkers:
    """End the ranks: TERM, and KILL after the grace. `tell_host`: the next round waits for them so long."""

    grace_seconds: float
    tell_host: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRound:
    """Have all nodes start anew."""

    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDone:
    """Say that all workers of this node ended with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludeTask:
    """Take this array task out of the job for good."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """End the job for all."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Say goodbye and exit."""

    reason: Reason
    detail: str


Action = (
    CheckHealth
    | Join
    | HostWorkers
    | StartWorkers
    | StopWorkers
    | OpenRound
    | ReportDone
    | ExcludeTask
    | EndJob
    | Leave
)
Actions = tuple[Action, ...]

_WITH_WORKERS = frozenset({Phase.RUNNING, Phase.DONE})


class Node:
    """The state machine of one launcher. Every method answers with what has to be done."""

    def __init__(self, agent_id: str, grace: Grace, *, is_host: bool) -> None:
        self._agent_id = agent_id
        self._grace = grace
        self._is_host = is_host
        self._leave: Leave | None = None
        self._state = JobState()
        self.phase = Phase.WAITING
        self.round = -1

    @property
    def is_leaving(self) -> bool:
        """Whether it goes, as soon as its workers are gone."""
        return self._leave is not None

    @property
    def is_active(self) -> bool:
        """Whether it has a seat in the round."""
        filled = self._state.filled
        return filled is not None and filled.round == self.round and self._agent_id in filled.active

    @property
    def ended(self) -> Ended | None:
        """How the job ended, if it did."""
        return self._state.ended

    def heard(self, state: JobState) -> Actions:
        """The job went on to this state."""
        self._state = state
        if self.phase is Phase.LEFT:
            return ()
        if state.ended is not None:
            grace = self._grace.ending if state.ended.reason is Reason.TERMINATED else self._grace.restart
            return self._go(Leave(reason=state.ended.reason, detail=state.ended.detail), grace, tell_host=False)
        if self.is_leaving or self.phase is Phase.EXCLUDED:
            return ()
        actions: Actions = ()
        if state.round > self.round:
            self.round = state.round
            actions = self._begin_round()
        return (*actions, *self._take_seat())

    def _begin_round(self) -> Actions:
        if self.phase is Phase.STOPPING:
            return ()
        if self.phase in _WITH_WORKERS:
            self.phase = Phase.STOPPING
            return (StopWorkers(grace_seconds=self._grace.restart),)
        self.phase = Phase.CHECKING
        return (CheckHealth(round=self.round),)

    def _take_seat(self) -> Actions:
        filled, hosted = self._state.filled, self._state.hosted
        if filled is None or filled.round != self.round:
            return ()
        actions: Actions = ()
        if self.phase is Phase.JOINED:
            if self._agent_id not in filled.active:
                self.phase = Phase.STANDBY
                return ()
            self.phase = Phase.STARTING
            if filled.active[0] == self._agent_id:
                actions = (HostWorkers(round=self.round),)
        if self.phase is Phase.STARTING and hosted is not None and hosted.round == self.round:
            self.phase = Phase.RUNNING
            group_rank = filled.active.index(self._agent_id)
            actions = (*actions, StartWorkers(round=self.round, group_rank=group_rank, hosted=hosted))
        return actions

    def checked(self, round_number: int, sick: str | None) -> Actions:
        """The health of this node is known; `sick` says what is wrong, None that nothing is."""
        if sick is not None and self.phase is not Phase.LEFT:
            return self.exclude(sick)
        if self.phase is not Phase.CHECKING or round_number != self.round:
            return ()
        if self._state.filled is not None and self._state.filled.round == self.round:
            # It came late: the others train, and it has its part in the next round.
            self.phase = Phase.STANDBY
            return ()
        self.phase = Phase.JOINED
        return (Join(round=self.round),)

    def exclude(self, why: str) -> Actions:
        """This node is not to be used any more."""
        if self.phase in (Phase.LEFT, Phase.EXCLUDED) or self.is_leaving:
            return ()
        return (ExcludeTask(why=why), *self.excluded(why))

    def excluded(self, why: str) -> Actions:
        """Its array task was taken out of the job."""
        if self.phase in (Phase.LEFT, Phase.EXCLUDED) or self.is_leaving:
            return ()
        if not self._is_host:
            return self._go(Leave(reason=Reason.UNHEALTHY, detail=why), self._grace.restart, tell_host=False)
        stop: Actions = ()
        if self.phase in _WITH_WORKERS:
            stop = (StopWorkers(grace_seconds=self._grace.restart, tell_host=False),)
        # The others need its store: it stays for them, without workers.
        self.phase = Phase.EXCLUDED
        return stop

    def failed(self, cause: Cause) -> Actions:
        """A rank of this node ended by itself, or hangs."""
        if self.phase is not Phase.RUNNING:
            return ()
        self.phase = Phase.STOPPING
        return (OpenRound(cause=cause), StopWorkers(grace_seconds=self._grace.restart))

    def all_done(self) -> Actions:
        """All ranks of this node ended with 0."""
        if self.phase is not Phase.RUNNING:
            return ()
        self.phase = Phase.DONE
        return (ReportDone(),)

    def stopped(self) -> Actions:
        """All ranks that were to be ended are gone."""
        if self._leave is not None:
            self.phase = Phase.LEFT
            return (self._leave,)
        if self.phase is not Phase.STOPPING:
            return ()
        if self._state.round < self.round or not self._is_round_news():
            self.phase = Phase.WAITING
            return ()
        self.phase = Phase.CHECKING
        return (CheckHealth(round=self.round),)

    def _is_round_news(self) -> bool:
        """Whether the round that its own failure opened has been heard of."""
        filled = self._state.filled
        return filled is None or self._agent_id not in filled.active

    def told_to_end(self, why: str) -> Actions:
        """This launcher alone, or the job by its host, was told to end."""
        if self.is_leaving or self.phase is Phase.LEFT:
            return ()
        end: Actions = (EndJob(reason=Reason.TERMINATED, detail=why),) if self._is_host else ()
        leave = Leave(reason=Reason.TERMINATED, detail=why)
        return (*end, *self._go(leave, self._grace.ending, tell_host=False))

    def refused(self, why: str) -> Actions:
        """The job does not take this launcher in."""
        return self._go(Leave(reason=Reason.FAILED, detail=why), 0.0, tell_host=False)

    def unkillable(self, why: str) -> Actions:
        """Ranks that were to be ended are still there: nothing may be started beside them."""
        if self._leave is not None:
            self.phase = Phase.LEFT
            return (self._leave,)
        self.phase = Phase.WAITING
        return self.exclude(why)

    def lost_host(self, why: str) -> Actions:
        """The rendezvous host is gone: nobody can tell any more who trains."""
        if self.phase is Phase.LEFT:
            return ()
        return self._go(Leave(reason=Reason.HOST_LOST, detail=why), 0.0, tell_host=False)

    def _go(self, leave: Leave, grace: float, *, tell_host: bool) -> Actions:
        """Leave once the workers are gone; what is said first counts, unless another start was found to be useless."""
        first = self._leave
        if first is None or leave.reason.is_no_restart:
            self._leave = leave
        if self.phase in _WITH_WORKERS or self.phase is Phase.STOPPING:
            self.phase = Phase.STOPPING
            return (StopWorkers(grace_seconds=grace, tell_host=tell_host),)
        if first is not None:
            return ()
        self.phase = Phase.LEFT
        return (leave,)
