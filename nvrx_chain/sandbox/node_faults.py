"""Faults of whole nodes: power loss, a frozen machine, a frozen slurmd, drained; and back into service.

Touches: processes in the node's pid namespace; the node's record in the sandbox's slurmctld.
"""

from __future__ import annotations

import contextlib
import socket
from datetime import datetime, timezone

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.bringup import Site, node_daemon, start_nodes
from nvrx_chain.sandbox.faults import FaultKind, FaultReport, await_death, continue_all, kill_all, stop_all
from nvrx_chain.sandbox.members import NodeView, find_node, require_node
from nvrx_chain.sandbox.network_faults import restore
from nvrx_chain.sandbox.processes import wait_until
from nvrx_chain.sandbox.procfs import Process

_RETURN_SECONDS = 90.0


def kill_node(site: Site, node: str) -> FaultReport:
    """Power loss: SIGKILL of the node's outermost process; the kernel takes everything in the node along.

    Slurm is not told. Raises SandboxError when the node is off already or something in it survives.
    """
    view = require_node(site.state, node)
    doing = f"killing node {node}"
    hit_at = site.clock.now()
    kill_all(site.clock, [view.outer], doing=doing)
    await_death(site.clock, view.inside, doing=doing)
    return FaultReport(
        kind=FaultKind.KILL_NODE,
        target=node,
        pids=_pids(view.outer, *view.inside),
        hit_at=hit_at,
        verified=f"{len(view.inside)} processes of {view.namespace} are dead",
    )


def freeze_node(site: Site, node: str) -> FaultReport:
    """SIGSTOP of everything in the node: it answers nothing, and its connections stay open."""
    view = require_node(site.state, node)
    hit_at = site.clock.now()
    stopped = stop_all(site.clock, lambda: require_node(site.state, node).inside, doing=f"freezing node {node}")
    return FaultReport(
        kind=FaultKind.FREEZE_NODE,
        target=node,
        pids=_pids(*stopped),
        hit_at=hit_at,
        verified=f"all {len(stopped)} processes of {view.namespace} are in state T",
    )


def freeze_slurmd(site: Site, node: str) -> FaultReport:
    """SIGSTOP of the node's slurmd alone: jobs run on, Slurm can neither reach nor end them."""
    view = require_node(site.state, node)
    if not _slurmds(site, view):
        raise SandboxError(f"freezing slurmd of {node}: it runs none", hint="revive-node starts it")
    hit_at = site.clock.now()
    stopped = stop_all(
        site.clock, lambda: _slurmds(site, require_node(site.state, node)), doing=f"freezing slurmd of {node}"
    )
    return FaultReport(
        kind=FaultKind.FREEZE_SLURMD,
        target=node,
        pids=_pids(*stopped),
        hit_at=hit_at,
        verified=f"slurmd in {view.namespace} is in state T",
    )


def thaw_node(site: Site, node: str) -> FaultReport:
    """SIGCONT of everything that is stopped in the node, whoever stopped it."""
    view = require_node(site.state, node)
    stopped = [process for process in view.inside if process.is_stopped]
    hit_at = site.clock.now()
    running = continue_all(site.clock, lambda: require_node(site.state, node).inside, doing=f"thawing node {node}")
    return FaultReport(
        kind=FaultKind.THAW_NODE,
        target=node,
        pids=_pids(*stopped),
        hit_at=hit_at,
        verified=f"none of {len(running)} processes of {view.namespace} is in state T",
    )


def drain_node(site: Site, node: str, *, reason: str = "nvrx-chain sandbox") -> FaultReport:
    """`scontrol update state=drain`: running jobs go on, no new one starts."""
    require_name(site, node)
    hit_at = site.clock.now()
    site.controller.update_node(node, state="drain", reason=reason)
    state = wait_until(
        site.clock,
        lambda: _state_with(site, node, "DRAIN"),
        _RETURN_SECONDS,
        doing=f"draining node {node}",
        wanted="state DRAIN",
    )
    return FaultReport(
        kind=FaultKind.DRAIN_NODE, target=node, pids=(), hit_at=hit_at, verified=f"Slurm calls it {state}"
    )


def revive_node(site: Site, node: str) -> FaultReport:
    """Bring a node back into service: heal it, power it on, thaw it, resume it, whichever it needs.

    Returns when Slurm calls it responding, not down and not drained. Raises SandboxError when it does not.
    """
    require_name(site, node)
    hit_at = site.clock.now()
    restore(site, node)
    started = _ensure_running(site, node)
    state = wait_until(
        site.clock,
        lambda: _in_service(site, node, hit_at if started else None),
        _RETURN_SECONDS,
        doing=f"reviving node {node}",
        wanted="in service",
    )
    view = require_node(site.state, node)
    return FaultReport(
        kind=FaultKind.REVIVE_NODE,
        target=node,
        pids=_pids(view.outer, *_slurmds(site, view)),
        hit_at=hit_at,
        verified=f"slurmd answers, Slurm calls it {state}",
    )


def require_name(site: Site, node: str) -> None:
    """Raises SandboxError for a name that is no node of this sandbox."""
    find_node(site.state, node)


def _ensure_running(site: Site, node: str) -> bool:
    """Make the node's slurmd run; True when the node was started anew."""
    view = find_node(site.state, node)
    if view is not None and _slurmds(site, view):
        continue_all(site.clock, lambda: require_node(site.state, node).inside, doing=f"thawing node {node}")
        return False
    if view is not None:
        # A machine without its slurmd comes back the way an operator would do it: by a power cycle.
        kill_node(site, node)
    start_nodes(site, [node])
    return True


def _in_service(site: Site, node: str, started_at: datetime | None) -> str | None:
    if not site.is_running(node_daemon(node)):
        raise SandboxError(
            f"reviving node {node}: it ended", part=str(site.place.log(node_daemon(node))), hint="its log says why"
        )
    if not _port_answers(site, node):
        return None
    fields = site.controller.node_fields(node)
    state = fields.get("State", "")
    # Until the new slurmd has registered, the state is still that of the old one.
    if started_at is not None and not _is_registered_since(fields.get("SlurmdStartTime", ""), started_at):
        return None
    if "DRAIN" in state or state.startswith("DOWN"):
        # Slurm refuses this of a node that it does not know yet, or that came back by itself meanwhile: look again.
        with contextlib.suppress(SandboxError):
            site.controller.update_node(node, state="resume")
        return None
    is_away = not state or state.startswith("UNKNOWN") or "*" in state or "NOT_RESPONDING" in state
    return None if is_away else state


def _is_registered_since(slurmd_start_time: str, started_at: datetime) -> bool:
    """Whether a time that scontrol printed (UTC, whole seconds; `None` before the first) is not before `started_at`."""
    try:
        registered = datetime.strptime(slurmd_start_time, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return False
    return registered >= started_at.replace(microsecond=0)


def _state_with(site: Site, node: str, word: str) -> str | None:
    state = site.controller.node_fields(node).get("State", "")
    return state if word in state else None


def _port_answers(site: Site, node: str) -> bool:
    index = site.state.config.node_index(node)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((site.addresses.node(index), site.state.ports.nodes[index - 1])) == 0


def _slurmds(site: Site, view: NodeView) -> tuple[Process, ...]:
    return view.slurmds(site.programs["slurmd"])


def _pids(*processes: Process) -> tuple[int, ...]:
    return tuple(process.pid for process in processes)
