"""Where this launcher stands in its cluster: infra rank, array task, address, from the environment. Pure.

The variables and their order are those of ft_launcher 0.7.0. What cannot be read is an error and never a guess: two
nodes of one rank would both train.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.members import Member
from nvrx_chain.slurm.nodelist import expand_nodes

FROM_NODE_NAME = "NVRX_INFRA_RANK_FROM_NODENAME"
REPLACEMENT_GROUP = "NVRX_REPLACEMENT_GROUP_ID"
MULTI_LAUNCHERS = "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE"
UNKNOWN_RANK = -1
"""Nobody numbered this launcher: those of a job are then ordered by address."""

_NODES_PER_BLOCK = 10**10
_ONE_EACH = re.compile(r"1(\(x\d+\))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One launcher's place; None where there is no such thing."""

    infra_rank: int
    injection_rank: int
    """As fault injectors number nodes: without the forms that come from node names and topology."""
    address: str
    node: str
    """Slurm's name of this node, or the host's."""
    group: str | None
    """What is excluded as one; None: this launcher alone."""
    job_id: str
    """Array job id, else job id; empty outside of Slurm."""
    task_id: str
    """Array task id, else job id; empty outside of Slurm."""
    procid: int | None
    array_task: int | None
    nodes_per_task: int
    nodes: tuple[str, ...]
    """Nodes of this array task, or of the job."""

    def member(self, agent_id: str, domain: str | None) -> Member:
        """This launcher as the others of its job see it."""
        return Member(
            agent_id=agent_id,
            infra_rank=self.infra_rank,
            group=self.group if self.group is not None else agent_id,
            address=self.address,
            domain=domain,
        )


def read_place(environ: Mapping[str, str], hostname: str, local_address: str | None = None) -> Place:
    """The place of this process. Raises UsageError."""
    node = environ.get("SLURMD_NODENAME") or hostname
    array_task = _number(environ, "SLURM_ARRAY_TASK_ID")
    job = environ.get("SLURM_JOB_ID", "")
    by_name = _rank_by_name(environ)
    by_process = _rank_by_process(environ, array_task, is_needed=by_name is None)
    own = environ.get(REPLACEMENT_GROUP) or (None if array_task is None else str(array_task))
    return Place(
        infra_rank=by_process if by_name is None else by_name,
        injection_rank=by_process,
        address=local_address or node,
        node=node,
        group=own,
        job_id=environ.get("SLURM_ARRAY_JOB_ID") or job,
        task_id=job if array_task is None else str(array_task),
        procid=_number(environ, "SLURM_PROCID"),
        array_task=array_task,
        nodes_per_task=_nodes_per_task(environ) or 1,
        nodes=_nodes(environ, node),
    )


def require_one_launcher(environ: Mapping[str, str]) -> bool:
    """Whether launchers may share a node. Raises UsageError where Slurm started several on one and nobody said so."""
    if environ.get(MULTI_LAUNCHERS) == "1":
        return True
    tasks = environ.get("SLURM_TASKS_PER_NODE")
    if environ.get("SLURM_JOB_ID") and tasks:
        several = [entry for entry in tasks.split(",") if not _ONE_EACH.fullmatch(entry.strip())]
        if several:
            raise UsageError(
                "starting the launcher",
                part=f"SLURM_TASKS_PER_NODE={tasks}",
                hint=f"one launcher per node: --ntasks-per-node=1; {MULTI_LAUNCHERS}=1 allows several",
            )
    return False


def _rank_by_name(environ: Mapping[str, str]) -> int | None:
    if environ.get(FROM_NODE_NAME) is not None:
        return _digits(environ.get("SLURMD_NODENAME", ""), f"{FROM_NODE_NAME} is set, SLURMD_NODENAME")
    if environ.get("CROSS_SLURM_PROCID") is not None:
        return None
    address, pattern = environ.get("SLURM_TOPOLOGY_ADDR"), environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    if address is None or pattern.lower() != "block.node":
        return None
    return _rank_by_block(address, _number(environ, "SLURM_TOPOLOGY_NODES_PER_BLOCK") or _NODES_PER_BLOCK)


def _rank_by_block(address: str, nodes_per_block: int) -> int:
    parts = address.split(".")
    if len(parts) != 2:
        raise _misread("SLURM_TOPOLOGY_ADDR", address, "SLURM_TOPOLOGY_ADDR_PATTERN says block.node")
    block, node = (_digits(part, f"SLURM_TOPOLOGY_ADDR={address}: {part}") for part in parts)
    if node >= nodes_per_block:
        raise _misread(
            "SLURM_TOPOLOGY_ADDR",
            address,
            f"node {node} does not fit into a block of {nodes_per_block} (SLURM_TOPOLOGY_NODES_PER_BLOCK)",
        )
    return block * nodes_per_block + node


def _rank_by_process(environ: Mapping[str, str], array_task: int | None, *, is_needed: bool) -> int:
    crossing = _number(environ, "CROSS_SLURM_PROCID")
    if crossing is not None:
        return crossing
    procid = _number(environ, "SLURM_PROCID")
    if procid is not None and array_task is not None:
        nodes = _nodes_per_task(environ)
        if nodes is None and not is_needed:
            return UNKNOWN_RANK
        if nodes is None:
            raise UsageError(
                "finding the place of this node",
                part="SLURM_ARRAY_TASK_ID is set, SLURM_NNODES is not",
                hint="start the launcher by srun inside the array task",
            )
        return array_task * nodes + procid
    if procid is not None:
        return procid
    group_rank = _number(environ, "GROUP_RANK")
    if group_rank is not None:
        return group_rank
    if environ.get("SLURM_JOB_ID") and is_needed:
        raise UsageError(
            "finding the place of this node",
            part="SLURM_JOB_ID is set, SLURM_PROCID is not",
            hint="start the launcher by srun, one per node",
        )
    return UNKNOWN_RANK


def _nodes_per_task(environ: Mapping[str, str]) -> int | None:
    found = _number(environ, "SLURM_NNODES")
    return found if found is not None else _number(environ, "SLURM_JOB_NUM_NODES")


def _nodes(environ: Mapping[str, str], node: str) -> tuple[str, ...]:
    try:
        return expand_nodes(environ.get("SLURM_JOB_NODELIST") or node)
    except ValueError as error:
        raise UsageError("finding the place of this node", part="SLURM_JOB_NODELIST", hint=str(error)) from error


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    # Not int() alone: it takes signs, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _misread(name, text, "it must be a whole number")
    return int(text)


def _digits(text: str, what: str) -> int:
    digits = "".join(letter for letter in text if letter in "0123456789")
    if not digits:
        raise UsageError("finding the place of this node", part=what, hint="it has no digits to number the node by")
    return int(digits)


def _misread(name: str, value: str, why: str) -> UsageError:
    return UsageError("finding the place of this node", part=f"{name}={value!r}", hint=why)
