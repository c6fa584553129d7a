"""What a fault is, and the two blows all faults are made of: stop and kill, each with proof that it took effect.

A blow hits processes that were found by membership (see members), by pidfd, never by name. Touches: those processes.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from nvrx_chain.clock import Clock
from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.members import describe, living
from nvrx_chain.sandbox.processes import poll, send_signal
from nvrx_chain.sandbox.procfs import Process

# A process in an uninterruptible call obeys only when that ends.
EFFECT_SECONDS = 15.0


class FaultKind(enum.Enum):
    """The faults and their repairs, in the words of the commands."""

    KILL_NODE = "kill-node"
    FREEZE_NODE = "freeze-node"
    FREEZE_SLURMD = "freeze-slurmd"
    THAW_NODE = "thaw-node"
    KILL_TASK_0 = "kill-task-0"
    KILL_RANK = "kill-rank"
    STOP_CONTROLLER = "stop-controller"
    START_CONTROLLER = "start-controller"
    DRAIN_NODE = "drain-node"
    REVIVE_NODE = "revive-node"
    CUT_NODE = "cut-node"
    ISOLATE_NODE = "isolate-from-controller"
    SLOW_DISK = "slow-disk"
    HEAL_NODE = "heal-node"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """A fault that happened. `hit_at` is the instant before the first signal, `verified` what was seen after the last.

    `pids` are as this machine numbers them, not as the node does.
    """

    kind: FaultKind
    target: str
    pids: tuple[int, ...]
    hit_at: datetime
    verified: str


def kill_all(clock: Clock, victims: Sequence[Process], *, doing: str) -> None:
    """SIGKILL these processes and wait until they are dead. Raises SandboxError that names the ones that are not."""
    for victim in victims:
        send_signal(victim.id, signal.SIGKILL)
    await_death(clock, victims, doing=doing)


def await_death(clock: Clock, victims: Sequence[Process], *, doing: str) -> None:
    """Wait until these processes are dead. Raises SandboxError that names the ones that are not."""
    identities = tuple(victim.id for victim in victims)
    if not poll(clock, lambda: not living(identities), EFFECT_SECONDS):
        raise SandboxError(
            f"{doing}: not dead after {EFFECT_SECONDS:g} s",
            part=_list(living(identities)),
            hint="they hang in the kernel, as in a held disk: `sandbox heal-node NODE`, else `sandbox down`",
        )


def stop_all(clock: Clock, find: Callable[[], Iterable[Process]], *, doing: str) -> tuple[Process, ...]:
    """SIGSTOP whatever `find` finds until it finds nothing that runs; returns what is stopped then.

    Again and again, because a process that is not stopped yet can start another one. Raises SandboxError.
    """
    return _drive(clock, find, signal.SIGSTOP, lambda process: process.is_stopped, doing=doing, wanted="stopped")


def continue_all(clock: Clock, find: Callable[[], Iterable[Process]], *, doing: str) -> tuple[Process, ...]:
    """SIGCONT whatever `find` finds stopped until nothing is; returns what it then finds. Raises SandboxError."""
    return _drive(clock, find, signal.SIGCONT, lambda process: not process.is_stopped, doing=doing, wanted="running")


def _drive(
    clock: Clock,
    find: Callable[[], Iterable[Process]],
    number: signal.Signals,
    done: Callable[[Process], bool],
    *,
    doing: str,
    wanted: str,
) -> tuple[Process, ...]:
    found: tuple[Process, ...] = ()

    def all_done() -> bool:
        nonlocal found
        found = tuple(find())
        others = [process for process in found if not done(process)]
        for process in others:
            send_signal(process.id, number)
        return not others

    if not poll(clock, all_done, EFFECT_SECONDS):
        left = tuple(process for process in found if not done(process))
        raise SandboxError(
            f"{doing}: not {wanted} after {EFFECT_SECONDS:g} s",
            part=_list(left),
            hint="look at them with ps, then repeat it",
        )
    return found


def _list(processes: Sequence[Process]) -> str:
    return "; ".join(describe(process) for process in processes)
