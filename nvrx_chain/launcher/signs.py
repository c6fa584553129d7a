"""What the monitor of a node says of its ranks. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nvrx_chain.launcher.deadlines import OpenSection, Silence


class Action(enum.Enum):
    """What a rank may ask of the launcher."""

    STOP_RESTARTING = "stop_restarting"
    EXCLUDE_THIS_NODE = "exclude_this_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """A rank has been silent for longer than a rule allows. Said once for each process."""

    cycle: int
    local_rank: int
    what: Silence
    limit_seconds: float
    silent_seconds: float
    section: str = ""
    open_sections: tuple[OpenSection, ...] = ()

    @property
    def wants_capture(self) -> bool:
        """Whether the stacks of the ranks of this node are worth having."""
        return self.what is Silence.SECTION

    @property
    def detail(self) -> str:
        """For people."""
        what = f"section {self.section}" if self.section else self.what.value.replace("_", " ")
        text = f"{what}: silent for {self.silent_seconds:.2f} s, limit {self.limit_seconds:g} s"
        inside = ", ".join(f"{one.name} {one.seconds:.2f} s" for one in self.open_sections[:10])
        return f"{text}; in {inside}" if inside else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A rank asked for something, and was told that it was heard."""

    cycle: int
    local_rank: int
    action: Action
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A rank reached a point of the recovery timeline. Of `committed` the first one of each process is told."""

    cycle: int
    local_rank: int
    name: str
    iteration: int | None
    at: float
    """Seconds since the epoch."""


Sign = Hung | Asked | Marked


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFile:
    """Where a process writes its stacks when it gets the dump signal. The descriptors are the receiver's to close."""

    pid: int
    process: int
    """A pidfd."""
    file: int
