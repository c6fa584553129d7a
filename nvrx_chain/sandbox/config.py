"""What a sandbox is made of, as values: its options, where it lives, which ports and addresses it owns. Pure.

Two directories. The *runtime directory* is short and safe (`/run/nvrx-sandbox/17-3fa9c1`): everything that Slurm,
munge or MariaDB is told by path lies below it or is reached through its link `data`, because a socket path holds 108
bytes and slurm.conf knows no quoting. The *data directory* lies below the directory that the user named, whatever its
name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import UsageError

MAX_NODES = 250
CONTROLLER = "slurmctld"
MUNGE = "munged"
DATABASE = "mariadbd"
DATABASE_DAEMON = "slurmdbd"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """The options of `sandbox up`. Durations in whole seconds; the defaults make faults visible fast.

    Raises UsageError for values that Slurm would refuse much later and less clearly.
    """

    directory: Path
    nodes: int = 8
    gpus_per_node: int = 4
    cpus_per_node: int = 8
    accounting: bool = False
    kill_wait_seconds: int = 5
    slurmd_timeout_seconds: int = 15
    max_array_size: int = 1001
    kill_on_bad_exit: int = 0
    private_jobs: bool = False
    network: bool = False

    def __post_init__(self) -> None:
        _require_directory(self.directory)
        _require(1 <= self.nodes <= MAX_NODES, "nodes", self.nodes, f"1 to {MAX_NODES}")
        _require(0 <= self.gpus_per_node <= 64, "gpus-per-node", self.gpus_per_node, "0 to 64")
        _require(1 <= self.cpus_per_node <= 1024, "cpus-per-node", self.cpus_per_node, "1 to 1024")
        _require(1 <= self.kill_wait_seconds <= 65535, "kill-wait", self.kill_wait_seconds, "1 to 65535")
        _require(3 <= self.slurmd_timeout_seconds <= 65535, "slurmd-timeout", self.slurmd_timeout_seconds, "3 to 65535")
        _require(1 <= self.max_array_size <= 4_000_001, "max-array-size", self.max_array_size, "1 to 4000001")
        _require(self.kill_on_bad_exit in (0, 1), "kill-on-bad-exit", self.kill_on_bad_exit, "0 or 1")

    def node_index(self, node: str) -> int:
        """The number of a node, from 1."""
        return self.node_names.index(node) + 1

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{index}" for index in range(1, self.nodes + 1))


def _require_directory(directory: Path) -> None:
    try:
        str(directory).encode()
    except UnicodeEncodeError as error:
        # The record of the sandbox is JSON, which has no way to write such a name.
        raise UsageError(
            "configuring a sandbox: the directory's name is not UTF-8", part="--dir", hint="choose another --dir"
        ) from error
    if not directory.is_absolute():
        raise UsageError(
            "configuring a sandbox: the directory is not absolute",
            part=str(directory),
            hint="give a path that begins with /",
        )


def _require(holds: bool, option: str, value: int, allowed: str) -> None:
    if not holds:
        raise UsageError(f"configuring a sandbox: {value} is out of range", part=f"--{option}", hint=f"{allowed}")


def default_directory(environ: Mapping[str, str]) -> Path:
    """Where a sandbox lives when nobody said: below the user's state directory (XDG base directory specification)."""
    state = environ.get("XDG_STATE_HOME", "")
    # The specification says that a relative value is to be ignored.
    base = Path(state) if os.path.isabs(state) else Path(environ.get("HOME") or "/root") / ".local" / "state"
    return base / "nvrx-chain" / "sandbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The TCP ports that one sandbox owns. `database_daemon` is None without accounting."""

    controller: int
    nodes: tuple[int, ...]
    database_daemon: int | None = None

    @property
    def all(self) -> frozenset[int]:
        daemon = () if self.database_daemon is None else (self.database_daemon,)
        return frozenset((self.controller, *self.nodes, *daemon))


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses and names in the network of one sandbox; no two sandboxes share any. Nodes count from 1.

    Without a network of its own a node has a loopback address. The private network lies in 198.18.0.0/15, which is set
    aside for tests (RFC 2544), so it hides nothing that a site uses. A device name holds 15 bytes.
    """

    slot: int
    network: bool

    @property
    def controller(self) -> str:
        return f"198.18.{self.slot}.254" if self.network else "127.0.0.1"

    def node(self, index: int) -> str:
        return f"198.18.{self.slot}.{index}" if self.network else f"127.0.{self.slot}.{index}"

    @property
    def bridge(self) -> str:
        return f"nvrx{self.slot}"

    def host_end(self, index: int) -> str:
        """This machine's end of a node's cable."""
        return f"nvrx{self.slot}n{index}"

    def namespace(self, index: int) -> str:
        return f"nvrx{self.slot}-n{index}"

    def owns(self, name: str) -> bool:
        """Whether a device or a network namespace of this name is this sandbox's."""
        return re.fullmatch(rf"nvrx{self.slot}(-?n[0-9]+)?", name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Every path of a sandbox. `slot` is its number on this machine, which also makes its addresses distinct."""

    runtime: Path
    slot: int
    directory: Path

    @property
    def data(self) -> Path:
        """Where the bulky files really are. Only we use this name; daemons get `data_link`."""
        return self.directory / "nvrx-sandbox"

    @property
    def data_link(self) -> Path:
        return self.runtime / "data"

    @property
    def state_file(self) -> Path:
        return self.runtime / "state.json"

    @property
    def lock_file(self) -> Path:
        return self.runtime / "lock"

    @property
    def slurm_conf(self) -> Path:
        return self.runtime / "slurm.conf"

    @property
    def private(self) -> Path:
        """Readable by root alone: keys, the database's socket."""
        return self.runtime / "private"

    @property
    def munge_socket(self) -> Path:
        return self.runtime / "munge.sock"

    @property
    def munge_key(self) -> Path:
        return self.private / "munge.key"

    @property
    def database_socket(self) -> Path:
        return self.private / "mariadb.sock"

    @property
    def hosts_file(self) -> Path:
        return self.runtime / "hosts"

    @property
    def node_script(self) -> Path:
        return self.runtime / "node.sh"

    @property
    def stepd_script(self) -> Path:
        return self.runtime / "slurmstepd.sh"

    @property
    def shared(self) -> Path:
        """What stands for the shared file system: each node reaches it through a mount of its own, which can stall."""
        return self.directory / "shared"

    @property
    def network_script(self) -> Path:
        return self.runtime / "network.ip"

    @property
    def devices(self) -> Path:
        return self.runtime / "dev"

    @property
    def logs(self) -> Path:
        return self.data_link / "log"

    def addresses(self, config: SandboxConfig) -> Addresses:
        """Who has which address, and what the devices of the private network are called."""
        return Addresses(slot=self.slot, network=config.network)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"
