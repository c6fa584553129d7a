"""The rendezvous host's view of its job: who is there, who is ready, and what has to happen next. Pure.

It is told what its connections and the control store say, and answers with the events to write. Times are seconds on
its own monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nvrx_chain.launcher.choose import Close, Impossible, RoundView, Wait, assign, decide_round
from nvrx_chain.launcher.events import Cause, Ended, Event, Filled, JobState, Opened
from nvrx_chain.launcher.members import Member, Spec, Standing
from nvrx_chain.launcher.reasons import Reason, exit_code
from nvrx_chain.launcher.verdict import Attendance, ExcludedTask


@dataclass(slots=True)
class Known:
    """One launcher that said hello."""

    member: Member
    standing: Standing = Standing.LIVE
    joined_round: int = -1
    done_round: int = -1
    stopped_by: float = 0.0
    """When its workers are gone at last, as it announced."""
    lost_how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What ends a job besides success."""

    max_restarts: int
    no_restart_exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the coordinator wants done: an event to write, or nothing until something happens or a time comes."""

    event: Event | None = None
    until: float | None = None
    reason: str = ""


class Coordinator:
    """Members, exclusions and the round; see `next_step`."""

    def __init__(self, spec: Spec, limits: Limits, *, by: str, may_be_replaced: bool, allow_shared_node: bool) -> None:
        self._spec = spec
        self._limits = limits
        self._by = by
        self._may_be_replaced = may_be_replaced
        self._allow_shared_node = allow_shared_node
        self._known: dict[str, Known] = {}
        self._excluded: dict[str, str] = {}
        self._opened_at = 0.0
        self._fillable_since: float | None = None
        self.state = JobState()

    def hello(self, member: Member) -> str | None:
        """Take a launcher in; the reason when it cannot be."""
        if member.group in self._excluded:
            return f"its array task is excluded: {self._excluded[member.group]}"
        if not self._allow_shared_node:
            for known in self._known.values():
                if known.standing is Standing.LIVE and known.member.address == member.address:
                    return f"a launcher of {member.address} is here already"
        self._known[member.agent_id] = Known(member=member)
        return None

    def join(self, agent_id: str, round_number: int) -> None:
        """A launcher is ready for a round: its workers are gone and it is healthy."""
        known = self._known.get(agent_id)
        if known is None:
            return  # it came after the end, and only reads how that was
        known.joined_round = max(known.joined_round, round_number)

    def stopping(self, agent_id: str, by: float) -> None:
        """A launcher stops its workers, which takes until then at the longest."""
        known = self._known.get(agent_id)
        if known is not None:
            known.stopped_by = by

    def done(self, agent_id: str, round_number: int) -> None:
        """All workers of a launcher ended with 0."""
        known = self._known.get(agent_id)
        if known is not None:
            known.done_round = round_number

    def leave(self, agent_id: str, standing: Standing, how: str) -> None:
        """A launcher is gone: lost, or it said goodbye."""
        known = self._known.get(agent_id)
        if known is not None and known.standing is Standing.LIVE:
            known.standing, known.lost_how = standing, how

    def exclude(self, group: str, why: str) -> None:
        """Nothing of this array task takes part any more: a sick node takes the others of its task out."""
        self._excluded.setdefault(group, why)
        for known in self._known.values():
            if known.member.group == group and known.standing is Standing.LIVE:
                known.standing, known.lost_how = Standing.EXCLUDED, why

    def exclude_suspect(self, agent_ids: Iterable[str], why: str) -> str | None:
        """Exclude the array task that most of these launchers belong to, the earliest of equals, and which it was.

        None, and nothing is done, where the others could not fill a round without it, and for the host's own task:
        the job would end with it.
        """
        groups = [self._known[agent_id].member.group for agent_id in agent_ids if agent_id in self._known]
        if not groups:
            return None
        group = max(dict.fromkeys(groups), key=groups.count)
        host = self._known.get(self._by)
        if group in self._excluded or (host is not None and host.member.group == group):
            return None
        rest = [member for member in self.live() if member.group != group]
        if assign(rest, self.state.previous, self._spec) is None:
            return None
        self.exclude(group, why)
        return group

    def end(self, reason: Reason, detail: str, at: float, *, by: str | None = None) -> Ended:
        """The event that ends the job for everybody."""
        code = exit_code(reason, self._limits.no_restart_exit_code)
        return Ended(reason=reason, exit_code=code, by=self._by if by is None else by, detail=detail, at=at)

    def heard(self, event: Event, now: float) -> None:
        """Take in an event of the control store."""
        before = self.state
        self.state = before.after(event)
        if self.state.round != before.round:
            self._opened_at, self._fillable_since = now, None

    def live(self) -> tuple[Member, ...]:
        """Who is there and may take part."""
        return tuple(known.member for known in self._known.values() if known.standing is Standing.LIVE)

    @property
    def excluded(self) -> dict[str, str]:
        """The excluded groups, each with why."""
        return dict(self._excluded)

    def attendance(self) -> Attendance:
        """Who is here, and who is kept out."""
        nodes: dict[str, dict[str, None]] = {group: {} for group in self._excluded}
        for known in self._known.values():
            if known.member.group in nodes:
                nodes[known.member.group][known.member.address] = None
        return Attendance(
            members={member.agent_id: member for member in self.live()},
            excluded=tuple(
                ExcludedTask(group=group, nodes=tuple(nodes[group]), why=why) for group, why in self._excluded.items()
            ),
        )

    def next_step(self, now: float, at: float) -> Step:
        """What has to happen now; `at` is the wall clock for events (seconds since the epoch)."""
        state = self.state
        if state.ended is not None:
            return Step(reason="the job has ended")
        if state.round < 0:
            return Step(event=Opened(round=0, cause=Cause(kind="start"), at=at))
        if state.filled is None:
            return self._fill(now, at)
        return self._watch(state.filled, at)

    def _fill(self, now: float, at: float) -> Step:
        if self.state.round > self._limits.max_restarts:
            detail = f"{self._limits.max_restarts} restarts are spent"
            return Step(event=self.end(Reason.BUDGET_SPENT, detail, at))
        live = [known for known in self._known.values() if known.standing is Standing.LIVE]
        joined = [known.member for known in live if known.joined_round >= self.state.round]
        previous = self.state.previous
        missing = {
            known.member.agent_id: known.stopped_by
            for known in live
            if known.joined_round < self.state.round and known.member.agent_id in previous
        }
        view = RoundView(
            joined=joined,
            missing=missing,
            previous=previous,
            others_live=len(live) > len(joined),
            may_be_replaced=self._may_be_replaced,
            opened_at=self._opened_at,
            fillable_since=self._fillable_since,
            now=now,
        )
        decision = decide_round(view, self._spec)
        if isinstance(decision, Impossible):
            return Step(event=self.end(Reason.NOT_ENOUGH_NODES, decision.reason, at))
        if isinstance(decision, Close):
            active = tuple(member.agent_id for member in decision.assignment.active)
            return Step(event=Filled(round=self.state.round, active=active, at=at))
        return self._wait(decision, now)

    def _wait(self, decision: Wait, now: float) -> Step:
        if self._fillable_since is None and decision.fillable:
            self._fillable_since = now
        return Step(until=decision.until, reason=decision.reason)

    def _watch(self, filled: Filled, at: float) -> Step:
        active = [self._known[agent_id] for agent_id in filled.active if agent_id in self._known]
        gone = [known for known in active if known.standing is not Standing.LIVE and known.done_round < filled.round]
        if gone:
            return Step(event=Opened(round=filled.round + 1, cause=_cause_of(gone), at=at))
        if all(known.done_round >= filled.round for known in active):
            return Step(event=self.end(Reason.SUCCESS, "all workers ended with 0", at))
        return Step(reason="training")


def _cause_of(gone: Iterable[Known]) -> Cause:
    first, *more = gone
    kind = "unhealthy" if first.standing is Standing.EXCLUDED else "agent_lost"
    detail = first.lost_how + (f"; and {len(more)} more" if more else "")
    return Cause(kind=kind, agent_id=first.member.agent_id, node=first.member.address, detail=detail)
