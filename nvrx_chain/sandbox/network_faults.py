"""A node that is silent: its cable is cut, or it does not reach the controller; and healed.

Nothing on the node ends and no connection is closed: what is sent is lost. Touches: the cable of the node, this
machine's entry for the node's hardware address, and what disk_faults touches.
"""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox import disk_faults
from nvrx_chain.sandbox.bringup import Site, enter_network
from nvrx_chain.sandbox.faults import EFFECT_SECONDS, FaultKind, FaultReport
from nvrx_chain.sandbox.members import NodeView, find_node, require_node
from nvrx_chain.sandbox.network import DEVICES, run_ip
from nvrx_chain.sandbox.processes import poll
from nvrx_chain.sandbox.programs import run

_ARP = Path("/proc/net/arp")
# Nobody has this address (locally administered), so whatever is sent to it gets lost on the bridge.
_NOBODY = "02:00:00:00:00:01"
_CONNECT_SECONDS = 1.0
_CONNECTED_SECONDS = 20.0
_IFF_UP = 0x1
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)"


def cut_node(site: Site, node: str, *, keep_disk: bool = False) -> FaultReport:
    """Cut the cable of a node and, unless `keep_disk`, hold its shared directory, as a real cut takes that along.

    Everything on the node lives on. Raises SandboxError when it still answers.
    """
    doing = f"cutting node {node}"
    _require_network(site, doing)
    view = require_node(site.state, node)
    hit_at = site.clock.now()
    _set_cable(site, node, "down")
    if not keep_disk:
        disk_faults.hold_disk(site, [view], 0)
    if not poll(site.clock, lambda: not _answers(site, node), EFFECT_SECONDS):
        raise SandboxError(
            f"{doing}: it still answers after {EFFECT_SECONDS:g} s",
            hint=f"undo it with `sandbox heal-node {node}`, then repeat it",
        )
    disk = "its shared directory goes on" if keep_disk else "an open in its shared directory waits"
    return FaultReport(
        kind=FaultKind.CUT_NODE,
        target=node,
        pids=_living(site, view),
        hit_at=hit_at,
        verified=f"it answers nothing, {disk}, its processes live",
    )


def isolate_from_controller(site: Site, node: str) -> FaultReport:
    """Lose whatever goes from this machine, slurmctld's, to a node: it reaches its peers and the disk only.

    Raises SandboxError when the controller is still reached.
    """
    doing = f"isolating node {node}"
    _require_network(site, doing)
    view = require_node(site.state, node)
    hit_at = site.clock.now()
    _neighbour(site, node, "replace", "lladdr", _NOBODY, "nud", "permanent")
    controller = (site.addresses.controller, site.state.ports.controller)
    if not poll(site.clock, lambda: not (_answers(site, node) or _reaches(site, node, *controller)), EFFECT_SECONDS):
        raise SandboxError(
            f"{doing}: it still reaches the controller after {EFFECT_SECONDS:g} s",
            hint=f"undo it with `sandbox heal-node {node}`, then repeat it",
        )
    return FaultReport(
        kind=FaultKind.ISOLATE_NODE,
        target=node,
        pids=_living(site, view),
        hit_at=hit_at,
        verified=f"slurmctld and it do not reach each other, {_reached_peer(site, node, doing)}",
    )


def heal_node(site: Site, node: str) -> FaultReport:
    """Undo a cut, an isolation and a held disk, whichever there are. Raises SandboxError when one stays."""
    hit_at = site.clock.now()
    view = find_node(site.state, node)
    undone = faults_of(site, node)
    restore(site, node)
    doing = f"healing node {node}"
    if view is not None:
        if site.state.config.network and not poll(site.clock, lambda: _answers(site, node), EFFECT_SECONDS):
            raise SandboxError(
                f"{doing}: it does not answer after {EFFECT_SECONDS:g} s",
                hint=f"repeat it; else `sandbox kill-node {node}` and `sandbox revive-node {node}`",
            )
        if not poll(site.clock, lambda: disk_faults.disk_goes_on(site, view), EFFECT_SECONDS):
            raise SandboxError(
                f"{doing}: its shared directory cannot be listed after {EFFECT_SECONDS:g} s",
                hint=f"repeat it; else `sandbox kill-node {node}` and `sandbox revive-node {node}`",
            )
    return FaultReport(
        kind=FaultKind.HEAL_NODE,
        target=node,
        pids=_living(site, view) if view else (),
        hit_at=hit_at,
        verified=f"undone: {', '.join(undone) or 'nothing'}; {'it answers' if view else 'it is off'}",
    )


