"""The shared directory of a node stalls: whoever opens something in it waits, as on a hard NFS mount without a server.

Each node has a mount of its own for the shared directory, and a listener (see held_mount) holds it. That is a daemon
like any other: on record before it runs, ended by `down`. Touches: those processes, the nodes' mounts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.bringup import Site, last_words
from nvrx_chain.sandbox.faults import EFFECT_SECONDS, FaultKind, FaultReport, kill_all
from nvrx_chain.sandbox.members import NodeView, require_node
from nvrx_chain.sandbox.processes import DaemonSpec, poll
from nvrx_chain.sandbox.procfs import Process, find_process, read_process

_PROGRAM = Path(__file__).with_name("held_mount.py")
_SURE_SECONDS = 0.5


def slow_disk(site: Site, nodes: Sequence[str], seconds: float) -> FaultReport:
    """The shared directory of these nodes stalls for `seconds`, which `heal-node` cuts short.

    Returns when it was seen to stall on each of them. Raises SandboxError.
    """
    views = [require_node(site.state, node) for node in nodes]
    hit_at = site.clock.now()
    hold_disk(site, views, seconds)
    return FaultReport(
        kind=FaultKind.SLOW_DISK,
        target=" ".join(nodes),
        pids=tuple(process.pid for view in views for process in view.inside),
        hit_at=hit_at,
        verified=f"for {seconds:g} s an open below {site.place.shared} waits on {len(views)} nodes",
    )


def hold_disk(site: Site, views: Sequence[NodeView], seconds: float) -> None:
    """Hold the shared directory of these nodes, 0 seconds for ever; one that is held already is from now on held anew.

    Raises SandboxError when an open does not wait.
    """
    before = {view.name: holders(site, view.name) for view in views}
    site.start([_spec(site, view, seconds) for view in views])
    for view in views:
        _await_stall(site, view)
        kill_all(site.clock, before[view.name], doing=f"holding the disk of {view.name}")


def release_disk(site: Site, node: str) -> None:
    """Let the shared directory of a node go on; nothing happens where it is not held. Raises SandboxError."""
    kill_all(site.clock, holders(site, node), doing=f"releasing the disk of {node}")


def holders(site: Site, node: str) -> tuple[Process, ...]:
    """The live listeners that hold the shared directory of a node."""
    found = (find_process(daemon.id) for daemon in site.state.daemons if daemon.name == _name(node))
    return tuple(process for process in found if process is not None)


def disk_goes_on(site: Site, view: NodeView) -> bool:
    """Whether the shared directory can be listed on a node within a moment."""
    with _probe(site, view) as probe:
        try:
            return probe.wait(_SURE_SECONDS) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            probe.kill()


def _name(node: str) -> str:
    return f"disk.{node}"


def _spec(site: Site, view: NodeView, seconds: float) -> DaemonSpec:
    # Through the root of a process of the node, whose mounts are not this machine's.
    path = f"/proc/{view.inside[0].pid}/root{site.place.shared}"
    argv = (sys.executable, "-I", "-S", str(_PROGRAM), f"{seconds:g}", path)
    return DaemonSpec(name=_name(view.name), argv=argv, log=site.place.log(_name(view.name)))


def _await_stall(site: Site, view: NodeView) -> None:
    doing = f"holding the disk of {view.name}"

    def stalls() -> bool:
        daemon = site.state.daemon(_name(view.name))
        if daemon is None or find_process(daemon.id) is None:
            raise SandboxError(
                f"{doing}: {last_words(site.place.log(_name(view.name)))}",
                hint=f"repeat it; `sandbox heal-node {view.name}` undoes what is left of it",
            )
        with _probe(site, view) as probe:
            try:
                probe.wait(_SURE_SECONDS)
            except subprocess.TimeoutExpired:
                process = read_process(probe.pid)
                return process is not None and process.state == "D"
            finally:
                probe.kill()
        return False

    if not poll(site.clock, stalls, EFFECT_SECONDS):
        raise SandboxError(
            f"{doing}: it can still be listed after {EFFECT_SECONDS:g} s",
            hint=f"repeat it; `sandbox heal-node {view.name}` undoes what is left of it",
        )


def _probe(site: Site, view: NodeView) -> subprocess.Popen[bytes]:
    """A process that lists the shared directory through the mount of a node."""
    argv = [site.programs["nsenter"], f"--mount=/proc/{view.inside[0].pid}/ns/mnt", "ls", str(site.place.shared)]
    return subprocess.Popen(
        argv, env=site.daemon_environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
