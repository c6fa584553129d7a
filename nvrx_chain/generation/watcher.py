"""A thread that reads the control directory at every poll, and the newest picture of it for the loop that decides.

The loop that steers ranks never reads the shared file system itself: a stalled read would keep it from stopping them.
Touches: the run directory.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.sight import Sight
from nvrx_chain.generation.votes import VoteWatch, lasting_seconds
from nvrx_chain.liveness import LeaseWatch
from nvrx_chain.records import control
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import is_launcher_exit, parse_indexed_name

log = logging.getLogger(__name__)

CROWD = 64
"""Above this many tasks every reader looks half as often, so that the metadata server is not the bottleneck."""

LOOKS_PER_INTERVAL = 4
"""How often within its own interval the lease of a peer is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """One task's lease as this reader sees it: for how long (seconds) its counter has stood still under its eyes.

    It is never more than what was seen, however long a pass takes:

    - It begins when the read that first showed this counter had come back, and ends when the last read that showed it
      began (not later than the pass, which `Snapshot.taken_at` says). Counters only grow, so one that is the same at
      both ends did not move in between, whoever looked away for however long. A lease that cannot be read now counts
      up to the last read that showed it, and no longer.
    - It begins no sooner than the last blindness ended: a gap of more than BLIND_SECONDS in which no read of the
      directory saw anything (see sight). For behind a directory that stalls for everybody every counter stands still,
      and the ranks of its task may go on all the while (see stall). Task 0 excuses nobody unless this reader, too, said
      that one and the same read had not come back; who reads slowly one file after the other never says so. What a
      shorter gap leaves over is taken off by whoever writes this down for a later generation
      (`TaskContext.leases_seen`).
    """

    counter: int
    still_seconds: float
    interval_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The control directory at one moment."""

    taken_at: float
    closed: control.Closed | None = None
    over: control.ChainOutcome | None = None
    later_generation: int | None = None
    rendezvous: control.Rendezvous | None = None
    leases: Mapping[int, LeaseView] = field(default_factory=dict)
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    launcher_exits: tuple[control.LauncherExit, ...] = ()
    no_restart: control.NoRestart | None = None
    walltime: bool = False
    cleared: bool = False
    inquiry: control.Inquiry | None = None
    drained: control.Drained | None = None
    """Of the reader's own task."""
    silenced: tuple[int, ...] = ()

    def live_peers(self) -> tuple[int, ...]:
        """Joined tasks other than task 0 that have not left, lowest index first."""
        return tuple(task for task in self.joined if task != 0 and task not in self.left)

    def lost_hosts(self) -> tuple[int, ...]:
        """Tasks whose launcher ended because it lost the rendezvous host."""
        return tuple(sorted({e.array_task_id for e in self.launcher_exits if e.rendezvous_lost}))


