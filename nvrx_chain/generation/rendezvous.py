"""Where the launchers of a generation meet: a name that peers can reach, a port that is free, and who has a seat.

Touches: the resolver, a probing socket, `control/rendezvous.json`.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
from collections.abc import Sequence

from nvrx_chain.clock import format_time
from nvrx_chain.errors import NvrxError
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.link import HostLink
from nvrx_chain.records.control import Rendezvous

log = logging.getLogger(__name__)

PORT_BASE = 20000
PORT_SPAN = 12000
PORT_TRIES = 200


def choose_port() -> int:
    """A free TCP port below the ephemeral range, from a random one on. Raises NvrxError when a long run is taken.

    Random, because the launcher binds seconds after the probe: two hosts on one machine that start from the same
    number, as sandboxes with equal job ids would, both find it free.
    """
    start = secrets.randbelow(PORT_SPAN)
    for attempt in range(PORT_TRIES):
        port = PORT_BASE + (start + attempt) % PORT_SPAN
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # A store that closed a second ago leaves TIME_WAIT entries; the launcher binds with this option as well.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise NvrxError("choosing a rendezvous port", hint=f"{PORT_TRIES} ports from {PORT_BASE + start} up are all taken")


def reachable_name(host: str, *, alone: bool) -> str:
    """The name by which peers reach this host. Raises NvrxError for a name that only works on this host.

    No silent fallback: a loopback name makes every node a world of its own.
    """
    if alone:
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NvrxError(
            f"resolving the rendezvous host {host}: {error}", hint="peers could not find it either; check DNS or hosts"
        ) from error
    addresses = sorted({str(entry[4][0]) for entry in found})
    if all(_is_useless(address) for address in addresses):
        raise NvrxError(
            f"resolving the rendezvous host {host}",
            part=", ".join(addresses),
            hint="the host's own name must resolve to an address that other nodes can reach",
        )
    return host


def _is_useless(address: str) -> bool:
    """127.0.0.1 and ::1, and Debian's 127.0.1.1. A cluster on one machine has other addresses of 127/8 per node."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return parsed.is_unspecified or str(parsed) in ("127.0.0.1", "127.0.1.1", "::1")


def publish(context: TaskContext, *, started: bool, members: Sequence[int], present: Sequence[int]) -> Rendezvous:
    """Publish where to meet; with `started` the named members may start their launchers.

    The port is probed again for each publication: an assembly can take hours.
    """
    alone = context.manifest.shape.total == 1 and context.manifest.shape.nodes_per_task == 1
    now = format_time(context.clock.now())
    link = context.link if isinstance(context.link, HostLink) else None
    rendezvous = Rendezvous(
        rendezvous_host=reachable_name(context.identity.host, alone=alone),
        rendezvous_port=choose_port(),
        nonce=secrets.token_hex(4),
        secret=link.secret if link else secrets.token_hex(16),
        published_at=now,
        started_at=now if started else None,
        members=tuple(members),
        present=tuple(present),
        link_port=link.port if link else None,
        **context.identity.stamp(),
    )
    context.board.publish(rendezvous)
    log.info(
        "published rendezvous host=%s port=%s started=%s members=%s",
        rendezvous.rendezvous_host,
        rendezvous.rendezvous_port,
        started,
        rendezvous.members,
    )
    return rendezvous


def reseat(context: TaskContext, current: Rendezvous, members: Sequence[int]) -> Rendezvous:
    """Publish other members for a rendezvous that goes on: same host, port and nonce."""
    changed = Rendezvous(
        rendezvous_host=current.rendezvous_host,
        rendezvous_port=current.rendezvous_port,
        nonce=current.nonce,
        secret=current.secret,
        published_at=current.published_at,
        started_at=current.started_at,
        members=tuple(members),
        present=current.present,
        link_port=current.link_port,
        **context.identity.stamp(),
    )
    context.board.publish(changed)
    log.info("changed the members of the rendezvous members=%s", changed.members)
    return changed


def choose_members(
    joined: Sequence[int], left: Sequence[int], current: Sequence[int], train_tasks: int
) -> tuple[int, ...]:
    """The tasks that have a seat when a launcher has exactly `train_tasks` of them, in the order of the seats. Pure.

    A member that has not left keeps its seat, and the rank that goes with it, for two nodes of one rank would both
    train; free seats go to the lowest joined tasks. Fewer than `train_tasks` when there are not enough.
    """
    alive = [task for task in joined if task not in left]
    waiting = [task for task in sorted(alive) if task not in current]
    seats = [*current, *[None] * (train_tasks - len(current))]
    taken = [task if task in alive else (waiting.pop(0) if waiting else None) for task in seats]
    return tuple(task for task in taken if task is not None)
