"""The ranks of one node with all that belongs to them: workers, their output, the monitor, what they write of failures.

Touches: what the pool, the monitor and the logs touch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nvrx_chain.launcher.capture import Target
from nvrx_chain.launcher.environment import STARTED_AT, World, round_environment
from nvrx_chain.launcher.error_files import VARIABLE, ErrorFiles
from nvrx_chain.launcher.events import Cause
from nvrx_chain.launcher.log_pipes import Tap
from nvrx_chain.launcher.monitor import Monitor
from nvrx_chain.launcher.node import StartWorkers
from nvrx_chain.launcher.node_logs import NodeLogs
from nvrx_chain.launcher.pool import Happened, Pool, PoolSettings, RankEnded
from nvrx_chain.launcher.signs import DumpFile, Hung
from nvrx_chain.launcher.workers import Worker


class Ranks:
    """See the module. `pool` is for what concerns the processes alone."""

    def __init__(
        self, settings: PoolSettings, world: World, logs: NodeLogs | None, make_monitor: Callable[[], Monitor]
    ) -> None:
        self.pool = Pool(settings, self)
        self._world = world
        self._logs = logs
        self._errors = ErrorFiles()
        self._monitor = make_monitor()
        self._taps: dict[int, Tap] = {}
        self.seat: StartWorkers | None = None
        """Where ranks were started last."""

    def adopt(self, worker: Worker, *, is_rank: bool) -> None:
        """A process was started: read its output."""
        if self._logs is None or worker.output is None:
            return
        seat = (*self._numbers(worker.local_rank), self._world.size) if is_rank else None
        self._taps[worker.pid] = self._logs.attach(worker.output, rank=seat)

    def become(self, worker: Worker) -> None:
        """A parked process is about to be a rank."""
        tap = self._taps.get(worker.pid)
        if tap is not None:
            tap.assign(*self._numbers(worker.local_rank), self._world.size)

    def _numbers(self, local_rank: int) -> tuple[int, int]:
        return (0 if self.seat is None else self.seat.round), self.number(local_rank)

    def number(self, local_rank: int) -> int:
        """The rank in the world."""
        group_rank = 0 if self.seat is None else self.seat.group_rank
        return group_rank * self._world.procs_per_node + local_rank

    def start(self, seat: StartWorkers) -> None:
        """Start all ranks of this node. Raises NvrxError."""
        self.seat = seat
        self._errors.begin(seat.round)
        sockets = self._monitor.new_cycle(seat.round)
        at = time.monotonic()
        self.pool.start(
            [
                {
                    **round_environment(self._world, seat.hosted, seat.group_rank, local_rank),
                    VARIABLE: str(self._errors.path(local_rank)),
                    STARTED_AT: f"{time.time():.6f}",
                    **sockets[local_rank],
                }
                for local_rank in range(self.pool.size)
            ]
        )
        for local_rank in range(self.pool.size):
            self._monitor.started(local_rank, at)

    def stop(self, grace_seconds: float) -> None:
        """End all ranks; see `Pool.stop`."""
        self._monitor.stopping()
        self.pool.stop(grace_seconds)

    def look(self) -> list[Happened]:
        """What happened to them; failures first: one that ends with 0 beside them does not end the round well."""
        found = sorted(self.pool.look(), key=_is_success)
        for happened in found:
            if isinstance(happened, RankEnded):
                self._monitor.stopped(happened.local_rank)
        # Descriptors of ended workers are the reader's, which closes them at their end.
        known = {worker.pid for worker in self.pool.workers()}
        self._taps = {pid: tap for pid, tap in self._taps.items() if pid in known}
        return found

    def cause_of_end(self, ended: RankEnded, agent_id: str, node: str) -> Cause:
        """Why a round is over: this rank failed."""
        path = self._errors.path(ended.local_rank)
        return Cause(
            kind="worker",
            agent_id=agent_id,
            node=node,
            rank=self.number(ended.local_rank),
            exit_code=ended.code,
            error_file=str(path) if path.exists() else "",
            detail=self._errors.explain(ended.local_rank),
        )

    def cause_of_hang(self, hung: Hung, agent_id: str, node: str) -> Cause:
        """Why a round is over: this rank hangs."""
        return Cause(
            kind="hang",
            agent_id=agent_id,
            node=node,
            rank=self.number(hung.local_rank),
            section=hung.section,
            detail=hung.detail,
        )

    def targets(self) -> list[Target]:
        """Those whose stacks can be captured."""
        return [
            Target(local_rank=one.local_rank, rank=self.number(one.local_rank), pid=one.pid, process=one.descriptor)
            for one in self.pool.ranks.values()
        ]

    def dump_files(self) -> dict[int, DumpFile]:
        """See `Monitor.dump_files`."""
        return self._monitor.dump_files()

    def close(self) -> None:
        """Kill what is left, and remove what was only for them."""
        self.pool.close()
        self._monitor.close()
        self._errors.close()


def _is_success(happened: Happened) -> bool:
    return isinstance(happened, RankEnded) and happened.code == 0
