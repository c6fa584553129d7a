"""The workers of one node: the ranks of this round and those parked for the next. Touches: processes.

It keeps no thread and never waits: the agent's selector watches the descriptors of `watched`, calls `look` when one is
readable or `deadline` is reached, and takes what happened from it.
"""

from __future__ import annotations

import logging
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher.environment import MARK
from nvrx_chain.launcher.handlers import handles_signal
from nvrx_chain.launcher.orphans import end_orphans
from nvrx_chain.launcher.workers import EntryPoint, Preload, Worker, park, start_cold

log = logging.getLogger(__name__)

UNKILLABLE_SECONDS = 30.0
"""A killed process that is still there then sits in the kernel: the node is sick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnded:
    """A rank has ended by itself. `code` is negative for a signal."""

    local_rank: int
    pid: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllStopped:
    """Every rank that was to be ended is gone, after so many seconds."""

    seconds: float
    killed: int
    """How many did not end by themselves in the grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unkillable:
    """These processes did not die of SIGKILL."""

    pids: tuple[int, ...]


Happened = RankEnded | AllStopped | Unkillable


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How the workers of a node are started."""

    entry: EntryPoint
    warm: bool
    preload: tuple[str, ...]
    environments: tuple[Mapping[str, str], ...]
    """By local rank."""
    prefixes: tuple[tuple[str, ...], ...] = ()
    """Words before the command, by local rank, such as numactl's."""
    capture_output: bool = False


@dataclass(slots=True)
class _Stop:
    began_at: float
    kill_at: float
    killed: int = 0
    was_killed: bool = False
    was_told: bool = False


@dataclass(slots=True)
class _Ranks:
    workers: dict[int, Worker] = field(default_factory=dict)
    changed: dict[int, Mapping[str, str]] = field(default_factory=dict)


class Outputs(Protocol):
    """Who reads what workers write."""

    def adopt(self, worker: Worker, *, is_rank: bool) -> None:
        """It was started, as a rank or to be parked."""

    def become(self, worker: Worker) -> None:
        """It was parked and is about to be told that it is a rank."""


class NoOutputs:
    """Workers that write where the launcher itself does."""

    def adopt(self, worker: Worker, *, is_rank: bool) -> None:
        """Nothing to do."""

    def become(self, worker: Worker) -> None:
        """Nothing to do."""


