"""Which Slurm client a command gets: Slurm's own programs, or PySlurm where somebody asked for it by name.

Touches: with PySlurm, its child process and Slurm once, to see that they fit together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved, UsageError
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.client_kind import SlurmClientKind
from nvrx_chain.slurm.command import DEFAULT_TIMEOUT_SECONDS
from nvrx_chain.slurm.command_client import CommandLineClient
from nvrx_chain.slurm.model import ClusterConfig

_RELEASE = re.compile(r"(\d+\.\d+)\b")


def make_client(
    kind: SlurmClientKind, *, clock: Clock, environ: Mapping[str, str], timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> SlurmClient:
    """The client of this kind. Raises UsageError when PySlurm is not installed or of another release than Slurm.

    Raises SlurmUnavailable when its process ended or hung. A Slurm that is down now is no reason to refuse.
    """
    commands = CommandLineClient(clock=clock, environ=environ, timeout_seconds=timeout_seconds)
    if kind is SlurmClientKind.COMMAND:
        return commands
    # Not at the top: the usual client starts that much faster.
    from nvrx_chain.slurm.pyslurm_client import PySlurmClient
    from nvrx_chain.slurm.pyslurm_process import PySlurmProcess

    process = PySlurmProcess(environ)
    client = PySlurmClient(clock=clock, process=process, commands=commands, timeout_seconds=timeout_seconds)
    try:
        check_release(process.start(timeout_seconds), client.config())
    except BaseException:
        process.close()
        raise
    return client


def check_release(version: str, config: ClusterConfig | Unobserved) -> None:
    """PySlurm builds against one release of Slurm. Raises UsageError when the cluster runs another one."""
    ours = _RELEASE.match(version)
    theirs = None if isinstance(config, Unobserved) else _RELEASE.match(config.version)
    if ours is None or theirs is None or ours[1] == theirs[1]:
        return
    raise UsageError(
        "choose a Slurm client",
        part=f"PySlurm {version} is of another release than this cluster's Slurm {theirs.string}",
        hint=f"pip install pyslurm=={theirs[1]}.*; or go without --slurm-client pyslurm and NVRX_SLURM_CLIENT",
    )
