"""Starting a sandbox: its files, its munge, its controller, its nodes. Every start is on record before it happens.

Touches: the runtime and data directories, processes.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.errors import SandboxError
from nvrx_chain.records.files import write_atomic
from nvrx_chain.sandbox import render
from nvrx_chain.sandbox.config import CONTROLLER, MUNGE, Addresses, Place, SandboxConfig
from nvrx_chain.sandbox.controller import Controller
from nvrx_chain.sandbox.processes import Daemon, DaemonSpec, start_daemons, wait_until
from nvrx_chain.sandbox.procfs import find_process, read_environment
from nvrx_chain.sandbox.programs import run
from nvrx_chain.sandbox.record import SandboxState, write_public, write_state
from nvrx_chain.slurm.command import reading_environment

ID_VARIABLE = "NVRX_SANDBOX_ID"
_START_SECONDS = 30.0
_PROBE_SECONDS = 10.0
_NAMESPACES = ("--uts", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")


@dataclass(slots=True, kw_only=True)
class Site:
    """A sandbox that is being worked on: where it is, what it is made of, its record as last written."""

    place: Place
    state: SandboxState
    programs: Mapping[str, str]
    path: str
    clock: Clock

    @property
    def client_environ(self) -> dict[str, str]:
        """For Slurm's client programs, from nothing: a stray SQUEUE_* or SLURM_* would filter or redirect them."""
        return reading_environment({"PATH": self.path, "SLURM_CONF": str(self.place.slurm_conf)})

    @property
    def daemon_environ(self) -> dict[str, str]:
        """For the daemons. The id in it is how a process is recognised as the sandbox's without the record."""
        return {
            "PATH": self.path,
            "HOME": "/root",
            "LC_ALL": "C",
            "SLURM_CONF": str(self.place.slurm_conf),
            ID_VARIABLE: self.state.sandbox_id,
        }

    @property
    def addresses(self) -> Addresses:
        return self.place.addresses(self.state.config)

    @property
    def controller(self) -> Controller:
        return Controller(programs=self.programs, environ=self.client_environ)

    def is_running(self, name: str) -> bool:
        daemon = self.state.daemon(name)
        return daemon is not None and find_process(daemon.id) is not None

    def start(self, specs: Sequence[DaemonSpec], **extra_environ: str) -> None:
        """Start daemons, the record first."""
        start_daemons(specs, self.daemon_environ | extra_environ, self._record)

    def save(self, state: SandboxState) -> None:
        write_state(self.place, state)
        self.state = state

    def _record(self, daemons: Sequence[Daemon]) -> None:
        self.save(msgspec.structs.replace(self.state, daemons=(*self.state.daemons, *daemons)))

    def require_running(self, name: str) -> None:
        """Raises SandboxError with the last words of a daemon that ended."""
        if not self.is_running(name):
            raise SandboxError(
                f"starting a sandbox: {name} ended: {last_words(self.place.log(name), self.place.log(f'{name}.out'))}",
                hint="mend what its last words name, end the rest with `sandbox down`, start anew",
            )


def last_words(*logs: Path) -> str:
    """The last line of a daemon's logs that looks like an error, else the last line."""
    # What a daemon says before it opens its own log, it says on its standard output.
    texts = (log.read_text(errors="replace") for log in logs if log.exists())
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "fatal" in line.lower() or "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1]


def require_root(doing: str) -> None:
    """Raises SandboxError for everybody but root, who alone may make the namespaces that are nodes."""
    if os.geteuid() != 0:
        raise SandboxError(f"{doing}: needs root, since nodes are namespaces of their own", hint="run it with sudo")


def require_outside(state: SandboxState, doing: str) -> None:
    """Raises SandboxError inside a node of this very sandbox, where its processes have other numbers or none."""
    if read_environment(1).get(ID_VARIABLE) == state.sandbox_id:
        raise SandboxError(f"{doing}: this is one of its nodes", hint="run it outside the sandbox's jobs")


def check_namespaces(config: SandboxConfig, programs: Mapping[str, str], path: str) -> None:
    """Raises SandboxError unless this machine lets us make nodes: being root is not enough in most containers."""
    network = ("--net",) if config.network else ()
    try:
        probe = (programs["unshare"], *network, *_NAMESPACES, programs["mount"], "--bind", "/etc/hosts", "/etc/hosts")
        run(probe, environ={"PATH": path}, timeout_seconds=_PROBE_SECONDS, doing="making a namespace")
    except SandboxError as error:
        raise SandboxError(
            f"starting a sandbox: namespaces are refused here: {error.message}",
            hint="in a container it must be privileged (CAP_SYS_ADMIN)",
        ) from error