class Pool:
    """See the module."""

    def __init__(self, settings: PoolSettings, outputs: Outputs | None = None) -> None:
        self._settings = settings
        self._outputs = outputs or NoOutputs()
        self._ranks = _Ranks()
        self._parked: dict[int, Worker] = {}
        self._stop: _Stop | None = None
        self._sessions: set[int] = set()
        """Pids of the ranks of this round: each leads a session, which its children share."""
        self._warm = settings.warm and not settings.entry.no_python
        self._mark = next(f"{MARK}={environment[MARK]}" for environment in settings.environments)

    @property
    def size(self) -> int:
        """Ranks of this node."""
        return len(self._settings.environments)

    @property
    def ranks(self) -> Mapping[int, Worker]:
        """The ranks that have not been seen to end, by local rank."""
        return self._ranks.workers

    @property
    def parked_ready(self) -> int:
        """How many could become ranks at once."""
        return sum(worker.preload is Preload.READY for worker in self._parked.values())

    def workers(self) -> list[Worker]:
        """Ranks and parked ones."""
        return [*self._ranks.workers.values(), *self._parked.values()]

    def watched(self) -> list[int]:
        """Descriptors whose readability means that `look` has something to find."""
        workers = self.workers()
        controls = [worker.control.fileno() for worker in workers if worker.control is not None]
        return [*(worker.descriptor for worker in workers), *controls]

    def deadline(self) -> float | None:
        """When `look` is due, on the monotonic clock, also if nothing is readable."""
        return None if self._stop is None else self._stop.kill_at

    def park_missing(self) -> None:
        """Start parked workers where there is none."""
        for local_rank in range(self.size):
            if self._warm and local_rank not in self._parked:
                self._park(local_rank)

    def _park(self, local_rank: int) -> None:
        settings = self._settings
        try:
            worker = park(
                settings.entry,
                settings.preload,
                settings.environments[local_rank],
                local_rank,
                self._prefix(local_rank),
                capture_output=settings.capture_output,
            )
        except NvrxError as error:
            self._give_up_warm(str(error))
            return
        self._parked[local_rank] = worker
        self._outputs.adopt(worker, is_rank=False)

    def _prefix(self, local_rank: int) -> Sequence[str]:
        return self._settings.prefixes[local_rank] if self._settings.prefixes else ()

    def start(self, changed: Sequence[Mapping[str, str]]) -> None:
        """Start all ranks; `changed` by local rank is what the round adds to the environment. Raises NvrxError."""
        assert not self._ranks.workers
        self._stop = None
        self._end_orphans()  # also those whose parent was still dying when the ranks were gone
        self._sessions.clear()
        for local_rank, words in enumerate(changed):
            self._ranks.changed[local_rank] = words
            parked = self._parked.pop(local_rank, None)
            if parked is None:
                self._start_cold(local_rank)
                continue
            self._ranks.workers[local_rank] = parked
            self._sessions.add(parked.pid)
            self._outputs.become(parked)
            parked.release(self._settings.entry, words, ())

    def _start_cold(self, local_rank: int) -> None:
        settings = self._settings
        environment = {**settings.environments[local_rank], **self._ranks.changed[local_rank]}
        worker = start_cold(
            settings.entry,
            environment,
            local_rank,
            self._prefix(local_rank),
            capture_output=settings.capture_output,
        )
        self._ranks.workers[local_rank] = worker
        self._sessions.add(worker.pid)
        self._outputs.adopt(worker, is_rank=True)

    def stop(self, grace_seconds: float) -> None:
        """Ask all ranks to end, and see to it after the grace. A second call can only shorten the first one's."""
        now = time.monotonic()
        if self._stop is None:
            self._stop = _Stop(began_at=now, kill_at=now + grace_seconds)
        self._stop.kill_at = min(self._stop.kill_at, now + grace_seconds)
        if grace_seconds > 0 and not self._stop.was_told:
            self._stop.was_told = True
            for worker in self._ranks.workers.values():
                worker.signal_group(signal.SIGTERM)
                # A process that is stopped takes no other signal than this one and KILL.
                worker.signal_group(signal.SIGCONT)

    def signal_ranks(self, number: signal.Signals) -> None:
        """Hand a signal to the ranks that have a handler for it; it would end the others."""
        for worker in self._ranks.workers.values():
            if handles_signal(worker.pid, number):
                worker.process.send_signal(number)

    def look(self) -> list[Happened]:
        """What happened since the last time."""
        self._look_at_parked()
        found: list[Happened] = []
        for worker in list(self._ranks.workers.values()):
            worker.hear()
            if worker.has_ended():
                found += self._take_ended(worker)
        if self._stop is not None:
            found += self._go_on_stopping(self._stop)
        return found

    def _look_at_parked(self) -> None:
        for local_rank, worker in list(self._parked.items()):
            before = worker.preload
            worker.hear()
            if worker.preload is Preload.READY and before is not Preload.READY:
                seconds = time.monotonic() - worker.started_at
                log.info("a worker is parked local_rank=%s seconds=%.1f", local_rank, seconds)
            if worker.preload is Preload.FAILED or worker.has_ended():
                del self._parked[local_rank]
                self._give_up_warm(worker.why_failed or "it ended")
                _end(worker)

    def _give_up_warm(self, why: str) -> None:
        if self._warm:
            log.warning("workers are not parked any more, restarts start cold reason=%s", why)
        self._warm = False

    def _take_ended(self, worker: Worker) -> list[Happened]:
        del self._ranks.workers[worker.local_rank]
        pid, was_rank = worker.pid, worker.preload is Preload.TAKEN
        code = worker.reap()
        if self._stop is not None:
            self._stop.killed += self._stop.was_killed
            return []
        if not was_rank:
            # It never ran a line of the user's: a cold one takes its place, in the same round.
            self._give_up_warm(worker.why_failed or f"it ended with {code}")
            self._start_cold(worker.local_rank)
            return []
        return [RankEnded(local_rank=worker.local_rank, pid=pid, code=code)]

    def _go_on_stopping(self, stop: _Stop) -> list[Happened]:
        now = time.monotonic()
        if not self._ranks.workers:
            self._stop = None
            left = self._end_orphans()
            if left:
                return [Unkillable(pids=tuple(left))]
            return [AllStopped(seconds=now - stop.began_at, killed=stop.killed)]
        if now < stop.kill_at:
            return []
        if stop.was_killed:
            self._stop = None
            return [Unkillable(pids=tuple(worker.pid for worker in self._ranks.workers.values()))]
        stop.was_killed, stop.kill_at = True, now + UNKILLABLE_SECONDS
        for worker in self._ranks.workers.values():
            worker.signal_group(signal.SIGKILL)
        return []

    def _end_orphans(self) -> list[int]:
        return end_orphans(self._mark, {worker.pid for worker in self.workers()}, self._sessions)

    def close(self) -> None:
        """Kill everything that is left."""
        for worker in self.workers():
            _end(worker)
        self._parked.clear()
        self._ranks.workers.clear()
        self._end_orphans()


def _end(worker: Worker) -> None:
    worker.signal_group(signal.SIGKILL)
    ended, _, _ = select.select([worker.descriptor], [], [], UNKILLABLE_SECONDS)
    if ended:
        worker.reap()
    else:
        log.error("a worker cannot be killed pid=%s", worker.pid)
