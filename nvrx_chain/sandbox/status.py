"""What a sandbox is doing, for people and for `--json`. Only reads /proc and asks slurmctld once."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.bringup import Site, node_daemon
from nvrx_chain.sandbox.config import CONTROLLER, DATABASE, DATABASE_DAEMON, MUNGE
from nvrx_chain.sandbox.members import find_node
from nvrx_chain.sandbox.network_faults import faults_of
from nvrx_chain.sandbox.procfs import Process, find_process

_ASK_SECONDS = 15.0


class ProcessState(enum.Enum):
    """How a daemon or a whole node is."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """One daemon outside the nodes."""

    name: str
    pid: int
    state: ProcessState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A node as the kernel has it (`machine`, `slurmd`) and as Slurm does (`slurm_state`; None: it did not say).

    `faults` keep it from its network, the controller or the disk: what heal-node undoes.
    """

    name: str
    address: str
    machine: ProcessState
    slurmd: ProcessState
    slurm_state: str | None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """The whole sandbox. `ready` False: its start was cut short. `no_answer`: why slurmctld could not be asked."""

    directory: Path
    slurm_conf: Path
    logs: Path
    ready: bool
    accounting: bool
    daemons: tuple[DaemonStatus, ...]
    nodes: tuple[NodeStatus, ...]
    no_answer: str | None


def read_status(site: Site) -> SandboxStatus:
    """Look at every daemon and node, and ask slurmctld for the nodes when it runs."""
    state = site.state
    daemons = tuple(_daemon_statuses(site))
    states, no_answer = _ask_for_nodes(site, daemons)
    return SandboxStatus(
        directory=site.place.directory,
        slurm_conf=site.place.slurm_conf,
        logs=site.place.data / "log",
        ready=state.ready,
        accounting=state.config.accounting,
        daemons=daemons,
        nodes=tuple(_node_status(site, name, states.get(name)) for name in state.config.node_names),
        no_answer=no_answer,
    )


def _daemon_statuses(site: Site) -> list[DaemonStatus]:
    found = []
    for name in (MUNGE, DATABASE, DATABASE_DAEMON, CONTROLLER):
        daemon = site.state.daemon(name)
        if daemon is not None:
            state = _state_of([find_process(daemon.id)])
            found.append(DaemonStatus(name=name, pid=daemon.id.pid, state=state))
    return found


def _ask_for_nodes(site: Site, daemons: tuple[DaemonStatus, ...]) -> tuple[dict[str, str], str | None]:
    controller = [daemon for daemon in daemons if daemon.name == CONTROLLER]
    if not controller or controller[0].state is not ProcessState.RUNNING:
        word = controller[0].state.value if controller else "not started"
        return {}, f"{CONTROLLER} is {word}"
    try:
        return site.controller.node_states(timeout_seconds=_ASK_SECONDS), None
    except SandboxError as error:
        return {}, str(error)


def _node_status(site: Site, name: str, slurm_state: str | None) -> NodeStatus:
    view = find_node(site.state, name)
    daemon = site.state.daemon(node_daemon(name))
    outer = find_process(daemon.id) if daemon else None
    inside: list[Process | None] = [*view.inside] if view else []
    slurmds: list[Process | None] = [*view.slurmds(site.programs["slurmd"])] if view else []
    return NodeStatus(
        name=name,
        address=site.addresses.node(site.state.config.node_index(name)),
        machine=_state_of(inside or [outer]),
        slurmd=_state_of(slurmds),
        slurm_state=slurm_state,
        faults=faults_of(site, name),
    )


def _state_of(processes: list[Process | None]) -> ProcessState:
    found = [process for process in processes if process is not None]
    if not found:
        return ProcessState.DEAD
    return ProcessState.STOPPED if all(process.is_stopped for process in found) else ProcessState.RUNNING
