"""The programs a sandbox is made of: where they are, which package brings a missing one, how one is run.

Touches: child processes, each with a time limit.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence

from nvrx_chain.errors import SandboxError, SlurmUnavailable
from nvrx_chain.slurm.command import TimedOut, run_command

# Debian keeps daemons in sbin, which is not on an ordinary user's PATH.
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmstepd": "slurmd",
    "sbatch": "slurm-client",
    "scancel": "slurm-client",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
    "squeue": "slurm-client",
    "srun": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
    "setsid": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "bash": "bash",
}
_ACCOUNTING_PACKAGES = {
    "slurmdbd": "slurmdbd",
    "sacct": "slurm-client",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
_NETWORK_PACKAGES = {"ip": "iproute2"}


def search_path(environ: Mapping[str, str]) -> str:
    """PATH with the system's directories appended where they are missing."""
    given = [entry for entry in environ.get("PATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([*given, *(entry for entry in _SYSTEM_PATH if entry not in given)])


def locate(path: str, *, accounting: bool, network: bool = False) -> dict[str, str]:
    """The absolute path of every program that a sandbox needs.

    Raises SandboxError that names what is missing and the apt-get command that brings it.
    """
    packages = _PACKAGES | (_ACCOUNTING_PACKAGES if accounting else {}) | (_NETWORK_PACKAGES if network else {})
    found = {name: shutil.which(name, path=path) for name in packages}
    missing = sorted(name for name, where in found.items() if where is None)
    if missing:
        wanted = " ".join(sorted({packages[name] for name in missing}))
        raise SandboxError(
            f"starting a sandbox: not installed: {', '.join(missing)}", hint=f"apt-get install -y {wanted}"
        )
    return {name: where for name, where in found.items() if where is not None}


def run(argv: Sequence[str], *, environ: Mapping[str, str], timeout_seconds: float, doing: str) -> str:
    """Run one program to its end and return what it printed. `doing` starts the message of a failure.

    Raises SandboxError when it fails, cannot be started, or is still running after `timeout_seconds` (it is killed).
    """
    command = shlex.join(argv)
    try:
        done = run_command(argv, environ, timeout_seconds=timeout_seconds)
    except SlurmUnavailable as error:
        raise SandboxError(f"{doing}: {error.message}", part=error.part, hint=error.hint) from error
    if isinstance(done, TimedOut):
        raise SandboxError(
            f"{doing}: no end after {timeout_seconds:g} s",
            part=command,
            hint="look whether the machine is overloaded, then repeat it",
        )
    if done.returncode != 0:
        said = " / ".join((done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-3:])
        raise SandboxError(
            f"{doing}: exit {done.returncode}, {said}", part=command, hint="run the command by hand to see more"
        )
    return done.stdout
