"""The longest silences that ended well, and the time-outs that follow from them. Pure.

As NVRx's calculated time-outs: the longest that was seen, times a safety factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nvrx_chain.launcher.hang_limits import Timeouts

MIN_SECONDS = 1.0
"""No calculated time-out is shorter: a pause of the machine is no hang."""
MAX_SECTIONS = 1000
"""Names that are remembered: one that makes a new name for each step would fill the memory of the launcher."""


@dataclass(slots=True, kw_only=True)
class Durations:
    """What was seen of one local rank, over all its processes. What never ended is not part of it."""

    initial_heartbeat: float = 0.0
    heartbeat: float = 0.0
    out_of_section: float = 0.0
    sections: dict[str, float] = field(default_factory=dict)
    warmup: dict[str, float] = field(default_factory=dict)

    def saw_section(self, name: str, seconds: float, *, warmup: bool) -> None:
        """A run of a section has ended."""
        longest = self.warmup if warmup else self.sections
        if name in longest or len(longest) < MAX_SECTIONS:
            longest[name] = max(seconds, longest.get(name, 0.0))


def calculated(seen: Iterable[Durations], safety_factor: float) -> Timeouts:
    """Time-outs that none of these would have broken. What nobody has seen stays None or is left out."""
    total = Durations()
    for one in seen:
        total.initial_heartbeat = max(total.initial_heartbeat, one.initial_heartbeat)
        total.heartbeat = max(total.heartbeat, one.heartbeat)
        total.out_of_section = max(total.out_of_section, one.out_of_section)
        for name, seconds in one.sections.items():
            total.saw_section(name, seconds, warmup=False)
        for name, seconds in one.warmup.items():
            total.saw_section(name, seconds, warmup=True)
    return Timeouts(
        initial_heartbeat=_limit(total.initial_heartbeat, safety_factor),
        heartbeat=_limit(total.heartbeat, safety_factor),
        out_of_section=_limit(total.out_of_section, safety_factor),
        sections=_limits(total.sections, safety_factor),
        warmup=_limits(total.warmup, safety_factor),
    )


def _limit(longest: float, factor: float) -> float | None:
    return max(MIN_SECONDS, longest * factor) if longest > 0 else None


def _limits(longest: dict[str, float], factor: float) -> dict[str, float]:
    return {name: max(MIN_SECONDS, seconds * factor) for name, seconds in longest.items() if seconds > 0}