def restore(site: Site, node: str) -> None:
    """Undo what these faults did to a node, without a look whether it helped."""
    disk_faults.release_disk(site, node)
    if not site.state.config.network:
        return
    _set_cable(site, node, "up")
    if _is_isolated(site, node):
        _neighbour(site, node, "del")


def faults_of(site: Site, node: str) -> tuple[str, ...]:
    """What keeps a node from its network, the controller or the disk now."""
    found = []
    if site.state.config.network and not _cable_is_up(site, node):
        found.append("cut")
    if site.state.config.network and _is_isolated(site, node):
        found.append("isolated from the controller")
    if disk_faults.holders(site, node):
        found.append("disk held")
    return tuple(found)


def _require_network(site: Site, doing: str) -> None:
    if not site.state.config.network:
        raise SandboxError(
            f"{doing}: the nodes share this machine's network", hint="start the sandbox with `up --network`"
        )


def _address(site: Site, node: str) -> str:
    return site.addresses.node(site.state.config.node_index(node))


def _device(site: Site, node: str) -> str:
    return site.addresses.host_end(site.state.config.node_index(node))


def _set_cable(site: Site, node: str, state: str) -> None:
    run_ip(site, f"setting the cable of {node} {state}", "link", "set", _device(site, node), state)


def _cable_is_up(site: Site, node: str) -> bool:
    try:
        return bool(int((DEVICES / _device(site, node) / "flags").read_text(), 16) & _IFF_UP)
    except FileNotFoundError:
        return False


def _neighbour(site: Site, node: str, verb: str, *words: str) -> None:
    device = site.addresses.bridge
    run_ip(site, f"changing the way to {node}", "neighbour", verb, _address(site, node), "dev", device, *words)


def _is_isolated(site: Site, node: str) -> bool:
    rows = (line.split() for line in _ARP.read_text().splitlines()[1:])
    return any(row[0] == _address(site, node) and row[3] == _NOBODY for row in rows)


def _answers(site: Site, node: str) -> bool:
    """Whether a packet to the node is answered at all: a refusal is an answer too."""
    index = site.state.config.node_index(node)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        return probe.connect_ex((_address(site, node), site.state.ports.nodes[index - 1])) in (0, errno.ECONNREFUSED)


def _reaches(site: Site, node: str, address: str, port: int) -> bool:
    """Whether a connection from inside a node is made."""
    argv = (*enter_network(site, node), sys.executable, "-I", "-S", "-c", _CONNECT, address, str(port))
    try:
        run(argv, environ={"PATH": site.path}, timeout_seconds=_CONNECTED_SECONDS, doing=f"connecting from {node}")
    except SandboxError:
        return False
    return True


def _reached_peer(site: Site, node: str, doing: str) -> str:
    """A word on a peer that it still reaches. Raises SandboxError when it reaches none that runs and is not cut."""
    config = site.state.config
    others = [name for name in config.node_names if name != node and not faults_of(site, name)]
    views = (find_node(site.state, name) for name in others)
    peer = next((view.name for view in views if view and view.slurmds(site.programs["slurmd"])), None)
    if peer is None:
        return "there is no other node to reach"
    address, port = _address(site, peer), site.state.ports.nodes[config.node_index(peer) - 1]
    if not poll(site.clock, lambda: _reaches(site, node, address, port), EFFECT_SECONDS):
        raise SandboxError(
            f"{doing}: it does not reach {peer} any more",
            hint=f"look whether {peer} is up with `sandbox status`, and undo it with `sandbox heal-node {node}`",
        )
    return f"it reaches {peer}"


def _living(site: Site, before: NodeView) -> tuple[int, ...]:
    """The processes that were on the node and still are."""
    view = find_node(site.state, before.name)
    now = {process.id for process in view.inside} if view else set()
    return tuple(process.pid for process in before.inside if process.id in now)
