"""Cycles in bulk for the tests: rows of them, a sequence that counts who looks, and hostile ones for hypothesis."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, overload

from hypothesis import strategies as st

from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.registry import run_detectors
from nvrx_watch.model import Cycle, Finding, Generation, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import NOW, blind, cycle, foreign_subject, generations, queue, running_generation, snapshot
from tests.unit.watch.build import sources as sources_of


def row_of(
    count: int, *, each: float = 100, newest_ended: float = 50, first: int = 0, **overrides: Any
) -> tuple[Cycle, ...]:
    """Closed cycles back to back, in order: each `each` seconds long, the newest ended `newest_ended` seconds ago."""
    made = []
    for place in range(count):
        ended = newest_ended + (count - 1 - place) * each
        made.append(cycle(first + place, started=ended + each, ended=ended, **overrides))
    return tuple(made)


def with_cycles(*cycles: Cycle, **overrides: Any) -> Snapshot:
    """The healthy chain, whose running generation has these cycles."""
    return snapshot(**{"generations": generations(g11=running_generation(11, cycles=cycles)), **overrides})


def named(detectors: Sequence[Detector], name: str) -> Detector:
    """One detector of a room."""
    return next(one for one in detectors if one.name == name)


def found(detector: Detector, seen: Snapshot, limits: WatchThresholds | None = None) -> tuple[Finding, ...]:
    """What a detector finds when it is run as in a pass. It must be neither skipped nor broken."""
    run = run_detectors(seen, limits or WatchThresholds(), (), (detector,))
    assert not run.skipped
    assert not run.broken
    return run.findings


def skips_without(detector: Detector, source: Source, seen: Snapshot) -> bool:
    """Whether the detector is skipped, and finds nothing, while the source could not be observed."""
    run = run_detectors(seen, WatchThresholds(), (), (detector,))
    return detector.name in run.skipped and not run.findings and source in detector.needs


def steers_nobody(finding: Finding) -> bool:
    """Whether no text of a finding can move a terminal's cursor, hide or reorder what follows, or break an encoder."""
    text = "".join((finding.scope, finding.title, *finding.details, finding.advice))
    return not any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in text)


class CountingCycles(Sequence[Cycle]):
    """A long row of cycles of which each is made when it is looked at, and counted."""

    def __init__(self, length: int, template: Cycle) -> None:
        self._length = length
        self._template = template
        self.touched = 0

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Cycle: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Cycle, ...]: ...
    def __getitem__(self, index: int | slice) -> Cycle | tuple[Cycle, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(self._length)))
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(index)
        self.touched += 1
        one = self._template
        return Cycle(
            attempt=one.attempt,
            number=place,
            started_at=one.started_at,
            ended_at=one.ended_at,
            active_nodes=one.active_nodes,
            standby_nodes=one.standby_nodes,
            log_file=one.log_file,
            last_iteration=one.last_iteration,
        )


_AWARE = st.datetimes(timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=14))]))
TIMES = st.one_of(
    st.none(),
    st.just(NOW),
    st.datetimes(),
    _AWARE,
    st.integers(-4_000, 4_000).map(lambda seconds: NOW - timedelta(seconds=seconds)),
    st.sampled_from([datetime.min, datetime.max, datetime.max.replace(tzinfo=timezone.utc)]),
)
"""No time, the present, the far past and future, with and without a zone."""

NAMES = st.one_of(st.sampled_from(["n1", "n2", "n3", "n4"]), st.text(max_size=5))
NUMBERS = st.one_of(st.none(), st.integers(-(10**18), 10**18), st.integers(95, 105))


@st.composite
def hostile_cycles(draw: st.DrawFn) -> Cycle:
    """A well-formed cycle whose every value may be absurd."""
    return Cycle(
        attempt=draw(st.integers(0, 3)),
        number=draw(st.integers(-1, 10**9)),
        started_at=draw(TIMES),
        ended_at=draw(TIMES),
        active_nodes=tuple(draw(st.lists(NAMES, max_size=4))),
        standby_nodes=tuple(draw(st.lists(NAMES, max_size=2))),
        log_file=draw(st.text(max_size=20)),
        last_iteration=draw(NUMBERS),
    )


@st.composite
def hostile_snapshots(draw: st.DrawFn) -> Snapshot:
    """A chain of ours or a foreign one whose generations have hostile cycles, or none that could be read."""
    rows: st.SearchStrategy[Any] = st.one_of(
        st.none(), st.just(blind()), st.lists(hostile_cycles(), max_size=8).map(tuple)
    )
    runs: Generation = running_generation(11, cycles=draw(rows))
    values: dict[str, Any] = {
        "generations": generations(g10=running_generation(10, cycles=draw(rows)), g11=runs),
        "iteration": draw(st.one_of(st.none(), st.just(blind()), st.integers(-1, 10**15))),
        "queue": draw(st.sampled_from([queue(), queue(arrays={}), blind()])),
        "file_clock_ahead_seconds": draw(st.one_of(st.none(), st.floats(0, 1e12))),
        "sources": sources_of(notes=draw(st.lists(st.text(max_size=20), max_size=12))),
    }
    if draw(st.booleans()):
        values["subject"] = foreign_subject(max_restarts=draw(NUMBERS))
    return snapshot(**values)
