"""What every part of a running array task needs, handed in once. Pure wiring of values; builds nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nvrx_chain.clock import Clock, parse_time
from nvrx_chain.generation.background import Spawn, spawn_thread
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.identity import TaskIdentity
from nvrx_chain.generation.launcher_process import LauncherProcess
from nvrx_chain.generation.lease import LeaseWriter
from nvrx_chain.generation.link import Link, NoLink
from nvrx_chain.generation.signals import SignalFlags
from nvrx_chain.generation.watcher import BoardWatcher
from nvrx_chain.launchers.seats import takes_hot_spares
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.control import LeaseSeen
from nvrx_chain.records.manifest import ChainManifest, Thresholds
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.identity import ChainIdentity

StartLauncher = Callable[[], LauncherProcess]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """One array task at work."""

    manifest: ChainManifest
    chain: ChainFiles
    identity: TaskIdentity
    board: Board
    clock: Clock
    client: SlurmClient
    signals: SignalFlags
    lease: LeaseWriter
    watcher: BoardWatcher
    start_launcher: StartLauncher
    spawn: Spawn = spawn_thread
    link: Link = field(default_factory=NoLink)

    @property
    def thresholds(self) -> Thresholds:
        """The durations of this chain, in seconds."""
        return self.manifest.thresholds

    @property
    def array_job_id(self) -> int:
        """This generation."""
        return self.identity.array_job_id

    @property
    def takes_hot_spares(self) -> bool:
        """Whether spares join the rendezvous."""
        return takes_hot_spares(self.manifest.launcher.kind)

    @property
    def iteration_file(self) -> Path:
        """Where the workload publishes its newest checkpoint iteration."""
        return Path(self.manifest.checkpoint_iteration_file)

    def pause(self, seconds: float) -> None:
        """Wait, but wake at once for a signal."""
        self.clock.wait(self.signals.wake, seconds)
        self.signals.wake.clear()

    def chain_identity(self) -> ChainIdentity:
        """By what a job of this chain is recognised before anything is done to it."""
        submitted = {g.array_job_id: g.submitted_at for g in self.chain.generations()}
        return ChainIdentity(
            chain_id=self.manifest.chain_id,
            job_name=self.manifest.job_name,
            user=self.manifest.user,
            submitted_at={**{self.array_job_id: None}, **{job: parse_time(at) for job, at in submitted.items()}},
        )

    def leases_seen(self) -> dict[int, LeaseSeen]:
        """Every lease as this task sees it now, for `closed.json`.

        No longer than since the last time at which a lease may have been excused: until then its ranks may have lived.
        """
        excused = self.link.maybe_excused_seconds()
        return {
            task: LeaseSeen(
                counter=view.counter,
                still_seconds=min(view.still_seconds, excused),
                interval_seconds=view.interval_seconds,
            )
            for task, view in self.watcher.latest().leases.items()
        }
