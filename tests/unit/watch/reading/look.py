"""Reading in tests: with a deadline that no machine misses, and with the types narrowed."""

from __future__ import annotations

from collections.abc import Sequence

from nvrx_watch.layout import Layout
from nvrx_watch.model import Cycle, Generation
from nvrx_watch.reading.worker import RunReader
from nvrx_watch.reading_model import RunReading

DEADLINE = 60.0


def read(reader: RunReader, layout: Layout) -> RunReading:
    reading = reader.read(layout, deadline_seconds=DEADLINE)
    assert isinstance(reading, RunReading), reading
    return reading


def generations(reading: RunReading) -> tuple[Generation, ...]:
    assert isinstance(reading.generations, tuple), reading.generations
    return reading.generations


def cycles(generation: Generation) -> tuple[Cycle, ...]:
    assert isinstance(generation.cycles, Sequence), generation.cycles
    return tuple(generation.cycles)
