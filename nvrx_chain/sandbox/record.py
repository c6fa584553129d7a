"""The record of one sandbox and the register of all sandboxes of this machine.

The register is the directory /run/nvrx-sandbox: one directory per sandbox, named by its slot (a number that gives it
its addresses) and the start of its id, so that a SLURM_CONF of an ended sandbox never leads to the next one. Its
`state.json` names every process that may run. Slots and ports are chosen under one lock of the machine; a sandbox's
own lock keeps two commands from changing it at once. Touches: that directory, TCP ports (bound for a moment to see
that they are free).
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import SandboxError, Unobserved
from nvrx_chain.records.files import read_bytes, write_atomic
from nvrx_chain.sandbox.config import Place, Ports, SandboxConfig
from nvrx_chain.sandbox.processes import Daemon, poll

REGISTER = Path("/run/nvrx-sandbox")
SCHEMA = 1

# 127.0.0.x and 127.0.1.x are in use: localhost, and Debian's address of the machine's own name.
_SLOTS = range(10, 250)
# Away from the ports of rendezvous hosts (20,000 to 31,999): a generation probes its port seconds before its launcher
# binds it, and the next sandbox would take it in between.
_PORTS = range(10_000, 20_000)
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOCK_SECONDS = 60.0


class SandboxGone(SandboxError):
    """There was a sandbox, and somebody ended it meanwhile."""


class SandboxState(msgspec.Struct, frozen=True, kw_only=True):
    """`state.json`: who the sandbox is and every process it ever started that may still run. Written before each start.

    `sandbox_id` is in the environment of every daemon (NVRX_SANDBOX_ID). `ready` is set once all nodes were idle;
    `created_directory` says that the user's directory was not there before.
    """

    schema: int
    sandbox_id: str
    boot_id: str
    created_at: str
    created_directory: bool
    config: SandboxConfig
    ports: Ports
    daemons: tuple[Daemon, ...] = ()
    ready: bool = False

    def daemon(self, name: str) -> Daemon | None:
        """The latest process that was started under this name."""
        named = [daemon for daemon in self.daemons if daemon.name == name]
        return named[-1] if named else None


def write_state(place: Place, state: SandboxState) -> None:
    """Replace the record. Raises RecordError."""
    write_public(place.state_file, msgspec.json.encode(state, enc_hook=_encode) + b"\n")


def write_public(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace a file that other users need, whatever our umask is. Raises RecordError."""
    write_atomic(path, content, mode=mode)
    path.chmod(mode)


def read_state(place: Place) -> SandboxState | None | Unobserved:
    """The record of a slot; None when it has none (a claim that never got that far)."""
    try:
        owner = place.runtime.parent.stat().st_uid
    except FileNotFoundError:
        return None
    # Only the owner of the register (root, as /run is root's) may say which processes are to be killed.
    content = read_bytes(place.state_file, owner_uid=owner)
    if content is None or isinstance(content, Unobserved):
        return content
    try:
        state = msgspec.json.decode(content, type=SandboxState, dec_hook=_decode)
    except msgspec.DecodeError as error:
        return Unobserved(f"{place.state_file} is no record of a sandbox: {error}")
    # Where /run is no tmpfs the record outlives a reboot; its processes do not, and their numbers are given anew.
    return state if state.boot_id == read_boot_id() else msgspec.structs.replace(state, daemons=())


def read_boot_id() -> str:
    """What tells one boot of this machine from the next."""
    return _BOOT_ID.read_text().strip()


