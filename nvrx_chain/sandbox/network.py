"""The private network of a sandbox: a bridge on this machine, and one network namespace with a cable for each node.

Everything in it has a name that follows from the sandbox's slot, so it is found and removed without any note of it,
also after an `up` that was killed. Touches: network devices, routes to 198.18.SLOT.0/24, /run/netns.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nvrx_chain.errors import SandboxError
from nvrx_chain.records.files import write_atomic
from nvrx_chain.sandbox import render
from nvrx_chain.sandbox.bringup import Site
from nvrx_chain.sandbox.config import Addresses, Place
from nvrx_chain.sandbox.programs import run

DEVICES = Path("/sys/class/net")
NAMESPACES = Path("/run/netns")
_IP_SECONDS = 60.0
_MAKING = "making a sandbox's network"


def start_network(site: Site) -> None:
    """Make the bridge and the nodes' namespaces. Raises SandboxError."""
    place, config = site.place, site.state.config
    # A sandbox whose register was wiped can have left its network under this slot's names.
    remove_network(place, site.path)
    write_atomic(place.network_script, render.render_network(config, place).encode())
    run_ip(site, _MAKING, "-batch", str(place.network_script))
    for index in range(1, config.nodes + 1):
        script = place.runtime / f"network.n{index}.ip"
        write_atomic(script, render.render_node_network(site.addresses, index).encode())
        run_ip(site, _MAKING, "-n", site.addresses.namespace(index), "-batch", str(script))


def remove_network(place: Place, path: str) -> None:
    """Remove every device and namespace of the sandbox's names. Nothing happens where there is none."""
    # Whatever the record says: these names belong to the slot, with a network or without.
    addresses = Addresses(slot=place.slot, network=True)
    devices, namespaces = _owned(addresses, DEVICES), _owned(addresses, NAMESPACES)
    program = shutil.which("ip", path=path)
    if not (devices or namespaces):
        return
    if program is None:
        raise SandboxError("removing a sandbox's network: not installed: ip", hint="apt-get install -y iproute2")
    # The cables first: with a namespace the kernel removes its end of a cable when it finds the time.
    for words in [("link", "del", name) for name in devices] + [("netns", "del", name) for name in namespaces]:
        _remove(addresses, (program, *words), path)


def _remove(addresses: Addresses, argv: tuple[str, ...], path: str) -> None:
    try:
        run(argv, environ={"PATH": path}, timeout_seconds=_IP_SECONDS, doing="removing a sandbox's network")
    except SandboxError:
        # Gone with the other end of its cable, or with another `down`: that is what was wanted.
        if argv[-1] in (*_owned(addresses, DEVICES), *_owned(addresses, NAMESPACES)):
            raise


def _owned(addresses: Addresses, directory: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if addresses.owns(name))
    except FileNotFoundError:
        return []


def run_ip(site: Site, doing: str, *words: str) -> None:
    """Run `ip` for a sandbox that is recorded. Raises SandboxError, whose message starts with `doing`."""
    # With the sandbox's id: a `down` after an `up` that was killed must end this one before it removes what it makes.
    argv = (site.programs["ip"], *words)
    run(argv, environ=site.daemon_environ, timeout_seconds=_IP_SECONDS, doing=doing)
