"""One generation as the reading process knows it between passes, and what is new about it. Touches: its files."""

from __future__ import annotations

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_watch.model import LogActivity
from nvrx_watch.reading.cache import SavedGeneration
from nvrx_watch.reading.control import ControlFiles
from nvrx_watch.reading.cycles import CycleFiles
from nvrx_watch.reading.logs import LogReader
from nvrx_watch.reading.messages import CycleRow, GenerationChange


class GenerationFiles:
    """The files of one generation. `control` None: its layout has none that we read."""

    def __init__(self, array_job_id: int, cycles: CycleFiles, control: ControlFiles | None) -> None:
        self.array_job_id = array_job_id
        self.cycles = cycles
        self.control = control
        self._told_log: LogActivity | Unobserved | None = None
        self._told_iterations: tuple[tuple[int, int, int], ...] = ()
        self._newest: list[CycleRow] | None = None

    def save(self) -> SavedGeneration:
        """For the cache file."""
        control = self.control.save() if self.control is not None else None
        return SavedGeneration(array_job_id=self.array_job_id, control=control, cycles=self.cycles.save())

    def restore(self, saved: SavedGeneration) -> None:
        """Take over what an earlier process saved."""
        if saved.cycles is not None:
            self.cycles.restore(saved.cycles)
        if saved.control is not None and self.control is not None:
            self.control.restore(saved.control)

    @property
    def has_unsaved(self) -> bool:
        """Whether the cache file would hold more than when it was last written."""
        return self.cycles.has_unsaved or (self.control is not None and self.control.has_unsaved)

    def mark_saved(self) -> None:
        """The cache file holds all of this."""
        self.cycles.has_unsaved = False
        if self.control is not None:
            self.control.has_unsaved = False

    def read(
        self,
        *,
        is_recent: bool,
        logs: LogReader | None,
        log_directory: str | None,
        log_tails: int,
        owner_uid: int | None,
    ) -> GenerationChange | None:
        """Look again; None when nothing is new. `logs` is given for the newest generation only."""
        # The cycles first: they may run out of time, and what was told before that would be lost.
        cycles = self.cycles.read(always_list=is_recent)
        control = self.control.read(is_recent=is_recent) if self.control is not None else None
        if cycles is not None:
            self._newest = None
        log: LogActivity | Unobserved | None = None
        iterations: tuple[tuple[int, int, int], ...] = ()
        if logs is not None:
            newest = self._newest_rows(log_tails)
            if log_directory is not None:
                log = logs.directory(log_directory, owner_uid, log_tails)
            else:
                log = logs.files([row.log_file for row in newest], owner_uid)
            iterations = _last_iterations(newest, logs, owner_uid)
        is_same_log = (log, iterations) == (self._told_log, self._told_iterations)
        if control is None and cycles is None and is_same_log:
            return None
        self._told_log, self._told_iterations = log, iterations
        return GenerationChange(
            array_job_id=self.array_job_id,
            control=msgspec.msgpack.encode(control) if control is not None else None,
            cycles=cycles,
            log=log,
            iterations=iterations,
        )

    def _newest_rows(self, count: int) -> list[CycleRow]:
        if self._newest is None:
            self._newest = self.cycles.rows()[-count:] if count > 0 else []
        return self._newest


def _last_iterations(rows: list[CycleRow], logs: LogReader, owner_uid: int | None) -> tuple[tuple[int, int, int], ...]:
    found = [(row, logs.last_iteration(row.log_file, owner_uid)) for row in rows if row.log_file]
    return tuple((row.attempt, row.number, iteration) for row, iteration in found if iteration is not None)