def _encode(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _decode(kind: type, value: Any) -> Any:
    return kind(value)


def find_place(directory: Path) -> Place | None:
    """The slot of the sandbox that belongs to `directory`; None when there is none on this machine."""
    wanted = str(directory)
    for place in _places():
        if str(place.directory) == wanted:
            return place
    return None


def _places() -> Iterator[Place]:
    """Every claimed slot. Whose it is, is written in the link `directory`."""
    for slot, runtime in _runtimes():
        try:
            directory = Path(os.readlink(runtime / "directory"))
        except FileNotFoundError:
            continue
        yield Place(runtime=runtime, slot=slot, directory=directory)


def _runtimes() -> list[tuple[int, Path]]:
    """Every slot's directory, in the order of the slots, also those whose claim was cut short."""
    try:
        names = os.listdir(REGISTER)
    except FileNotFoundError:
        return []
    numbered = ((name.partition("-")[0], REGISTER / name) for name in names)
    return sorted((int(number), path) for number, path in numbered if number.isdigit())


@contextlib.contextmanager
def claim(config: SandboxConfig, clock: Clock, sandbox_id: str) -> Iterator[tuple[Place, SandboxState]]:
    """Take a free slot and free ports for `config.directory`, write the first record, and hold the slot's lock.

    Raises SandboxError when the directory has a sandbox already or nothing is free.
    """
    _make_register()
    with contextlib.ExitStack() as held:
        with hold_register(clock):
            if find_place(config.directory) is not None:
                raise SandboxError(
                    "starting a sandbox: there is one already",
                    part=str(config.directory),
                    hint="run `sandbox down` first",
                )
            created = _make_directory(config.directory)
            place = _take_slot(config.directory, sandbox_id)
            # Taken before the machine's lock is given back, or a `down` of the same directory could slip in between.
            held.enter_context(hold_lock(place.lock_file, clock, doing="claiming a sandbox"))
            state = SandboxState(
                schema=SCHEMA,
                sandbox_id=sandbox_id,
                boot_id=read_boot_id(),
                created_at=format_time(clock.now()),
                created_directory=created,
                config=config,
                ports=_choose_ports(config, {port for other in _places() for port in _ports_of(other)}),
            )
            write_state(place, state)
        yield place, state


@contextlib.contextmanager
def hold_register(clock: Clock) -> Iterator[None]:
    """Keep everybody from claiming a slot for a moment."""
    with hold_lock(REGISTER / "lock", clock, doing="locking the register of sandboxes"):
        yield


def _make_register() -> None:
    try:
        REGISTER.mkdir(exist_ok=True)
        REGISTER.chmod(0o755)
    except OSError as error:
        raise SandboxError(
            f"starting a sandbox: {error.strerror}",
            part=str(REGISTER),
            hint="a sandbox is started by root, on a machine whose /run can be written",
        ) from error


def _make_directory(directory: Path) -> bool:
    """Make the user's directory; False when it was there."""
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        if directory.is_dir():
            return False
        raise SandboxError(
            "starting a sandbox: this is no directory", part=str(directory), hint="choose another --dir"
        ) from None
    except OSError as error:
        raise SandboxError(
            f"starting a sandbox: {error.strerror}", part=str(directory), hint="choose a --dir that root may make"
        ) from error
    return True


def _take_slot(directory: Path, sandbox_id: str) -> Place:
    for _, runtime in _runtimes():
        if not (runtime / "directory").is_symlink():
            # A claim that was killed before it wrote its link: nothing was started in it.
            shutil.rmtree(runtime, ignore_errors=True)
    taken = {slot for slot, _ in _runtimes()}
    free = next((slot for slot in _SLOTS if slot not in taken), None)
    if free is None:
        raise SandboxError(
            f"starting a sandbox: all {len(_SLOTS)} slots are taken",
            part=str(REGISTER),
            hint="end one with `sandbox down`: the links in it name their directories",
        )
    runtime = REGISTER / f"{free}-{sandbox_id[:6]}"
    runtime.mkdir()
    runtime.chmod(0o755)
    (runtime / "directory").symlink_to(directory)
    return Place(runtime=runtime, slot=free, directory=directory)


def _ports_of(place: Place) -> frozenset[int]:
    state = read_state(place)
    return state.ports.all if isinstance(state, SandboxState) else frozenset()


def _choose_ports(config: SandboxConfig, taken: set[int]) -> Ports:
    wanted = config.nodes + 1 + int(config.accounting)
    # Above this the kernel gives ports away to every outgoing connection.
    end = min(_PORTS.stop, int(_EPHEMERAL.read_text().split()[0]))
    free = (port for port in range(_PORTS.start, end) if port not in taken and _is_free(port))
    chosen = list(itertools.islice(free, wanted))
    if len(chosen) < wanted:
        raise SandboxError(
            f"starting a sandbox: fewer than {wanted} free ports from {_PORTS.start} to {end}",
            hint="end other sandboxes, or have fewer nodes",
        )
    controller, *others = chosen
    database = others.pop() if config.accounting else None
    return Ports(controller=controller, nodes=tuple(others), database_daemon=database)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def hold_lock(path: Path, clock: Clock, *, doing: str) -> Iterator[None]:
    """Hold an advisory lock on a file.

    Raises SandboxGone when the file's directory is not there (any more), SandboxError when another command keeps the
    lock for a minute.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError as error:
        raise SandboxGone(f"{doing}: the sandbox is gone", part=str(path.parent)) from error
    try:

        def locked() -> bool:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not poll(clock, locked, _LOCK_SECONDS):
            raise SandboxError(
                f"{doing}: another command works on it for more than {_LOCK_SECONDS:g} s",
                part=str(path),
                hint="wait for that command; its process holds a lock on the file",
            )
        # While we waited, the sandbox may have been removed and its slot given to another one.
        if not _is_same_file(descriptor, path):
            raise SandboxGone(f"{doing}: the sandbox is gone", part=str(path.parent))
        yield
    finally:
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
