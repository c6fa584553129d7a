"""What actions work with, handed in. Builds nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import Lease
from nvrx_chain.slurm.client import SlurmClient
from nvrx_watch.acting.bounded import Bounded
from nvrx_watch.action_model import Rights

ReadLease = Callable[[int, int], Lease | Unobserved | None]
"""(array job id, array task id) -> the lease; None when it wrote none. Comes back within a deadline of its own."""


class CommandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was run. `returncode` None: it did not end in time and was killed; what it did is not known."""

    returncode: int | None
    stdout: str
    stderr: str


class RunCommand(Protocol):
    """Runs a command without a shell, at most `seconds`. Raises NvrxError when it cannot be started."""

    def __call__(self, argv: Sequence[str], seconds: float) -> CommandAnswer: ...


class ActionDesk(msgspec.Struct, frozen=True, kw_only=True):
    """One desk serves every chain of a watcher.

    `host` signs what is written. `action_log` gets one JSON line per action. `read_lease` None: the lease files of the
    chain at hand are read. `keep_queued`: EXTEND submits while fewer generations than this wait.
    """

    client: SlurmClient
    clock: Clock
    rights: Rights
    run_command: RunCommand
    host: str
    action_log: Path | None = None
    verify_seconds: float = 20.0
    keep_queued: int = 1
    read_lease: ReadLease | None = None
    files: Bounded = msgspec.field(default_factory=Bounded)

    @property
    def signature(self) -> str:
        """How a record names this watcher."""
        return f"nvrx-watch on {self.host}"