def prepare_files(site: Site) -> None:
    """Write everything that the daemons read. Raises SandboxError or RecordError."""
    place, config, ports = site.place, site.state.config, site.state.ports
    try:
        _make_directories(place, gpus=config.gpus_per_node)
        host_file = Path("/etc/hosts").read_text(errors="replace")
    except OSError as error:
        raise SandboxError(
            f"preparing a sandbox: {error.strerror}",
            part=str(error.filename),
            hint="choose a --dir on a file system with room that root may write",
        ) from error
    write_atomic(place.munge_key, os.urandom(1024), mode=0o400)
    write_public(place.slurm_conf, render.render_slurm_conf(config, place, ports).encode())
    write_public(place.runtime / "gres.conf", render.render_gres_conf(config, place).encode())
    write_public(place.runtime / "cgroup.conf", render.render_cgroup_conf().encode())
    write_public(place.hosts_file, render.render_hosts(config, place, host_file).encode())
    write_public(place.node_script, render.render_node_script().encode(), mode=0o755)
    stepd = render.render_stepd_script(sys.executable, site.programs["slurmstepd"])
    write_public(place.stepd_script, stepd.encode(), mode=0o755)


def _make_directories(place: Place, *, gpus: int) -> None:
    if place.data.exists():
        # Left by a sandbox whose machine was rebooted, or kept logs: nobody's slot leads here, or claim() had refused.
        shutil.rmtree(place.data)
    for directory in (place.data, place.data / "log", place.data / "state"):
        directory.mkdir(mode=0o755)
    place.data_link.symlink_to(place.data)
    for name in ("spool", "pid", "dev"):
        (place.runtime / name).mkdir()
        # Another user's job runs its script from the spool directory, whatever our umask is.
        (place.runtime / name).chmod(0o755)
    place.private.mkdir(mode=0o700)
    if not place.shared.is_dir():
        place.shared.mkdir()
        # As a scratch file system: every user may have a directory of his own in it.
        place.shared.chmod(0o1777)
    for index in range(gpus):
        (place.devices / f"gpu{index}").symlink_to("/dev/null")


def enter_network(site: Site, node: str) -> tuple[str, ...]:
    """The words before a command that runs in the network of a node."""
    namespace = site.addresses.namespace(site.state.config.node_index(node))
    return (site.programs["ip"], "netns", "exec", namespace)


def start_munge(site: Site) -> None:
    """Start munged and wait until its socket answers."""
    place = site.place
    argv = (
        site.programs["munged"],
        "--foreground",
        f"--key-file={place.munge_key}",
        f"--socket={place.munge_socket}",
        f"--pid-file={place.runtime}/pid/munged.pid",
        f"--seed-file={place.private}/munge.seed",
    )
    site.start([DaemonSpec(name=MUNGE, argv=argv, log=place.log(MUNGE))])
    await_socket(site, MUNGE, place.munge_socket)


def await_socket(site: Site, name: str, path: Path) -> None:
    """Wait until a daemon accepts connections on its Unix socket. Raises SandboxError when it ends instead."""

    def answers() -> bool:
        site.require_running(name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
        return True

    wait_until(site.clock, answers, _START_SECONDS, doing=f"starting {name}", wanted=f"an answer on {path}")


def start_controller(site: Site) -> None:
    """Start slurmctld and wait until it answers."""
    argv = (site.programs["slurmctld"], "-D", "-f", str(site.place.slurm_conf))
    site.start([DaemonSpec(name=CONTROLLER, argv=argv, log=site.place.log("slurmctld.out"))])

    def answers() -> bool:
        site.require_running(CONTROLLER)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            return probe.connect_ex((site.addresses.controller, site.state.ports.controller)) == 0

    wait_until(site.clock, answers, _START_SECONDS, doing=f"starting {CONTROLLER}", wanted="an answer")


def node_daemon(node: str) -> str:
    """The name under which the record holds a node's outermost process."""
    return f"node.{node}"


def start_nodes(site: Site, nodes: Sequence[str]) -> None:
    """Start nodes: each its own UTS, PID and mount namespaces, with a slurmd in them."""
    site.start([_node_spec(site, node) for node in nodes])


def _node_spec(site: Site, node: str) -> DaemonSpec:
    place, programs = site.place, site.programs
    words = (node, place.hosts_file, programs["slurmd"], place.slurm_conf, place.stepd_script, place.shared)
    inner = (str(place.node_script), *(str(word) for word in words))
    outer = enter_network(site, node) if site.state.config.network else ()
    return DaemonSpec(
        name=node_daemon(node),
        argv=(*outer, programs["unshare"], *_NAMESPACES, *inner),
        log=place.log(node_daemon(node)),
    )


def await_idle(site: Site, nodes: Sequence[str], seconds: float) -> None:
    """Wait until Slurm calls every one of these nodes idle. Raises SandboxError that names those which are not."""
    seen: dict[str, str] = {}

    def all_idle() -> bool:
        for name in (CONTROLLER, *(node_daemon(node) for node in nodes)):
            site.require_running(name)
        seen.clear()
        seen.update(site.controller.node_states())
        return all(seen.get(node) == "idle" for node in nodes)

    try:
        wait_until(site.clock, all_idle, seconds, doing="waiting for nodes", wanted="all idle")
    except SandboxError as error:
        others = ", ".join(f"{node} {seen.get(node, 'unknown')}" for node in nodes if seen.get(node) != "idle")
        raise SandboxError(
            error.message, part=others or None, hint="the nodes' logs say why; on a slow machine have fewer nodes"
        ) from error
