"""Questions about restart cycles that several detectors ask of a snapshot. Pure.

A long chain has tens of thousands of closed cycles. Each question looks at the newest ones and stops at the first that
settles it; none walks over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import Closed
from nvrx_chain.slurm.nodelist import fold_nodes
from nvrx_watch.detectors.chain_end import is_held
from nvrx_watch.detectors.facts import active_hold, has_ended, holds_node, released_at
from nvrx_watch.detectors.wording import MOST_LISTED, chain_command, listed
from nvrx_watch.model import ActionKind, ActionRequest, Cycle, Generation, Queue, Snapshot

MOST_CYCLES = 200
"""No question looks at more of the newest cycles than this; what is counted beyond is "at least"."""

Placed = tuple[Generation, Cycle]
"""A cycle and the generation that it belongs to."""

NODE_SAMPLE = 10
"""Of how many cycles the node sets are compared for a message: sets of a big run are large."""


def cycles_of(generation: Generation) -> Sequence[Cycle]:
    """The cycles of a generation, () where there are none or they could not be read."""
    if generation.cycles is None or isinstance(generation.cycles, Unobserved):
        return ()
    return generation.cycles


def newest_cycles(snapshot: Snapshot, most: int = MOST_CYCLES) -> Iterator[Placed]:
    """The cycles of the whole chain, the newest first, with the generation of each."""
    left = most
    for generation in reversed(snapshot.generations):
        for cycle in reversed(cycles_of(generation)):
            if left <= 0:
                return
            left -= 1
            yield generation, cycle


def newest_closed(snapshot: Snapshot, most: int = MOST_CYCLES) -> Iterator[Placed]:
    """The cycles that ended, the newest first, back to the last release of the chain.

    What failed before a release was looked at by a person: a hold for it would undo the release. A cycle whose end
    cannot be read is left out.
    """
    released = released_at(snapshot)
    for generation, cycle in newest_cycles(snapshot, most):
        if cycle.ended_at is None or cycle.ended_at.tzinfo is None:
            continue
        if released is not None and cycle.ended_at <= released:
            return
        yield generation, cycle


def age_of(at: datetime | None, now: datetime) -> float | None:
    """Seconds since then, None when that is unknown. A time in the future is just now: clocks differ."""
    if at is None or at.tzinfo is None:
        # A time without a zone can mean any of 24 hours.
        return None
    return max(0.0, (now - at).total_seconds())


def length_of(cycle: Cycle) -> float | None:
    """How long a cycle lasted; None while it is open and where its times say nothing."""
    times = (cycle.started_at, cycle.ended_at)
    return cycle.seconds() if all(at is not None and at.tzinfo is not None for at in times) else None


def is_training(snapshot: Snapshot, generation: Generation) -> bool:
    """Whether a generation still goes on, as far as can be seen: nothing says that it ended, and it holds a node."""
    if isinstance(generation.closed, Closed) or has_ended(snapshot, generation):
        return False
    if isinstance(snapshot.queue, Queue):
        return any(holds_node(row) for row in snapshot.queue.rows(generation.array_job_id))
    return True


def training_generation(snapshot: Snapshot) -> Generation | None:
    """The newest generation that has begun, None when it does not go on."""
    current = snapshot.current()
    return current if current is not None and is_training(snapshot, current) else None


def open_cycle(generation: Generation) -> Cycle | None:
    """The cycle that a generation is in. An open record further back was left by a launcher that was killed."""
    cycles = cycles_of(generation)
    return cycles[-1] if cycles and cycles[-1].ended_at is None else None


def median(values: Sequence[float]) -> float | None:
    """The middle value, None of nothing. `statistics` would cost every pass more than the whole detector."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return None
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def common_nodes(cycles: Sequence[Cycle]) -> frozenset[str]:
    """The nodes that trained in each of the first `NODE_SAMPLE` of these cycles."""
    sets = [frozenset(cycle.active_nodes) for cycle in cycles[:NODE_SAMPLE]]
    return frozenset.intersection(*sets) if sets else frozenset()


def name_nodes(names: Sequence[str] | frozenset[str]) -> str:
    """Node names for a person: a few one by one, many folded as Slurm does."""
    ordered = sorted(names)
    if len(ordered) <= MOST_LISTED:
        return listed(ordered)
    try:
        return listed((fold_nodes(ordered),))
    except ValueError:
        # One of them is no node name; the record it came from may hold anything.
        return listed(ordered)


def node_hours(cycles: Sequence[Cycle]) -> float:
    """Hours that nodes trained in these cycles, one for each node and hour."""
    return sum((length_of(cycle) or 0.0) * len(cycle.active_nodes) for cycle in cycles) / 3600


def hold_request(snapshot: Snapshot, why: str) -> ActionRequest | None:
    """A hold of what is queued; None when the queue was not seen, or when nothing that waits in it is free to start."""
    if isinstance(snapshot.queue, Unobserved) or active_hold(snapshot) is not None:
        return None
    queued = [one.array_job_id for one in snapshot.queued()]
    free = [job for job in queued if not all(map(is_held, snapshot.queue.pending(job)))]
    if not free:
        return None
    command = chain_command(snapshot.subject, "hold") or f"scontrol hold {','.join(map(str, free))}"
    return ActionRequest(kind=ActionKind.HOLD, array_job_id=None, why=why, command=command)
