"""Faults of the controller: slurmctld stopped or killed, and back. Touches: the sandbox's slurmctld."""

from __future__ import annotations

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.bringup import Site, start_controller
from nvrx_chain.sandbox.config import CONTROLLER
from nvrx_chain.sandbox.faults import FaultKind, FaultReport, continue_all, kill_all, stop_all
from nvrx_chain.sandbox.members import descendants
from nvrx_chain.sandbox.processes import poll, wait_until
from nvrx_chain.sandbox.procfs import Process, find_process, list_processes

_ANSWER_SECONDS = 60.0
_NODES_SECONDS = 10.0


def stop_controller(site: Site, *, kill: bool = False) -> FaultReport:
    """SIGSTOP (clients time out) or SIGKILL (clients are refused) of slurmctld; jobs run on.

    Raises SandboxError when it does not run.
    """
    process = _find_controller(site)
    if process is None:
        raise SandboxError("stopping the controller: it does not run", hint="start-controller starts it")
    hit_at = site.clock.now()
    if kill:
        victims = (process, *descendants([process], list_processes()))
        kill_all(site.clock, victims, doing="killing the controller")
    else:
        victims = stop_all(site.clock, lambda: _as_list(_find_controller(site)), doing="stopping the controller")
    return FaultReport(
        kind=FaultKind.STOP_CONTROLLER,
        target=CONTROLLER,
        pids=tuple(victim.pid for victim in victims),
        hit_at=hit_at,
        verified=f"pid {process.pid} is {'dead' if kill else 'in state T'}",
    )


def restart_controller(site: Site) -> FaultReport:
    """Let a stopped slurmctld go on, or start a dead one again. No error when it runs already."""
    hit_at = site.clock.now()
    if _find_controller(site) is None:
        start_controller(site)
    else:
        continue_all(site.clock, lambda: _as_list(_find_controller(site)), doing="continuing the controller")
    wait_until(
        site.clock, site.controller.is_up, _ANSWER_SECONDS, doing="starting the controller", wanted="an answer to ping"
    )
    process = _find_controller(site)
    if process is None:
        raise SandboxError(
            "starting the controller: it ended", part=str(site.place.log(CONTROLLER)), hint="its log says why"
        )
    # A new controller knows no node's state. Nodes that are off or frozen stay so, which is no failure of this.
    poll(site.clock, lambda: "unknown" not in site.controller.node_states().values(), _NODES_SECONDS)
    return FaultReport(
        kind=FaultKind.START_CONTROLLER,
        target=CONTROLLER,
        pids=(process.pid,),
        hit_at=hit_at,
        verified=f"pid {process.pid} answers ping",
    )


def _find_controller(site: Site) -> Process | None:
    daemon = site.state.daemon(CONTROLLER)
    return find_process(daemon.id) if daemon else None


def _as_list(process: Process | None) -> list[Process]:
    return [] if process is None else [process]
