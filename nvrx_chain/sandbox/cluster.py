"""A real private Slurm cluster on this machine, as one object: up, open, down, what it is doing.

Touches: everything that bringup, teardown and faults touch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from nvrx_chain.clock import Clock, SystemClock
from nvrx_chain.errors import SandboxError, Unobserved
from nvrx_chain.sandbox import (
    bringup,
    controller_faults,
    disk_faults,
    job_faults,
    network,
    network_faults,
    node_faults,
    teardown,
)
from nvrx_chain.sandbox.accounting import start_accounting
from nvrx_chain.sandbox.bringup import Site
from nvrx_chain.sandbox.config import Place, SandboxConfig
from nvrx_chain.sandbox.faults import FaultReport
from nvrx_chain.sandbox.job_faults import BatchScope
from nvrx_chain.sandbox.members import find_node
from nvrx_chain.sandbox.programs import locate, search_path
from nvrx_chain.sandbox.record import SandboxGone, SandboxState, claim, find_place, hold_lock, read_state
from nvrx_chain.sandbox.status import SandboxStatus, read_status
from nvrx_chain.sandbox.teardown import DownReport

_IDLE_SECONDS = 60.0
_GRACE_SECONDS = 5.0


class Sandbox:
    """One sandbox. Every method reads the record again, so several handles and processes may work on it."""

    def __init__(self, place: Place, state: SandboxState, clock: Clock) -> None:
        self._place = place
        self._state = state
        self._clock = clock
        self._path = search_path(os.environ)

    @classmethod
    def up(cls, config: SandboxConfig, *, clock: Clock | None = None) -> Sandbox:
        """Start a cluster and return when all nodes are idle. What was started is ended again when this fails.

        Raises SandboxError: a sandbox is there already, a package is missing, not root, a daemon did not start.
        """
        clock = clock or SystemClock()
        bringup.require_root("starting a sandbox")
        path = search_path(os.environ)
        programs = locate(path, accounting=config.accounting, network=config.network)
        bringup.check_namespaces(config, programs, path)
        config = dataclasses.replace(config, directory=config.directory.resolve())
        with claim(config, clock, uuid.uuid4().hex) as (place, state):
            site = Site(place=place, state=state, programs=programs, path=path, clock=clock)
            try:
                _start(site)
            except BaseException:
                # Also on Ctrl-C: half a cluster is of no use and would keep ports.
                teardown.end_processes(site.state, clock)
                network.remove_network(place, path)
                teardown.remove_files(place, created_directory=state.created_directory, keep_logs=False)
                raise
        return cls(place, site.state, clock)

    @classmethod
    def open(cls, directory: Path, *, clock: Clock | None = None) -> Sandbox:
        """The sandbox of a directory, running or half-started. Raises SandboxError when there is none."""
        directory = directory.resolve()
        place = find_place(directory)
        state = read_state(place) if place else None
        if isinstance(state, Unobserved):
            raise SandboxError(f"opening a sandbox: {state.reason}", hint="end it with `sandbox down`, start anew")
        if place is None or state is None:
            raise SandboxError("opening a sandbox: there is none", part=str(directory), hint="run `sandbox up` first")
        return cls(place, state, clock or SystemClock())

    @property
    def directory(self) -> Path:
        return self._place.directory

    @property
    def slurm_conf(self) -> Path:
        return self._place.slurm_conf

    @property
    def shared(self) -> Path:
        """A directory that stands for the shared file system: `slow-disk` and `cut-node` take it from nodes."""
        return self._place.shared

    @property
    def logs(self) -> Path:
        """Where slurmctld, slurmd and the others write their logs."""
        return self._place.data / "log"

    @property
    def config(self) -> SandboxConfig:
        return self._state.config

    @property
    def node_names(self) -> tuple[str, ...]:
        return self._state.config.node_names

    @property
    def environ(self) -> dict[str, str]:
        """What a child process needs on top of its environment to use this cluster."""
        return {"SLURM_CONF": str(self._place.slurm_conf), "PATH": self._path}

    def status(self) -> SandboxStatus:
        """How every daemon and node is. Works for an ordinary user too, who sees less of the nodes."""
        return read_status(self._read_site("looking at a sandbox"))

    def wait_idle(self, seconds: float = _IDLE_SECONDS) -> None:
        """Wait until every node is idle. Raises SandboxError that names those which are not."""
        bringup.await_idle(self._site("waiting for nodes"), self.node_names, seconds)

    def down(self, *, grace_seconds: float = _GRACE_SECONDS, keep_logs: bool = False) -> DownReport:
        """End it: jobs get `grace_seconds` to end after scancel, then everything is killed and removed.

        May be repeated. Raises SandboxError that names any process that is left.
        """
        return end_directory(
            self.directory,
            self._clock,
            grace_seconds=grace_seconds,
            keep_logs=keep_logs,
            sandbox_id=self._state.sandbox_id,
        )

    def kill_node(self, node: str) -> FaultReport:
        """Power loss of a node: everything on it is gone at once, and Slurm is not told."""
        return node_faults.kill_node(self._site("killing a node"), node)

    def freeze_node(self, node: str) -> FaultReport:
        """Everything on a node stops; its connections stay open."""
        return node_faults.freeze_node(self._site("freezing a node"), node)

    def freeze_slurmd(self, node: str) -> FaultReport:
        """Only the slurmd of a node stops; its jobs run on."""
        return node_faults.freeze_slurmd(self._site("freezing a slurmd"), node)

    def thaw_node(self, node: str) -> FaultReport:
        """Whatever is stopped on a node goes on."""
        return node_faults.thaw_node(self._site("thawing a node"), node)

    def drain_node(self, node: str) -> FaultReport:
        """No new job starts on a node."""
        return node_faults.drain_node(self._site("draining a node"), node)

    def revive_node(self, node: str) -> FaultReport:
        """A node is powered on, thawed or resumed, whichever it needs, and in service when this returns."""
        with self._changing("reviving a node") as site:
            return node_faults.revive_node(site, node)

    def cut_node(self, node: str, *, keep_disk: bool = False) -> FaultReport:
        """A node falls silent: its cable is cut, and unless `keep_disk` its shared directory hangs. Nothing ends."""
        with self._changing("cutting a node") as site:
            return network_faults.cut_node(site, node, keep_disk=keep_disk)

    def isolate_from_controller(self, node: str) -> FaultReport:
        """A node and slurmctld do not reach each other; it reaches its peers and the disk."""
        return network_faults.isolate_from_controller(self._site("isolating a node"), node)

    def slow_disk(self, node: str | None, *, seconds: float) -> FaultReport:
        """The shared directory of a node, None for all that run, stalls for so long."""
        with self._changing("slowing the disk") as site:
            running = [name for name in self.node_names if find_node(site.state, name)]
            return disk_faults.slow_disk(site, running if node is None else [node], seconds)

    def heal_node(self, node: str) -> FaultReport:
        """Undo a cut, an isolation and a stalled disk, whichever there are."""
        return network_faults.heal_node(self._site("healing a node"), node)

    def kill_task_0(self, array_job_id: int, *, scope: BatchScope = BatchScope.SHELL) -> FaultReport:
        """SIGKILL in the batch step of array task 0, of its shell unless `scope` says otherwise; the node lives on."""
        return job_faults.kill_batch(self._site("killing task 0"), array_job_id, 0, scope)

    def kill_rank(self, array_job_id: int, rank: int) -> FaultReport:
        """SIGKILL of the one training process with RANK=`rank` of an array job."""
        return job_faults.kill_rank(self._site("killing a rank"), array_job_id, rank)

    def stop_controller(self, *, kill: bool = False) -> FaultReport:
        """slurmctld stops answering (SIGSTOP), or with `kill` is gone (SIGKILL)."""
        return controller_faults.stop_controller(self._site("stopping the controller"), kill=kill)

    def start_controller(self) -> FaultReport:
        """slurmctld answers again when this returns."""
        with self._changing("starting the controller") as site:
            return controller_faults.restart_controller(site)

    def _site(self, doing: str) -> Site:
        bringup.require_root(doing)
        return self._read_site(doing)

    def _read_site(self, doing: str) -> Site:
        state = read_state(self._place)
        if not isinstance(state, SandboxState) or state.sandbox_id != self._state.sandbox_id:
            raise SandboxGone(f"{doing}: the sandbox is gone", part=str(self.directory))
        bringup.require_outside(state, doing)
        self._state = state
        programs = locate(self._path, accounting=state.config.accounting, network=state.config.network)
        return Site(place=self._place, state=state, programs=programs, path=self._path, clock=self._clock)

    @contextlib.contextmanager
    def _changing(self, doing: str) -> Iterator[Site]:
        """The site while no other command changes it."""
        with hold_lock(self._place.lock_file, self._clock, doing=doing):
            yield self._site(doing)


def end_directory(
    directory: Path,
    clock: Clock,
    *,
    grace_seconds: float = _GRACE_SECONDS,
    keep_logs: bool = False,
    sandbox_id: str | None = None,
) -> DownReport:
    """End the sandbox of a directory; only the one of `sandbox_id` when that is given, whatever took its place lives.

    None there is no error: the answer then says so.
    """
    directory = directory.resolve()
    nothing = DownReport(directory=directory, was_there=False)
    place = find_place(directory)
    if place is None:
        return nothing
    bringup.require_root("ending a sandbox")
    try:
        with hold_lock(place.lock_file, clock, doing="ending a sandbox"):
            state = read_state(place)
            if sandbox_id and isinstance(state, SandboxState) and state.sandbox_id != sandbox_id:
                return nothing
            return _end_place(place, state, clock, grace_seconds=grace_seconds, keep_logs=keep_logs)
    except SandboxGone:
        # Another `down` was faster.
        return nothing


def _end_place(
    place: Place, state: SandboxState | None | Unobserved, clock: Clock, *, grace_seconds: float, keep_logs: bool
) -> DownReport:
    if isinstance(state, Unobserved):
        raise SandboxError(
            f"ending a sandbox: {state.reason}",
            hint="the record of the sandbox must be readable for the user who started it",
        )
    if state is None:
        # A claim that was killed before its first record: nothing was started.
        teardown.remove_files(place, created_directory=False, keep_logs=False)
        return DownReport(directory=place.directory, was_there=True)
    bringup.require_outside(state, "ending a sandbox")
    killed = _end_jobs(place, state, clock, grace_seconds)
    count = teardown.end_processes(state, clock)
    network.remove_network(place, search_path(os.environ))
    teardown.remove_files(place, created_directory=state.created_directory, keep_logs=keep_logs)
    return DownReport(directory=place.directory, was_there=True, jobs_killed=killed, processes_ended=count)


def _end_jobs(place: Place, state: SandboxState, clock: Clock, grace_seconds: float) -> tuple[str, ...]:
    if not state.ready:
        return ()
    path = search_path(os.environ)
    try:
        programs = locate(path, accounting=False)
    except SandboxError:
        # Slurm's packages were removed under it; the processes can be ended all the same.
        return ()
    site = Site(place=place, state=state, programs=programs, path=path, clock=clock)
    return teardown.end_jobs(site, grace_seconds)


def _start(site: Site) -> None:
    bringup.prepare_files(site)
    if site.state.config.network:
        network.start_network(site)
    bringup.start_munge(site)
    if site.state.config.accounting:
        start_accounting(site)
    bringup.start_controller(site)
    bringup.start_nodes(site, site.state.config.node_names)
    bringup.await_idle(site, site.state.config.node_names, _IDLE_SECONDS)
    site.save(msgspec.structs.replace(site.state, ready=True))
