"""A machine's name, limits and interpreter. Touches: the resolver, /dev/shm (statvfs), a probing socket."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time

from nvrx_chain import __version__
from nvrx_chain.doctor.facts import Host
from nvrx_chain.errors import NvrxError
from nvrx_chain.generation.rendezvous import choose_port, reachable_name


def read_host() -> Host:
    """This machine. Its name is judged as task 0 would judge it before it publishes a rendezvous."""
    name = socket.gethostname()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    port, port_problem = _port()
    return Host(
        name=name,
        python=sys.executable,
        python_version=".".join(str(part) for part in sys.version_info[:3]),
        package_version=__version__,
        read_at=time.time(),
        open_files=_files(soft),
        open_files_most=_files(hard),
        shared_memory_bytes=_shared_memory(),
        addresses=_addresses(name),
        name_problem=_name_problem(name),
        port=port,
        port_problem=port_problem,
    )


def _files(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _shared_memory() -> int | None:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def _addresses(name: str) -> tuple[str, ...]:
    try:
        return tuple(sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}))
    except OSError:
        return ()


def _name_problem(name: str) -> str | None:
    try:
        reachable_name(name, alone=False)
    except NvrxError as error:
        return str(error)
    return None


def _port() -> tuple[int | None, str | None]:
    try:
        return choose_port(), None
    except NvrxError as error:
        return None, str(error)
