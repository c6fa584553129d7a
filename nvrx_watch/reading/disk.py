"""What the reading process does: one reading of one chain, told message by message.

Touches: the chain's files (reads only) and its cache file.

The state of every chain is kept between readings, so that only what is new is read and told. A reading that runs out of
time stops by itself, keeps and saves what it has, and goes on there the next time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_watch.layout import Layout, OwnLayout
from nvrx_watch.reading.cache import CacheFile
from nvrx_watch.reading.logs import LogReader
from nvrx_watch.reading.messages import Entering, ForgetRequest, Message, NotRead, ReadRequest, ReadSummary, Request
from nvrx_watch.reading.nvrx import NvrxRun
from nvrx_watch.reading.own import OwnRun


class OutOfTime(Exception):
    """The reading has used up its time."""


class DiskReader:
    """Reads chains. A call answers one request; the last message is a summary or says why there is none."""

    def __init__(self, *, cache_directory: Path | None, iteration_pattern: str | None, log_tails: int) -> None:
        self._cache_directory = cache_directory
        self._log_tails = log_tails
        self._notes: list[str] = []
        self._pattern = self._compile(iteration_pattern)
        self._runs: dict[Layout, OwnRun | NvrxRun] = {}
        self._ends_at = 0.0

    def __call__(self, request: Request) -> Iterator[Message]:
        """One reading. Raises nothing for what is on disk."""
        if isinstance(request, ForgetRequest):
            self._runs.pop(request.layout, None)
            return
        self._ends_at = time.monotonic() + request.seconds
        cache = self._cache_of(request) if request.use_cache else None
        run = self._runs.get(request.layout)
        notes: list[str] = []
        if run is None:
            run = self._runs[request.layout] = self._open(request.layout)
            if cache is not None:
                yield Entering(str(cache.path.parent), True)
                notes += _restore(run, cache)
        summary: ReadSummary | None = None
        try:
            for message in run.read(request.adopted) if isinstance(run, OwnRun) else run.read():
                if isinstance(message, ReadSummary):
                    summary = message
                else:
                    yield message
        except OutOfTime:
            notes.append("out of time")
        if cache is not None and any(files.has_unsaved for files in run.generations.values()):
            yield Entering(str(cache.path.parent), True)
            notes += _save(run, cache)
        yield self._end(run, summary, notes, request.seconds)

    def _end(self, run: OwnRun | NvrxRun, summary: ReadSummary | None, notes: list[str], seconds: float) -> Message:
        if summary is None:
            return NotRead(f"reading {run.directories()[0]} takes longer than {seconds:.3g} s; it goes on from there")
        notes = [*self._notes, *run.logs.notes, *notes, *summary.notes]
        return msgspec.structs.replace(summary, notes=tuple(notes))

    def _open(self, layout: Layout) -> OwnRun | NvrxRun:
        logs = LogReader(self._pattern)
        if isinstance(layout, OwnLayout):
            return OwnRun(layout, logs, self._log_tails, self._check_time)
        return NvrxRun(layout, logs, self._log_tails, self._check_time)

    def _cache_of(self, request: ReadRequest) -> CacheFile | None:
        if self._cache_directory is None:
            return None
        return CacheFile(self._cache_directory, repr(request.layout))

    def _check_time(self) -> None:
        if time.monotonic() > self._ends_at:
            raise OutOfTime

    def _compile(self, pattern: str | None) -> re.Pattern[str] | None:
        if pattern is None:
            return None
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            self._notes.append(f"ignoring the iteration pattern: {error}")
            return None
        if compiled.groups != 1:
            self._notes.append("ignoring the iteration pattern: it needs exactly one group")
            return None
        return compiled


def _restore(run: OwnRun | NvrxRun, cache: CacheFile) -> list[str]:
    saved = cache.load()
    if isinstance(saved, Unobserved):
        return [saved.reason]
    if isinstance(run, NvrxRun) and not run.has_place:
        return []
    for each in saved:
        files = run.generations[each.array_job_id] = run.make(each.array_job_id)
        files.restore(each)
    return []


def _save(run: OwnRun | NvrxRun, cache: CacheFile) -> list[str]:
    """Write the cache; a directory that cannot be written to costs time in later passes and nothing else."""
    notes = []
    try:
        cache.store(tuple(files.save() for files in run.generations.values()))
    except RecordError as error:
        notes.append(f"no cache for the next pass: {error}")
    for files in run.generations.values():
        files.mark_saved()
    return notes
