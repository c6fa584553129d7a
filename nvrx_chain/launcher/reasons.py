"""Why a job of launchers ends, and with which exit code. Pure; docs/protocol.md has the table."""

from __future__ import annotations

import enum

from nvrx_chain.errors import ExitCode


class Reason(enum.Enum):
    """The first one that is written counts for all."""

    SUCCESS = "success"
    NO_PROGRESS = "no_progress"
    WORKLOAD_STOP = "workload_stop"
    EXTERNAL_STOP = "external_stop"
    BUDGET_SPENT = "budget_spent"
    NOT_ENOUGH_NODES = "not_enough_nodes"
    HOST_LOST = "host_lost"
    TERMINATED = "terminated"
    UNHEALTHY = "unhealthy"
    """Of one node only: the others go on."""
    FAILED = "failed"
    """Of one launcher only: it could not go on, and nobody knows a better word."""

    @property
    def is_no_restart(self) -> bool:
        """Whether another start would be useless: the no-restart code, on every node."""
        return self in _NO_RESTART


_NO_RESTART = frozenset({Reason.NO_PROGRESS, Reason.WORKLOAD_STOP, Reason.EXTERNAL_STOP})

_CODES: dict[Reason, ExitCode] = {
    Reason.SUCCESS: ExitCode.DONE,
    Reason.HOST_LOST: ExitCode.HOST_LOST,
    Reason.TERMINATED: ExitCode.TERMINATED,
}


def exit_code(reason: Reason, no_restart_exit_code: int) -> int:
    """What every launcher of the job leaves with."""
    if reason.is_no_restart:
        return no_restart_exit_code
    return int(_CODES.get(reason, ExitCode.FAILED))
