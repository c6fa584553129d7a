"""What one machine says of itself, as records: they come from a child process, and from a node through srun. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from nvrx_chain.errors import Unobserved


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One Slurm program. `problem` says why it has no version."""

    name: str
    path: str | None = None
    version: str | None = None
    is_script: bool = False
    problem: str | None = None


class SlurmPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """The programs, and whether squeue takes the options that we send (`queue_problem`) and that people type."""

    programs: tuple[Program, ...]
    queue_seconds: float | None = None
    queue_problem: str | None = None
    typed_problem: str | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, its limits and the interpreter that answered. `name_problem` None: peers can reach it by its name."""

    name: str
    python: str
    python_version: str
    package_version: str
    read_at: float
    open_files: int
    open_files_most: int
    shared_memory_bytes: int | None
    addresses: tuple[str, ...] = ()
    name_problem: str | None = None
    port: int | None = None
    port_problem: str | None = None


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the node and the login node's answer to it: two instants of either clock, seconds since 1970."""

    node_wrote_at: float
    login_saw_at: float
    login_wrote_at: float
    node_saw_at: float

    @property
    def round_trip_seconds(self) -> float:
        """How long both files were on their way; each machine's time is taken from its own clock."""
        return max(0.0, (self.node_saw_at - self.node_wrote_at) - (self.login_wrote_at - self.login_saw_at))

    @property
    def skew_seconds(self) -> float:
        """How far the node's clock is ahead, to half a round trip (RFC 5905 calls it theta)."""
        return ((self.node_wrote_at - self.login_saw_at) + (self.node_saw_at - self.login_wrote_at)) / 2


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """The run directory, or the nearest one above it that exists (`tested`), as one machine sees it.

    `first_wins`: of two creations by link(2) the second one loses. `seen_after_seconds`, `echo_problem` and `echo`
    are a node's: how long until it saw what the login node had written.
    """

    path: str
    tested: str
    kind: str | None = None
    mount_point: str | None = None
    reach: str | None = None
    problem: str | None = None
    write_seconds: float | None = None
    first_wins: bool | None = None
    free_bytes: int | None = None
    free_files: int | None = None
    seen_after_seconds: float | None = None
    echo: Echo | None = None
    echo_problem: str | None = None


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter said when it imported a launcher. `versions` by kind of those that are installed."""

    python: str
    versions: dict[str, str]
    kind: str | None = None
    import_seconds: float | None = None
    problem: str | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a machine. `source`: NVML, or the kernel driver's list where NVML cannot be asked, which `note` says."""

    count: int
    names: tuple[str, ...] = ()
    driver: str | None = None
    source: str
    note: str | None = None


class ChainFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What of `chain.json` a doctor needs."""

    interpreter: str
    python: str
    launcher: str
    tasks: int
    tasks_at_once: int
    chain_depth: int
    gpus_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Everything that one machine said; a part that did not answer in time is `Unobserved`."""

    host: Host | Unobserved
    slurm: SlurmPrograms | Unobserved
    directory: Directory | Unobserved
    launcher: Launcher | Unobserved
    gpus: Gpus | Unobserved


PART_KINDS: dict[str, type[msgspec.Struct]] = {
    "host": Host,
    "slurm": SlurmPrograms,
    "directory": Directory,
    "launcher": Launcher,
    "gpus": Gpus,
}


class PlaceMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A `Place` as it comes through srun: the answers by part, and why there is none."""

    parts: dict[str, msgspec.Raw]
    blind: dict[str, str]


def pack_place(place: Place) -> bytes:
    """One line of JSON."""
    answers = {name: getattr(place, name) for name in PART_KINDS}
    parts = {n: msgspec.Raw(msgspec.json.encode(a)) for n, a in answers.items() if not isinstance(a, Unobserved)}
    blind = {name: answer.reason for name, answer in answers.items() if isinstance(answer, Unobserved)}
    return msgspec.json.encode(PlaceMessage(parts=parts, blind=blind))


def unpack_place(text: bytes) -> Place:
    """Raises msgspec.DecodeError (a ValueError) for text that is no place."""
    message = msgspec.json.decode(text, type=PlaceMessage)
    answers: dict[str, msgspec.Struct | Unobserved] = {}
    for name, kind in PART_KINDS.items():
        raw = message.parts.get(name)
        answers[name] = (
            Unobserved(message.blind.get(name, "no answer")) if raw is None else msgspec.json.decode(raw, type=kind)
        )
    return Place(**answers)  # type: ignore[arg-type]
