"""Which nodes train in the next round, and whether it is time to say so. Pure.

The set that trained before is kept as far as it lives: a rank that moves to another node reads its checkpoint from
there, and a spare is of use only where somebody is missing. Group ranks follow the topology over the chosen set, so a
set that did not change keeps its ranks, and a segment has consecutive ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.launcher.members import Assignment, Member, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """One round as the coordinator sees it now; times in seconds on its monotonic clock."""

    joined: Collection[Member]
    """Members that are ready for this round, alive and not excluded."""
    missing: Mapping[str, float]
    """Members of the last active set that live and have not joined, each with when its workers will be gone at last."""
    previous: Collection[str]
    """Ids of the last active set; empty in the first round."""
    others_live: bool
    """Whether a live member that has not joined might still."""
    may_be_replaced: bool
    """Whether somebody new may come: array tasks that Slurm starts in a freed slot."""
    opened_at: float
    fillable_since: float | None
    """Since when it could have been filled; None while it could not."""
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Fill the round now."""

    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Look again when something happens, and at the latest then."""

    until: float
    reason: str
    fillable: bool = False
    """Whether it could be filled now, with others than those that it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """The round can never be filled."""

    reason: str


RoundDecision = Close | Wait | Impossible


def decide_round(view: RoundView, spec: Spec) -> RoundDecision:
    """Whether to fill the round, and with whom."""
    assignment = assign(view.joined, view.previous, spec)
    if assignment is None:
        return _decide_unfilled(view, spec)
    since = view.now if view.fillable_since is None else view.fillable_since
    if not view.previous:
        until = since + spec.first_grace_seconds
        if len(view.joined) < spec.max_nodes and view.now < until:
            return Wait(
                until=until, reason=f"{len(view.joined)} of at most {spec.max_nodes} nodes have joined", fillable=True
            )
        return Close(assignment=assignment)
    if view.missing and spec.sticky:
        until = _last_call(view, spec, since)
        if view.now < until:
            return Wait(
                until=until, reason=f"{len(view.missing)} nodes that trained before stop their workers", fillable=True
            )
    return Close(assignment=assignment)


def _last_call(view: RoundView, spec: Spec, since: float) -> float:
    announced = max(view.missing.values())
    return max(since + spec.last_call_seconds, min(announced, since + spec.last_call_max_seconds))


def _decide_unfilled(view: RoundView, spec: Spec) -> RoundDecision:
    reason = f"{len(view.joined)} nodes have joined, {_describe(spec)} are needed"
    if not (view.missing or view.others_live or view.may_be_replaced or not view.previous):
        return Impossible(reason=f"{reason}, and nobody is left who could come")
    until = view.opened_at + spec.join_timeout_seconds
    if view.now < until:
        return Wait(until=until, reason=reason)
    return Impossible(reason=f"{reason}; nobody else came in {spec.join_timeout_seconds:g} s")


def _describe(spec: Spec) -> str:
    parts = [str(spec.min_nodes)]
    if spec.segment is not None:
        parts.append(f"in segments of {spec.segment} of one NVLink domain")
    if spec.group_size > 1:
        parts.append(f"of array tasks with all {spec.group_size} nodes")
    return " ".join(parts)


def assign(joined: Iterable[Member], previous: Collection[str], spec: Spec) -> Assignment | None:
    """The best set of `min_nodes` members; None when there is none. Of those of `previous`, as many as can be kept."""
    members = sorted(joined, key=_place)
    usable = _whole_groups(members, spec.group_size)
    kept = frozenset(previous) if spec.sticky else frozenset()
    chosen = (
        _choose_nodes(usable, kept, spec)
        if spec.segment is None
        else _choose_segments(usable, kept, spec, spec.segment)
    )
    if chosen is None:
        return None
    taken = {member.agent_id for member in chosen}
    return Assignment(active=chosen, standby=tuple(member for member in members if member.agent_id not in taken))


def _place(member: Member) -> tuple[int, str, str]:
    return member.infra_rank, member.address, member.agent_id


def _whole_groups(members: Sequence[Member], size: int) -> list[Member]:
    if size <= 1:
        return list(members)
    counts: dict[str, int] = {}
    for member in members:
        counts[member.group] = counts.get(member.group, 0) + 1
    return [member for member in members if counts[member.group] >= size]


def _choose_nodes(members: Sequence[Member], kept: frozenset[str], spec: Spec) -> tuple[Member, ...] | None:
    if len(members) < spec.min_nodes:
        return None
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.group if spec.group_size > 1 else member.agent_id, []).append(member)
    # A task whose launcher was started again can have one member too many until the old one is known to be lost.
    whole = [
        sorted(group, key=lambda member: (member.agent_id not in kept, _place(member))) for group in groups.values()
    ]
    whole = [group[: spec.group_size] for group in whole]
    chosen: list[Member] = []
    # Most kept nodes first, then the topology: a whole group moves or stays as one.
    for group in sorted(whole, key=lambda group: (-_count_kept(group, kept), min(map(_place, group)))):
        if len(chosen) + len(group) <= spec.min_nodes:
            chosen += group
    return tuple(sorted(chosen, key=_place)) if len(chosen) == spec.min_nodes else None


def _count_kept(members: Iterable[Member], kept: frozenset[str]) -> int:
    return sum(member.agent_id in kept for member in members)


@dataclass(slots=True)
class _Domain:
    """One NVLink domain while segments are handed out; its members in the order in which they are taken."""

    members: list[Member]
    kept: int
    capacity: int
    first: tuple[int, str, str]
    taken: int = 0

    def gain(self, segment: int) -> int:
        """Nodes of the last set that one more segment would keep."""
        return max(0, min(segment, self.kept - self.taken * segment))


def _choose_segments(
    members: Sequence[Member], kept: frozenset[str], spec: Spec, segment: int
) -> tuple[Member, ...] | None:
    """Whole segments: those that keep the most nodes, then from the fewest domains, then the first in the topology."""
    domains = _domains(members, kept, segment)
    wanted, odd = divmod(spec.min_nodes, segment)
    if odd or sum(domain.capacity for domain in domains) < wanted:
        return None
    for left in range(wanted, 0, -1):
        _next_domain([domain for domain in domains if domain.taken < domain.capacity], left, segment).taken += 1
    used = [domain for domain in domains if domain.taken]
    chosen = [sorted(domain.members[: domain.taken * segment], key=_place) for domain in used]
    return tuple(member for part in sorted(chosen, key=lambda part: _place(part[0])) for member in part)


def _domains(members: Sequence[Member], kept: frozenset[str], segment: int) -> list[_Domain]:
    by_name: dict[str, list[Member]] = {}
    for member in members:
        if member.domain is not None:
            by_name.setdefault(member.domain, []).append(member)
    return [
        _Domain(
            members=sorted(found, key=lambda member: (member.agent_id not in kept, _place(member))),
            kept=_count_kept(found, kept),
            capacity=len(found) // segment,
            first=_place(found[0]),
        )
        for found in by_name.values()
    ]


def _next_domain(domains: Sequence[_Domain], left: int, segment: int) -> _Domain:
    def rank(domain: _Domain) -> tuple[object, ...]:
        free = domain.capacity - domain.taken
        # One that can take all that is left saves opening a further one; among those the topology decides.
        return -domain.gain(segment), not domain.taken, -min(free, left), domain.first

    return min(domains, key=rank)
