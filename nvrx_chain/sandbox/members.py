"""Which processes belong to a sandbox, and which of them to one of its nodes. Only reads /proc.

Three proofs, none of them a name: the record's pid and start time; the sandbox's id in the environment the process
was started with; life in the pid namespace of a node. A namespace is only ever taken from a live process of the
sandbox, never from a note, because the kernel gives the number of a dead namespace to the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.bringup import ID_VARIABLE, node_daemon
from nvrx_chain.sandbox.procfs import (
    Process,
    ProcessId,
    find_process,
    list_processes,
    read_arguments,
    read_child_pid_namespace,
    read_environment,
    read_executable,
    read_pid_namespace,
)
from nvrx_chain.sandbox.record import SandboxState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A live node: its outermost process (unshare), its pid namespace, and all processes in that."""

    name: str
    outer: Process
    namespace: str
    inside: tuple[Process, ...]

    def slurmds(self, executable: str) -> tuple[Process, ...]:
        """The slurmd of the node; for a moment two, while it forks a step daemon."""
        real = os.path.realpath(executable)
        return tuple(process for process in self.inside if read_executable(process.pid) == real)


def find_node(state: SandboxState, node: str) -> NodeView | None:
    """The node as it is now; None when it is powered off. Raises SandboxError for a name that is no node."""
    if node not in state.config.node_names:
        names = state.config.node_names
        raise SandboxError(f"looking for a node: no {node!r} here", hint=f"{names[0]} to {names[-1]}")
    daemon = state.daemon(node_daemon(node))
    outer = find_process(daemon.id) if daemon else None
    namespace = _namespace_below(outer)
    if outer is None or namespace is None:
        return None
    return NodeView(name=node, outer=outer, namespace=namespace, inside=_living_in({namespace}))


def require_node(state: SandboxState, node: str) -> NodeView:
    """The live node. Raises SandboxError when it is off."""
    view = find_node(state, node)
    if view is None:
        raise SandboxError(f"looking for node {node}: it is off", hint="revive-node starts it")
    return view


def find_members(state: SandboxState) -> tuple[Process, ...]:
    """Every live process of the sandbox, nodes and jobs included."""
    recorded = {daemon.id for daemon in state.daemons}
    everything = list_processes()
    marked = [process for process in everything if _is_marked(process, state.sandbox_id)]
    own = {process.id: process for process in everything if process.id in recorded}
    namespaces = {_namespace_below(process) for process in own.values()}
    namespaces |= {_foreign_namespace(process) for process in marked}
    inside = _living_in({namespace for namespace in namespaces if namespace})
    # slurmctld's script runner overwrites its own environment with its title: it is known by its parent.
    children = descendants(own.values(), everything)
    members = own | {process.id: process for process in (*marked, *inside, *children)}
    return tuple(sorted(members.values(), key=lambda process: process.pid))


def descendants(ancestors: Iterable[Process], everything: Iterable[Process]) -> tuple[Process, ...]:
    """The children of these processes, their children, and so on."""
    children: dict[int, list[Process]] = {}
    for process in everything:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = list(ancestors)
    while waiting:
        born = children.get(waiting.pop().pid, [])
        found.extend(born)
        waiting.extend(born)
    return tuple(found)


def describe(process: Process) -> str:
    """A process for a message: pid, state, command."""
    return f"pid {process.pid} ({process.state}) {' '.join(read_arguments(process.pid))[:80]}"


def living(identities: tuple[ProcessId, ...]) -> tuple[Process, ...]:
    """Those of these processes that still run."""
    found = (find_process(identity) for identity in identities)
    return tuple(process for process in found if process is not None)


def _is_marked(process: Process, sandbox_id: str) -> bool:
    return read_environment(process.pid).get(ID_VARIABLE) == sandbox_id


def _namespace_below(outer: Process | None) -> str | None:
    """The namespace that `unshare` made; None before it did, and for a daemon that makes none."""
    if outer is None:
        return None
    below = read_child_pid_namespace(outer.pid)
    return None if below == read_pid_namespace(os.getpid()) else below


def _foreign_namespace(process: Process) -> str | None:
    namespace = read_pid_namespace(process.pid)
    return None if namespace == read_pid_namespace(os.getpid()) else namespace


def _living_in(namespaces: set[str]) -> tuple[Process, ...]:
    if not namespaces:
        return ()
    return tuple(process for process in list_processes() if read_pid_namespace(process.pid) in namespaces)
