"""Runs one Slurm program with a clean environment and a time limit. Starts processes; decides nothing.

An answer is one of three: the program ended (`CommandResult`, whatever its exit code), it did not end in time
(`TimedOut`), or it could not be started at all (SlurmUnavailable is raised).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.errors import SlurmUnavailable

# A controller that hangs lets its clients wait 10 to 20 s; less would call a slow answer none.
DEFAULT_TIMEOUT_SECONDS = 25.0
_AFTER_KILL_SECONDS = 5.0

# Each of these can filter, reshape or redirect what a program does while it reports success; those of an enclosing
# job also bind, renumber and resize what is submitted from inside it.
_DROPPED_PREFIXES = (
    "PMI",
    "SACCT_",
    "SALLOC_",
    "SBATCH_",
    "SCANCEL_",
    "SCONTROL_",
    "SINFO_",
    "SLURM_",
    "SQUEUE_",
    "SRUN_",
)
# Where the cluster is, and by what right we ask it.
_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT"})

_READ_SETTINGS = {
    "LC_ALL": "C",
    "SLURM_BITSTR_LEN": "0",
    "SLURM_TIME_FORMAT": "standard",
    "TZ": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A program that ended. A negative return code is the signal that killed it."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """A program that did not end in `seconds` and was killed. What it asked of Slurm may still happen."""

    argv: tuple[str, ...]
    seconds: float


def scrubbed_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(`environ` without the variables that would change what Slurm programs do, the sorted names dropped)."""
    dropped = tuple(sorted(name for name in environ if name.startswith(_DROPPED_PREFIXES) and name not in _KEPT))
    return {name: value for name, value in environ.items() if name not in dropped}, dropped


def reading_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For programs whose output is parsed: scrubbed, C locale, UTC, standard times, task lists not cut.

    Never for sbatch, which hands its environment on to the job.
    """
    return scrubbed_environment(environ)[0] | _READ_SETTINGS


def run_command(
    argv: Sequence[str], environ: Mapping[str, str], *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> CommandResult | TimedOut:
    """Run argv with exactly this environment, stdin empty, in its own process group, which a time-out kills.

    Raises SlurmUnavailable when the program cannot be started, or SLURM_CONF names a file that is not there.
    """
    program = _find(argv[0], environ)
    _check_configuration(argv[0], environ)
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise SlurmUnavailable(f"start {argv[0]}", part=str(error)) from error
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return TimedOut(argv=tuple(argv), seconds=timeout_seconds)
    except BaseException:
        # An interrupt must not leave a scancel or sbatch running that nobody waits for.
        _kill_group(process)
        raise
    return CommandResult(
        argv=tuple(argv),
        returncode=process.returncode,
        stdout=stdout.decode("utf-8", errors="backslashreplace"),
        stderr=stderr.decode("utf-8", errors="backslashreplace"),
        seconds=time.monotonic() - started,
    )


def _find(name: str, environ: Mapping[str, str]) -> str:
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    if found is None:
        raise SlurmUnavailable(
            f"start {name}",
            part="no such program on PATH",
            hint="load the Slurm module of your site or add its directory to PATH",
        )
    return found


def _check_configuration(name: str, environ: Mapping[str, str]) -> None:
    """A missing file lets every client hang for 60 s before it says so."""
    path = environ.get("SLURM_CONF")
    if path and not os.path.exists(path):
        raise SlurmUnavailable(
            f"start {name}", part=f"SLURM_CONF names a file that is not there: {path}", hint="unset or correct it"
        )


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        # Bounded: a grandchild that left the group can hold the pipes open for ever.
        process.communicate(timeout=_AFTER_KILL_SECONDS)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    # Collected here even when somebody else holds the pipes: no zombie for each time-out of a long watch.
    process.poll()
