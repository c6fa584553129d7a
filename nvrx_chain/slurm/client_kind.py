"""The Slurm clients that can be asked for by name, and what is known of each. Pure."""

from __future__ import annotations

import enum

ENVIRONMENT_NAME = "NVRX_SLURM_CLIENT"


class SlurmClientKind(enum.Enum):
    """COMMAND runs Slurm's own programs. PYSLURM is never chosen by itself."""

    COMMAND = "command"
    PYSLURM = "pyslurm"


def describe_unproven(kind: SlurmClientKind) -> str | None:
    """What a person should know before a chain depends on this client, in one line; None when there is nothing."""
    if kind is SlurmClientKind.COMMAND:
        return None
    return (
        "--slurm-client pyslurm is checked against recorded behaviour only (PySlurm 25.11.2, Slurm 25.11.7), "
        "never against a live one"
    )
