"""Reading the directories of a chain that nvrx-chain did not submit. Touches: those directories, reads only.

A generation is an array job id that stands where the glob has its `*`; the order of the ids is taken for that of the
generations. Slurm's counter wraps after many millions of jobs, so that two generations lie across that is not expected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from nvrx_chain.errors import Unobserved
from nvrx_watch.layout import ARRAY_JOB_WILDCARD, NvrxLayout
from nvrx_watch.model import Unavailable
from nvrx_watch.reading.cycles import CycleFiles
from nvrx_watch.reading.directory import job_id_of, list_directory
from nvrx_watch.reading.generation import GenerationFiles
from nvrx_watch.reading.logs import LogReader
from nvrx_watch.reading.messages import Entering, GenerationChange, KnownDirectory, Message, ReadSummary
from nvrx_watch.reading.space import can_create, free_bytes
from nvrx_watch.reading.tracker import read_tracker


class NvrxRun:
    """One chain of NVRx's own layout between passes."""

    def __init__(self, layout: NvrxLayout, logs: LogReader, log_tails: int, check_time: Callable[[], None]) -> None:
        self._layout = layout
        self.logs = logs
        self._log_tails = log_tails
        self._check_time = check_time
        self._place = _split_glob(layout.cycle_info_glob) if layout.cycle_info_glob is not None else None
        self.generations: dict[int, GenerationFiles] = {}

    def directories(self) -> tuple[str, ...]:
        """Where it reads, the most telling first."""
        places = [self._place.base] if self._place is not None else []
        places += [str(path) for path in (self._layout.work_directory, self._layout.iteration_file) if path is not None]
        return tuple(places or ["the directories of the chain"])

    @property
    def has_place(self) -> bool:
        """Whether it is known where the cycle records lie."""
        return self._place is not None

    def make(self, array_job_id: int) -> GenerationFiles:
        """What is known of one generation before anything was read."""
        assert self._place is not None
        directory = self._place.directory(array_job_id)
        cycles = CycleFiles(directory, array_job_id, self._layout.owner_uid, self._check_time)
        return GenerationFiles(array_job_id, cycles, None)

    def read(self) -> Iterator[Message]:
        """Everything that is new, the summary last."""
        yield Entering(self.directories()[0])
        found = self._find()
        if not isinstance(found, Unobserved):
            yield from self._read_generations(found)
        iteration: int | Unobserved | None = Unavailable("no checkpoint iteration file is known")
        if self._layout.iteration_file is not None:
            yield Entering(str(self._layout.iteration_file.parent))
            iteration = read_tracker(self._layout.iteration_file)
        work = self._layout.work_directory
        yield ReadSummary(
            generations=found if isinstance(found, Unobserved) else tuple(_known(*each) for each in enumerate(found)),
            iteration=iteration,
            can_write=can_create(work, self._layout.owner_uid) if work is not None else None,
            free_bytes=free_bytes(work) if work is not None else None,
        )

    def _find(self) -> list[int] | Unobserved:
        """The array job ids, in order."""
        if self._layout.cycle_info_glob is None:
            return []
        if self._place is None:
            return Unobserved(
                f"{self._layout.cycle_info_glob[:200]!r} has no {ARRAY_JOB_WILDCARD} for the array job id"
            )
        names = list_directory(self._place.base)
        if isinstance(names, Unobserved):
            return names
        matches = [match for name in names or () if (match := self._place.component.fullmatch(name)) is not None]
        return sorted({job for match in matches if (job := job_id_of(match[1])) is not None})

    def _read_generations(self, found: list[int]) -> Iterator[GenerationChange]:
        for gone in self.generations.keys() - set(found):
            del self.generations[gone]
        for array_job_id in found:
            self._check_time()
            if array_job_id not in self.generations:
                self.generations[array_job_id] = self.make(array_job_id)
            is_newest = array_job_id == found[-1]
            change = self.generations[array_job_id].read(
                is_recent=is_newest,
                logs=self.logs if is_newest else None,
                log_directory=None,
                log_tails=self._log_tails,
                owner_uid=self._layout.owner_uid,
            )
            if change is not None:
                yield change


class _Place:
    """Where the cycle records of an array job lie: base, the component with its id, and what comes below."""

    def __init__(self, base: str, component: str, below: str) -> None:
        before, _, after = component.partition(ARRAY_JOB_WILDCARD)
        self.base = base
        self.component = re.compile(re.escape(before) + r"(\d{1,18})" + re.escape(after), re.ASCII)
        self._words = (before, after)
        self._below = below

    def directory(self, array_job_id: int) -> str:
        before, after = self._words
        return os.path.join(self.base, f"{before}{array_job_id}{after}", self._below)


def _split_glob(glob: str) -> _Place | None:
    """The place that a glob names; None when no directory in it has the `*` of the array job id."""
    parts = Path(glob).parts
    for position, part in enumerate(parts[:-1]):
        if part.count(ARRAY_JOB_WILDCARD) == 1 and position > 0:
            below = os.path.join("", *parts[position + 1 : -1])
            return _Place(os.path.join(*parts[:position]), part, below) if ARRAY_JOB_WILDCARD not in below else None
    return None


def _known(position: int, array_job_id: int) -> KnownDirectory:
    return KnownDirectory(array_job_id=array_job_id, sequence=position, submitted_at=None, has_directory=True)