class BoardWatcher:
    """Reads `board` every `interval_seconds`, and all leases when `all_leases`, else task 0's only."""

    def __init__(
        self,
        board: Board,
        chain: ChainFiles,
        clock: Clock,
        interval_seconds: float,
        *,
        all_leases: bool,
        total_tasks: int = 1,
    ) -> None:
        self._board = board
        self._chain = chain
        self._clock = clock
        self._interval = interval_seconds
        self._all_leases = all_leases
        self._watch = LeaseWatch()
        self._lease_due: dict[int, float] = {}
        self._lease_shown_at: dict[int, float] = {}
        """When the last read that showed the lease of a task began."""
        self._names: tuple[str, ...] = ()
        self._exits: dict[str, control.LauncherExit] = {}
        self._drain_ignored = ""
        self._latest = Snapshot(taken_at=clock.monotonic())
        self._sight = Sight(clock, interval_seconds)
        self._votes = VoteWatch(lasting_seconds(total_tasks))
        self._reads_votes = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="board-watcher", daemon=True)

    def start(self) -> None:
        """Read once in this thread, then go on in another."""
        self._latest = self.read()
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; does not wait for a read that hangs."""
        self._stop.set()

    def latest(self) -> Snapshot:
        """The newest picture."""
        return self._latest

    def read_votes(self, wanted: bool) -> None:
        """Whether to look who says that task 0 is silent; for who has a reason to ask.

        In a big array hundreds of such files may lie there for the rest of the generation.
        """
        self._reads_votes = wanted

    def unread_seconds(self) -> float:
        """For how long one single read has not come back. Read by the link, which tells task 0."""
        return self._sight.unread_seconds()

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._interval):
            try:
                self._latest = self.read()
            except Exception:  # noqa: BLE001 - a dead watcher would leave the ranks without anybody to stop them
                log.error("reading the board failed, it is read again\n%s", traceback.format_exc())

    def read(self) -> Snapshot:
        """Read the directory now. Unreadable parts count as absent and are logged where they are read."""
        board, began, see = self._board, self._clock.monotonic(), self._sight.read
        self._sight.begin_pass()
        names = see(lambda: list_names(board.directory.control))
        if isinstance(names, Unobserved):
            # No file of this directory goes away, so what was there is still there.
            log.warning("the board cannot be listed reason=%s", names.reason)
        else:
            self._names = names or ()
        listed = self._names
        joined, left, leased = (_indices(listed, prefix) for prefix in ("joined", "left", "lease"))
        self._read_leases(tuple(task for task in leased if task not in left and (self._all_leases or task == 0)))
        closed = see(board.closed)
        directory = board.directory
        exits = self._read_exits(listed)
        return Snapshot(
            taken_at=began,
            closed=None if isinstance(closed, Unobserved) else closed,
            over=see(self._chain.outcome),
            later_generation=see(lambda: self._chain.later_generation(directory.array_job_id)),
            rendezvous=see(board.rendezvous) if directory.rendezvous.name in listed else None,
            leases=self._views(began),
            joined=joined,
            left=left,
            launcher_exits=exits,
            no_restart=see(board.no_restart) if directory.no_restart.name in listed else None,
            walltime=directory.walltime.name in listed,
            cleared=directory.cleared.name in listed,
            inquiry=see(board.inquiry) if directory.inquiry.name in listed else None,
            drained=self._own_drain(listed),
            silenced=self._read_silenced(listed, frozenset(joined) - {0, *left}, exits),
        )

    def _read_silenced(
        self, listed: tuple[str, ...], live: frozenset[int], exits: tuple[control.LauncherExit, ...]
    ) -> tuple[int, ...]:
        """Who says now that task 0 is silent; () also while fewer ever said so than it takes to close."""
        if not self._reads_votes:
            self._votes.forget()
            return ()
        tasks = _indices(listed, "silence")
        self._votes.note(tasks, self._clock.monotonic())
        lost = {e.array_task_id for e in exits if e.rendezvous_lost}
        if 2 * len({*tasks, *lost} & live) <= len(live):
            return ()
        for task in tasks:
            self._votes.observe(task, self._read_silence(task), self._clock.monotonic())
        return self._votes.silent(self._clock.monotonic())

    def _read_silence(self, task: int) -> control.Silence | None:
        return self._sight.read(lambda: self._board.silence(task))

    def _own_drain(self, listed: tuple[str, ...]) -> control.Drained | None:
        own = self._board.identity.array_task_id
        if self._board.directory.drained(own).name not in listed:
            return None
        found = self._sight.read(lambda: self._board.look_for_drain(own))
        if not isinstance(found, Unobserved):
            return found
        if found.reason != self._drain_ignored:
            # Once: it is read again at every poll.
            log.warning("a drain marker is not believed, this task takes part why=%s", found.reason)
            self._drain_ignored = found.reason
        return None

    def _read_leases(self, tasks: tuple[int, ...]) -> None:
        """Read the leases that can have changed: one that is written once a minute is not worth a look a second."""
        now = self._clock.monotonic()
        due = tuple(task for task in tasks if now >= self._lease_due.get(task, now))
        for task in due:
            self._read_lease(task)
            interval = self._watch.interval(task)
            self._lease_due[task] = now if task == 0 or interval is None else now + interval / LOOKS_PER_INTERVAL

    def _read_lease(self, task: int) -> None:
        began = self._clock.monotonic()
        lease = self._sight.read(lambda: self._board.lease(task))
        if lease is not None:
            self._watch.observe({task: (lease.counter, lease.interval_seconds)}, self._clock.monotonic())
            self._lease_shown_at[task] = began

    def _read_exits(self, listed: tuple[str, ...]) -> tuple[control.LauncherExit, ...]:
        """Each is read once: it is written once, and near the end there is one for every node."""
        exits = {}
        for name in filter(is_launcher_exit, listed):
            found = self._exits.get(name) or self._read_exit(name)
            if found is not None:
                exits[name] = found
        self._exits = exits
        return tuple(exits.values())

    def _read_exit(self, name: str) -> control.LauncherExit | None:
        return self._sight.read(lambda: self._board.launcher_exit(name))

    def _views(self, now: float) -> dict[int, LeaseView]:
        views = {}
        for task in self._watch.tasks():
            until = min(now, self._lease_shown_at[task])
            counter, still, interval = (
                self._watch.counter(task),
                self._watch.still_seconds(task, until),
                self._watch.interval(task),
            )
            if counter is not None and still is not None and interval is not None:
                views[task] = LeaseView(
                    counter=counter,
                    still_seconds=max(0.0, min(still, until - self._sight.since)),
                    interval_seconds=interval,
                )
        return views


def _indices(names: tuple[str, ...], prefix: str) -> tuple[int, ...]:
    parsed = (parse_indexed_name(name) for name in names)
    return tuple(sorted(item[1] for item in parsed if item is not None and item[0] == prefix))
