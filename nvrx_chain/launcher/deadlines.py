"""When a silent rank counts as hung. Pure: the time is handed in.

One `RankDeadlines` belongs to one process and is thrown away with it, so nothing of a dead process reaches the next.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from nvrx_chain.launcher.durations import Durations
from nvrx_chain.launcher.hang_limits import HangLimits

MAX_OPEN = 1000
"""Sections that may be open at once; a rank that opens more is confused, and must not fill our memory."""


class Silence(enum.Enum):
    """Which rule a rank broke."""

    STARTUP = "startup"
    INITIAL_HEARTBEAT = "initial_heartbeat"
    HEARTBEAT = "heartbeat"
    SECTION = "section"
    OUT_OF_SECTION = "out_of_section"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSection:
    """A section that a rank is in, and for how long."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """A rule that was broken."""

    what: Silence
    limit_seconds: float
    seconds: float
    """How long the silence has lasted."""
    section: str = ""
    open_sections: tuple[OpenSection, ...] = ()


@dataclass(slots=True)
class _Run:
    """One run of a section. `number` counts the runs of this name in this process from 0."""

    since: float
    number: int


class _Rule(NamedTuple):
    """One that applies now. A tuple: some are made for every word of every rank."""

    what: Silence
    since: float
    limit: float
    section: str = ""


def _deadline(rule: _Rule) -> float:
    return rule.since + rule.limit


@dataclass(slots=True)
class RankDeadlines:
    """The rules applied to one process of a rank. Feed it every word that the rank says."""

    limits: HangLimits
    started_at: float
    seen: Durations = field(default_factory=Durations)
    _spoke: bool = False
    _beat_at: float | None = None
    _open: dict[str, _Run] = field(default_factory=dict)
    _runs: dict[str, int] = field(default_factory=dict)
    _outside_since: float | None = None
    """Since when it is in no section that has a limit; None before the first word and while it is in one."""
    _idle_since: float | None = None
    """The same for sections with or without a limit: what a calculated limit has to allow."""

    def spoke(self, now: float) -> None:
        """The rank said anything at all."""
        if not self._spoke:
            self._spoke = True
            self._outside_since = self._idle_since = now

    def heartbeat(self, now: float) -> None:
        """The rank is alive and goes on."""
        self.spoke(now)
        if self._beat_at is None:
            self.seen.initial_heartbeat = max(self.seen.initial_heartbeat, now - self.started_at)
        else:
            self.seen.heartbeat = max(self.seen.heartbeat, now - self._beat_at)
        self._beat_at = now

    def start_section(self, name: str, now: float) -> None:
        """The rank entered a section. One that is open already begins anew: an exception may have skipped its end."""
        self.spoke(now)
        if name not in self._open and len(self._open) >= MAX_OPEN:
            return
        number = self._runs.get(name, 0)
        if name in self._runs or len(self._runs) < MAX_OPEN:
            self._runs[name] = number + 1
        self._open[name] = _Run(now, number)
        self._note_outside(now)

    def end_section(self, name: str, now: float) -> None:
        """The rank left a section; one that is not open is ignored."""
        self.spoke(now)
        run = self._open.pop(name, None)
        if run is not None:
            self.seen.saw_section(name, now - run.since, warmup=run.number < self.limits.warmup_iterations)
        self._note_outside(now)

    def end_all_sections(self, now: float) -> None:
        """The rank is in no section any more."""
        for name in list(self._open):
            self.end_section(name, now)
        self.spoke(now)

    def now_in(self, names: tuple[str, ...], now: float) -> None:
        """The rank is in these sections and no others: it says so when words were lost on the way."""
        for name in [name for name in self._open if name not in names]:
            self.end_section(name, now)
        for name in names:
            if name not in self._open:
                self.start_section(name, now)

    def use(self, limits: HangLimits, now: float) -> None:
        """Other rules from now on. Sections that are open keep the time at which they were entered.

        The rank asked for them, so it was alive: a time outside that nobody has limited so far is not held against it.
        """
        self.limits = limits
        if self._spoke:
            self._outside_since = None
            self._note_outside(now)

    def next_deadline(self) -> float | None:
        """When a rule is broken if the rank stays silent; None when no rule applies."""
        rules = self._rules()
        return min(map(_deadline, rules)) if rules else None

    def expired(self, now: float) -> Expired | None:
        """The rule whose deadline passed first, if any has. Every open section counts, not only the latest."""
        first = min(self._rules(), key=_deadline, default=None)
        if first is None or _deadline(first) > now:
            return None
        return Expired(
            what=first.what,
            limit_seconds=first.limit,
            seconds=now - first.since,
            section=first.section,
            open_sections=tuple(OpenSection(name=name, seconds=now - run.since) for name, run in self._open.items()),
        )

    def _note_outside(self, now: float) -> None:
        if self._open and self._idle_since is not None:
            self.seen.out_of_section = max(self.seen.out_of_section, now - self._idle_since)
            self._idle_since = None
        elif not self._open and self._idle_since is None:
            self._idle_since = now
        if any(self._limit(name, run) is not None for name, run in self._open.items()):
            self._outside_since = None
        elif self._outside_since is None:
            self._outside_since = now

    def _limit(self, name: str, run: _Run) -> float | None:
        return self.limits.section_limit(name, run.number)

    def _rules(self) -> list[_Rule]:
        limits = self.limits
        rules: list[_Rule] = []
        if limits.startup_seconds is not None and not self._spoke:
            rules.append(_Rule(Silence.STARTUP, self.started_at, limits.startup_seconds))
        if self._beat_at is None:
            if limits.initial_heartbeat_seconds is not None:
                rules.append(_Rule(Silence.INITIAL_HEARTBEAT, self.started_at, limits.initial_heartbeat_seconds))
        elif limits.heartbeat_seconds is not None:
            rules.append(_Rule(Silence.HEARTBEAT, self._beat_at, limits.heartbeat_seconds))
        for name, run in self._open.items():
            limit = self._limit(name, run)
            if limit is not None:
                rules.append(_Rule(Silence.SECTION, run.since, limit, name))
        if limits.out_of_section_seconds is not None and self._outside_since is not None:
            rules.append(_Rule(Silence.OUT_OF_SECTION, self._outside_since, limits.out_of_section_seconds))
        return rules
