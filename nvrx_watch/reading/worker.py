"""RunReader: the files of chains, read in a child process that may hang.

Touches: that child process and /proc, never a file of a chain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_watch.layout import Layout, OwnLayout
from nvrx_watch.reading.child import ChildGone, ChildLate, ReadingChild, Serve
from nvrx_watch.reading.collector import collector_paused
from nvrx_watch.reading.disk import DiskReader
from nvrx_watch.reading.messages import Entering, ForgetRequest, GenerationChange, NotRead, ReadRequest, ReadSummary
from nvrx_watch.reading.mounts import mount_of, read_mount_points
from nvrx_watch.reading.view import RunView
from nvrx_watch.reading_model import RunReading

log = logging.getLogger(__name__)

_MOST_ABANDONED = 8
"""Children that sleep in the kernel at once; with so many, all that is left is to wait."""
_OWN_SHARE = 0.8
"""The child stops by itself after so much of the deadline: then what it has read is not lost, as it is with a kill."""


class _Abandoned(msgspec.Struct, frozen=True, kw_only=True):
    """A child that gave no answer: whom it was to read, where it was then, and since when."""

    child: ReadingChild
    layout: Layout
    entered: Entering
    since: float


class RunReader:
    """Reads any number of chains, one after the other, through one child process. Not for several threads at once."""

    def __init__(
        self,
        *,
        cache_directory: Path | None,
        iteration_pattern: str | None = None,
        log_tails: int = 8,
        serve: Callable[[], Serve] | None = None,
        child: Callable[[Serve], ReadingChild] = ReadingChild,
    ) -> None:
        """`iteration_pattern` is a regular expression with one group. `serve` makes a stand-in for the disk."""

        def read_disk() -> Serve:
            return DiskReader(cache_directory=cache_directory, iteration_pattern=iteration_pattern, log_tails=log_tails)

        self._serve = serve or read_disk
        self._fork = child
        self._child: ReadingChild | None = None
        self._abandoned: list[_Abandoned] = []
        self._views: dict[Layout, RunView] = {}

    @property
    def child_pid(self) -> int | None:
        """The process that reads, None while there is none."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Fork the child now: a daemon does so before it starts threads."""
        if self._child is None:
            self._child = self._fork(self._serve())
            # A new child knows nothing of what was told before, and tells everything.
            self._views.clear()

    def read(
        self, layout: Layout, *, deadline_seconds: float, adopted: tuple[tuple[int, int], ...] = ()
    ) -> RunReading | Unobserved:
        """All that is on disk about a chain, else why it is not known by the deadline. Raises nothing for a file.

        `adopted` are (array job id, sequence) of generations that the queue alone knows to be the chain's.
        """
        self._abandoned = [each for each in self._abandoned if not each.child.is_gone()]
        blocked = self._blocked(layout)
        if blocked is not None:
            return blocked
        was_running = self._child is not None
        with collector_paused():
            answer = self._ask(layout, deadline_seconds, adopted)
            if answer is None and was_running:
                # It died between two passes: the next one has done nothing wrong yet.
                answer = self._ask(layout, deadline_seconds, adopted)
        return answer if answer is not None else Unobserved(f"the process that reads {_directories(layout)[0]} died")

    def forget(self, layout: Layout) -> None:
        """Keep nothing of a chain that is not read any more, here and in the child."""
        self._views.pop(layout, None)
        if self._child is None:
            return
        try:
            self._child.tell(ForgetRequest(layout=layout))
        except ChildGone as error:
            # The next reading starts another child, which knows of nothing.
            log.info("the reading process was not told to forget pid=%s error=%s", self._child.pid, error)

    def close(self) -> None:
        """End the child, those that hang too, without waiting for what cannot be ended."""
        if self._child is not None and not self._child.end():
            log.warning("a reading process cannot be ended pid=%s", self._child.pid)
        self._child = None
        for each in self._abandoned:
            if not each.child.is_gone():
                log.warning("a reading process hangs pid=%s directory=%s", each.child.pid, each.entered.directory)
        self._abandoned = []

    def _blocked(self, layout: Layout) -> Unobserved | None:
        """Why nothing is read at all: a child that hangs on this chain's files, or on their mount, gets no company."""
        points = read_mount_points() if self._abandoned else ()
        mounts = {mount_of(directory, points) for directory in _directories(layout)} - {None}
        for each in self._abandoned:
            is_ours = each.layout == layout or mount_of(each.entered.directory, points) in mounts
            if (is_ours and not each.entered.is_cache) or len(self._abandoned) >= _MOST_ABANDONED:
                seconds = time.monotonic() - each.since
                return Unobserved(f"still waiting for {each.entered.directory}, for {seconds:.0f} s now")
        return None

    def _ask(
        self, layout: Layout, seconds: float, adopted: tuple[tuple[int, int], ...]
    ) -> RunReading | Unobserved | None:
        """One attempt; None when the child died."""
        ends_at = time.monotonic() + seconds
        self.start()
        child = self._child
        assert child is not None
        use_cache = not any(each.entered.is_cache for each in self._abandoned)
        request = ReadRequest(layout=layout, seconds=seconds * _OWN_SHARE, use_cache=use_cache, adopted=adopted)
        view = self._views.get(layout)
        if view is None:
            view = self._views[layout] = RunView()
        entered = Entering(_directories(layout)[0])
        try:
            for message in child.ask(request, ends_at):
                if isinstance(message, Entering):
                    entered = message
                elif isinstance(message, GenerationChange):
                    view.apply(message)
                elif isinstance(message, ReadSummary):
                    return view.reading(message)
                elif isinstance(message, NotRead):
                    return Unobserved(message.reason)
        except ChildLate:
            self._abandon(layout, entered)
            return Unobserved(f"reading {entered.directory} gave no answer within {seconds:.3g} s")
        except (ChildGone, msgspec.DecodeError) as error:
            log.warning("the reading process died pid=%s error=%s", child.pid, error)
            self._abandon(layout, entered)
        return None

    def _abandon(self, layout: Layout, entered: Entering) -> None:
        """End a child; one that cannot be ended is left behind, to be looked at again before the next reading."""
        child, self._child = self._child, None
        if child is not None and not child.end():
            since = time.monotonic()
            self._abandoned.append(_Abandoned(child=child, layout=layout, entered=entered, since=since))


def _directories(layout: Layout) -> tuple[str, ...]:
    """Where a chain's files lie, by its layout alone; the first is for messages."""
    if isinstance(layout, OwnLayout):
        return (str(layout.run_directory),)
    places = (layout.cycle_info_glob, layout.work_directory, layout.iteration_file)
    return tuple(str(place) for place in places if place is not None) or ("the directories of the chain",)
