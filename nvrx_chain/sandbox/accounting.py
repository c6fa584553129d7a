"""Accounting of a sandbox: a private MariaDB and a slurmdbd, both reachable by root of this machine alone.

MariaDB has no TCP port at all; slurmdbd finds its socket through MYSQL_UNIX_PORT, which the client library reads.
Touches: processes, the data directory.
"""

from __future__ import annotations

import socket

from nvrx_chain.records.files import write_atomic
from nvrx_chain.sandbox import render
from nvrx_chain.sandbox.bringup import Site, await_socket
from nvrx_chain.sandbox.config import DATABASE, DATABASE_DAEMON
from nvrx_chain.sandbox.processes import DaemonSpec, wait_until
from nvrx_chain.sandbox.programs import run

_INSTALL_SECONDS = 120.0
_START_SECONDS = 60.0


def start_accounting(site: Site) -> None:
    """Start MariaDB and slurmdbd and wait until slurmdbd answers, without which slurmctld would not start.

    Raises SandboxError.
    """
    _start_database(site)
    _start_database_daemon(site)


def _start_database(site: Site) -> None:
    place = site.place
    options = f"--defaults-file={place.runtime}/mariadb.cnf"
    write_atomic(place.runtime / "mariadb.cnf", render.render_database_conf(place).encode())
    install = (
        site.programs["mariadb-install-db"],
        options,
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    )
    run(install, environ=site.daemon_environ, timeout_seconds=_INSTALL_SECONDS, doing="creating the database")
    argv = (site.programs["mariadbd"], options)
    site.start([DaemonSpec(name=DATABASE, argv=argv, log=place.log(DATABASE))])
    await_socket(site, DATABASE, place.database_socket)


def _start_database_daemon(site: Site) -> None:
    place, ports = site.place, site.state.ports
    write_atomic(
        place.runtime / "slurmdbd.conf",
        render.render_slurmdbd_conf(site.state.config, place, ports).encode(),
        mode=0o600,
    )
    argv = (site.programs["slurmdbd"], "-D")
    site.start(
        [DaemonSpec(name=DATABASE_DAEMON, argv=argv, log=place.log("slurmdbd.out"))],
        MYSQL_UNIX_PORT=str(place.database_socket),
    )

    def answers() -> bool:
        site.require_running(DATABASE_DAEMON)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            return probe.connect_ex((site.addresses.controller, ports.database_daemon or 0)) == 0

    wait_until(site.clock, answers, _START_SECONDS, doing=f"starting {DATABASE_DAEMON}", wanted="an answer")
