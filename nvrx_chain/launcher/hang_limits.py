"""How long a rank may be silent, as a value, and how a user types it. Pure.

The spelling of sections is ft_launcher's: `setup:600,step:180,checkpointing:420`. As there, an entry `warmup` is the
limit of the first iterations of the section `step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from nvrx_chain.errors import UsageError

DEFAULT_WARMUP_ITERATIONS = 5
DEFAULT_SAFETY_FACTOR = 5.0
MAX_NAME = 100
"""Characters of the name of a section."""
_OFF = frozenset({"", "off", "none"})
_WARMUP = "warmup"
_STEP = "step"


def _no_sections() -> Mapping[str, float]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLimits:
    """The rules of every rank of a node; None, or a section without an entry, is no rule."""

    startup_seconds: float | None = None
    """From the start of the process to the first word of its client."""
    initial_heartbeat_seconds: float | None = None
    """From the start of the process to its first heartbeat or committed step."""
    heartbeat_seconds: float | None = None
    out_of_section_seconds: float | None = None
    """In none of the sections that have a limit, once the rank has spoken."""
    section_seconds: Mapping[str, float] = field(default_factory=_no_sections)
    warmup_seconds: Mapping[str, float] = field(default_factory=_no_sections)
    """The limit of a section during its first `warmup_iterations` runs in a process."""
    warmup_iterations: int = DEFAULT_WARMUP_ITERATIONS
    safety_factor: float = DEFAULT_SAFETY_FACTOR

    def section_limit(self, name: str, runs: int) -> float | None:
        """The limit of the run number `runs` (from 0) of a section; None when there is none."""
        if runs < self.warmup_iterations and name in self.warmup_seconds:
            return self.warmup_seconds[name]
        return self.section_seconds.get(name)

    @property
    def is_off(self) -> bool:
        """Whether no silence of whatever kind is a hang."""
        single = (
            self.startup_seconds,
            self.initial_heartbeat_seconds,
            self.heartbeat_seconds,
            self.out_of_section_seconds,
        )
        return all(limit is None for limit in single) and not self.section_seconds and not self.warmup_seconds

    def with_timeouts(self, timeouts: Timeouts) -> HangLimits:
        """These rules with calculated ones in their place; where nothing was seen they stay as they were."""
        return replace(
            self,
            initial_heartbeat_seconds=timeouts.initial_heartbeat or self.initial_heartbeat_seconds,
            heartbeat_seconds=timeouts.heartbeat or self.heartbeat_seconds,
            out_of_section_seconds=timeouts.out_of_section or self.out_of_section_seconds,
            section_seconds=MappingProxyType({**self.section_seconds, **timeouts.sections}),
            warmup_seconds=MappingProxyType({**self.warmup_seconds, **timeouts.warmup}),
        )


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Limits calculated from what was seen, in seconds, as a workload gets them and may hand them back."""

    initial_heartbeat: float | None = None
    heartbeat: float | None = None
    out_of_section: float | None = None
    sections: dict[str, float] = {}
    warmup: dict[str, float] = {}

    def problem(self) -> str | None:
        """What is wrong with a value that came from outside; None when it can be used."""
        single = (self.initial_heartbeat, self.heartbeat, self.out_of_section)
        values = [value for value in single if value is not None]
        values += [*self.sections.values(), *self.warmup.values()]
        if any(not _is_limit(value) for value in values):
            return "a time-out is not a number of seconds above 0"
        if any(not name or len(name) > MAX_NAME for name in (*self.sections, *self.warmup)):
            return f"the name of a section is empty or longer than {MAX_NAME} characters"
        return None


Typed = str | float | None


def hang_limits(
    *,
    startup: Typed = None,
    initial_heartbeat: Typed = None,
    heartbeat: Typed = None,
    out_of_section: Typed = None,
    sections: str | None = None,
    warmup: str | None = None,
    warmup_iterations: int = DEFAULT_WARMUP_ITERATIONS,
    safety_factor: float = DEFAULT_SAFETY_FACTOR,
) -> HangLimits:
    """The rules that a user typed. Raises UsageError with one line for each thing that is wrong."""
    problems: list[str] = []
    section_seconds = _parse_sections("section time-outs", sections, problems)
    warmup_seconds = _parse_sections("warm-up time-outs", warmup, problems)
    if _WARMUP in section_seconds:
        of_step = section_seconds.pop(_WARMUP)
        if _STEP in warmup_seconds:
            problems.append(f"the warm-up of {_STEP} is given twice: as section {_WARMUP} and as warm-up time-out")
        warmup_seconds.setdefault(_STEP, of_step)
    if warmup_iterations < 0:
        problems.append(f"warm-up iterations must be 0 or more, not {warmup_iterations}")
    if not (math.isfinite(safety_factor) and safety_factor >= 1):
        problems.append(f"the safety factor must be 1 or more, not {safety_factor:g}")
    limits = HangLimits(
        startup_seconds=_parse_limit("start-up time-out", startup, problems),
        initial_heartbeat_seconds=_parse_limit("initial heartbeat time-out", initial_heartbeat, problems),
        heartbeat_seconds=_parse_limit("heartbeat time-out", heartbeat, problems),
        out_of_section_seconds=_parse_limit("out-of-section time-out", out_of_section, problems),
        section_seconds=MappingProxyType(section_seconds),
        warmup_seconds=MappingProxyType(warmup_seconds),
        warmup_iterations=warmup_iterations,
        safety_factor=safety_factor,
    )
    if problems:
        raise UsageError("\n".join(f"hang detection: {problem}" for problem in problems))
    return limits


def _parse_limit(what: str, typed: Typed, problems: list[str]) -> float | None:
    if typed is None or (isinstance(typed, str) and typed.strip().lower() in _OFF):
        return None
    try:
        seconds = float(typed)
    except ValueError:
        problems.append(f"the {what} must be a number of seconds or off, not {typed!r}")
        return None
    if not _is_limit(seconds):
        problems.append(f"the {what} must be above 0, not {typed}; write off to switch it off")
        return None
    return seconds


def _parse_sections(what: str, typed: str | None, problems: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    if typed is None or typed.strip().lower() in _OFF:
        return found
    for entry in typed.split(","):
        name, colon, seconds = (part.strip() for part in entry.rpartition(":"))
        if not colon or not name:
            problems.append(f"{what} are written name:seconds,name:seconds, not {entry.strip()!r}")
        elif len(name) > MAX_NAME or not name.isprintable():
            problems.append(f"{what}: {name[:MAX_NAME]!r} is no name of a section")
        elif name in found:
            problems.append(f"{what}: {name} is given twice")
        else:
            limit = _parse_limit(f"time-out of section {name}", seconds, problems)
            if limit is not None:
                found[name] = limit
    return found


def _is_limit(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0
