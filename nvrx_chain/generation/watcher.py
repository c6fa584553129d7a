"""A thread that reads the control directory at every poll, and the newest picture of it for the loop that decides.

The loop that steers ranks never reads the shared file system itself: a stalled read would keep it from stopping them.
Touches: the run directory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.board import Board
from nvrx_chain.liveness import LeaseWatch
from nvrx_chain.records import control
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import parse_indexed_name

log = logging.getLogger(__name__)

CROWD = 64
"""Above this many tasks every reader looks half as often, so that the metadata server is not the bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """One task's lease as this reader sees it: for how long (seconds) its counter has stood still."""

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

    def live_peers(self) -> tuple[int, ...]:
        """Joined tasks other than task 0 that have not left, lowest index first."""
        return tuple(task for task in self.joined if task != 0 and task not in self.left)

    def lost_hosts(self) -> tuple[int, ...]:
        """Tasks whose launcher ended because it lost the rendezvous host."""
        return tuple(sorted({e.array_task_id for e in self.launcher_exits if e.rendezvous_lost}))


class BoardWatcher:
    """Reads `board` every `interval_seconds`, and all leases when `all_leases`, else task 0's only."""

    def __init__(
        self, board: Board, chain: ChainFiles, clock: Clock, interval_seconds: float, *, all_leases: bool
    ) -> None:
        self._board = board
        self._chain = chain
        self._clock = clock
        self._interval = interval_seconds
        self._all_leases = all_leases
        self._watch = LeaseWatch()
        self._latest = Snapshot(taken_at=clock.monotonic())
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

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._interval):
            self._latest = self.read()

    def read(self) -> Snapshot:
        """Read the directory now. Unreadable parts count as absent and are logged where they are read."""
        board = self._board
        names = list_names(board.directory.control)
        listed = names if isinstance(names, tuple) else ()
        joined, left, leased = (_indices(listed, prefix) for prefix in ("joined", "left", "lease"))
        now = self._clock.monotonic()
        tasks = leased if self._all_leases else tuple(task for task in leased if task == 0)
        self._watch.observe(board.leases(tuple(task for task in tasks if task not in left)), now)
        closed = board.closed()
        return Snapshot(
            taken_at=now,
            closed=None if isinstance(closed, Unobserved) else closed,
            over=self._chain.outcome(),
            later_generation=self._chain.later_generation(board.directory.array_job_id),
            rendezvous=board.rendezvous() if board.directory.rendezvous.name in listed else None,
            leases=self._views(now),
            joined=joined,
            left=left,
            launcher_exits=board.launcher_exits() if any(n.startswith("launcher_exit.") for n in listed) else (),
            no_restart=board.no_restart() if board.directory.no_restart.name in listed else None,
            walltime=board.directory.walltime.name in listed,
            cleared=board.directory.cleared.name in listed,
        )

    def _views(self, now: float) -> dict[int, LeaseView]:
        views = {}
        for task in self._watch.tasks():
            counter, still, interval = (
                self._watch.counter(task),
                self._watch.still_seconds(task, now),
                self._watch.interval(task),
            )
            if counter is not None and still is not None and interval is not None:
                views[task] = LeaseView(counter=counter, still_seconds=still, interval_seconds=interval)
        return views


def _indices(names: tuple[str, ...], prefix: str) -> tuple[int, ...]:
    parsed = (parse_indexed_name(name) for name in names)
    return tuple(sorted(item[1] for item in parsed if item is not None and item[0] == prefix))
