"""Whether a job still gets anywhere: the checkpoint iteration from one restart to the next. Pure.

Restarts take a third of a second, so one flapping GPU could spend three of them inside one checkpoint interval. A
cycle therefore counts against the job only when it ran long enough to have made a checkpoint; what fails faster ends
with the restart budget, which a person can give again. Times are seconds on the monotonic clock of one process.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace

from nvrx_chain.errors import Unobserved, UsageError

Marker = int | Unobserved | None
"""The checkpoint iteration as it was read: None for no checkpoint."""

DEFAULT_CYCLE_SECONDS = 600.0
"""How long a cycle must have run to count, while no checkpoint interval has been observed."""
KEPT_INTERVALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSettings:
    """When a job is given up."""

    min_iterations: int = 1
    """So many iterations a cycle has to add."""
    max_cycles: int = 3
    """So many counted cycles in a row without that; 0 is never."""
    min_cycle_seconds: float | None = None
    """So long a cycle has to run to count; None is half the observed checkpoint interval."""


def progress_settings(
    *, min_progress_iterations: int = 1, max_no_progress_cycles: int = 3, min_cycle_seconds: float | None = None
) -> ProgressSettings:
    """From what a user typed. Raises UsageError."""
    if min_progress_iterations < 1:
        raise UsageError(f"--min-progress-iterations {min_progress_iterations}", hint="1 or more")
    if max_no_progress_cycles < 0:
        raise UsageError(f"--max-no-progress-cycles {max_no_progress_cycles}", hint="0 is off, else 1 or more")
    if min_cycle_seconds is not None and not 0 <= min_cycle_seconds < math.inf:
        raise UsageError(f"--min-cycle-seconds {min_cycle_seconds}", hint="0 or more seconds")
    return ProgressSettings(
        min_iterations=min_progress_iterations,
        max_cycles=max_no_progress_cycles,
        min_cycle_seconds=min_cycle_seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One that ended: how long its workers ran, and the launcher whose failure ended it ("" for none)."""

    number: int
    ran_seconds: float
    failed_agent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known at a restart; `after` is the next. Begin with `Progress.begin`."""

    baseline: int | None
    """The iteration that the next cycle has to surpass; None while none could be read."""
    count: int = 0
    """Counted cycles in a row without progress."""
    failed_agents: tuple[str, ...] = ()
    """Whose failures ended those cycles."""
    why: str = "nothing has been judged yet"
    """What was made of the last cycle, for the log."""

    @classmethod
    def begin(cls, marker: Marker) -> Progress:
        """The baseline when the job starts. No checkpoint is iteration 0."""
        return cls(baseline=None if isinstance(marker, Unobserved) else marker or 0)

    def after(self, cycle: Cycle, marker: Marker, settings: ProgressSettings, interval: float | None) -> Progress:
        """What is known once a cycle has ended and the marker was read again.

        `interval`: the observed checkpoint interval, None for not yet.
        """
        if marker is None or isinstance(marker, Unobserved):
            why = "there is no checkpoint" if marker is None else marker.reason
            return replace(self, why=f"not judged: {why}")
        if self.baseline is None:
            return replace(self, baseline=marker, why=f"not judged: iteration {marker} is the first that could be read")
        added = marker - self.baseline
        if added >= settings.min_iterations:
            return Progress(baseline=marker, why=f"{added} iterations were added")
        if marker == 0 and self.baseline == 0:
            return replace(self, why="not judged: there has been no checkpoint yet")
        # A marker that went back is where training goes on from: measured by the old one it would never advance again.
        baseline = min(marker, self.baseline)
        needed = minimum_seconds(settings, interval)
        if cycle.ran_seconds < needed:
            why = f"not counted: it ran {cycle.ran_seconds:.1f} s, and {needed:g} s are a fair chance"
            return replace(self, baseline=baseline, why=why)
        failed = (*self.failed_agents, cycle.failed_agent) if cycle.failed_agent else self.failed_agents
        count = self.count + 1
        why = f"no progress at iteration {marker}, {count} of {settings.max_cycles} cycles in a row"
        return Progress(baseline=marker, count=count, failed_agents=failed, why=why)

    def is_spent(self, settings: ProgressSettings) -> bool:
        """Whether another start would be useless, as far as the marker tells."""
        return 0 < settings.max_cycles <= self.count


def minimum_seconds(settings: ProgressSettings, interval: float | None) -> float:
    """How long a cycle has to run to count."""
    if settings.min_cycle_seconds is not None:
        return settings.min_cycle_seconds
    return DEFAULT_CYCLE_SECONDS if interval is None else interval / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIntervals:
    """How often the marker changes while one and the same cycle trains, by when each change was seen.

    The first change of a cycle begins an interval and ends none: what lies before it holds a restart.
    """

    cycle: int = -1
    value: int | None = None
    changed_at: float | None = None
    """Of the last change in this cycle."""
    seconds: tuple[float, ...] = field(default=())

    def seen(self, cycle: int, marker: Marker, at: float) -> CheckpointIntervals:
        """The marker was read while this cycle trained."""
        if not isinstance(marker, int):
            return self
        if cycle != self.cycle:
            return replace(self, cycle=cycle, value=marker, changed_at=None)
        if marker == self.value:
            return self
        seconds = self.seconds
        if self.changed_at is not None and self.value is not None and marker > self.value:
            seconds = (*seconds, at - self.changed_at)[-KEPT_INTERVALS:]
        return replace(self, value=marker, changed_at=at, seconds=seconds)

    @property
    def interval(self) -> float | None:
        """The median of the last ones, seconds; None while there is none."""
        return statistics.median(self.seconds) if self.seconds else None
