"""Who takes part in a rendezvous: the launchers of a job as the coordinator knows them. Pure vocabulary."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One launcher process, which stands for one node."""

    agent_id: str
    """New for every process: a launcher that is started again on the same node is another member."""
    infra_rank: int
    """Place in the topology of the cluster; equal for two members only where two launchers share a node."""
    group: str
    """What is excluded as one: the array task, or the member itself where there is no array."""
    address: str
    """Name by which other nodes reach this one."""
    domain: str | None = None
    """NVLink domain (GPU ClusterUUID); None outside segment mode."""


class Standing(enum.Enum):
    """What the coordinator knows of a member between two rounds."""

    LIVE = "live"
    LOST = "lost"
    LEFT = "left"
    EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a round needs: numbers of nodes and, in seconds, how long it may wait."""

    min_nodes: int
    """Nodes that train."""
    max_nodes: int
    """Nodes that are expected at most; more may come, and wait as spares."""
    group_size: int = 1
    """Nodes of one array task. A group that is not complete holds no seat."""
    segment: int | None = None
    """Nodes that a segment takes from one NVLink domain; None is simple mode."""
    first_grace_seconds: float = 0.0
    """How long the first round waits for `max_nodes` once it could be filled."""
    last_call_seconds: float = 1.0
    """How long a round that could be filled waits for a live node of the round before."""
    last_call_max_seconds: float = 30.0
    """The most that such a node may announce for stopping its workers."""
    join_timeout_seconds: float = 600.0
    """How long a round that cannot be filled waits for somebody who might still come."""
    sticky: bool = True
    """Nodes that trained before keep their seats; else the lowest places in the topology get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who trains in a round, in the order of the group ranks, and who waits."""

    active: tuple[Member, ...]
    standby: tuple[Member, ...]
