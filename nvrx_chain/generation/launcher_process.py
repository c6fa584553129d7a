"""The launcher of this task as run-task sees it: one srun over the task's nodes, steered through its standard input.

`-K0` is explicit: with kill-on-bad-exit a no-restart code arrives as 143. Standard input travels from srun to the step
daemons directly and so reaches the wrappers also when slurmd is frozen. Touches: srun.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from nvrx_chain.errors import NvrxError

log = logging.getLogger(__name__)

KILLED_SECONDS = 10.0
"""How long a killed srun may take to end: one that hangs in a file system cannot be waited for."""


class LauncherProcess(Protocol):
    """A running launcher, whatever starts it."""

    def poll(self) -> int | None:
        """The exit code once it has ended, None while it runs."""
        ...

    def save(self) -> None:
        """Ask the ranks to save: the time limit is near."""
        ...

    def excuse(self, seconds: float) -> None:
        """Tell the wrappers that run-task's lease may stand still: the run directory stalls for everybody."""
        ...

    def stop(self, *, gentle: bool) -> None:
        """Ask the wrappers to stop their launchers; `gentle` gives these the drain time to end by themselves."""
        ...

    def kill(self) -> None:
        """End srun itself. The step's processes are then Slurm's to end."""
        ...


class SrunLauncher:
    """The wrappers of all nodes of this task, started by one srun."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], log_path: Path) -> None:
        """Start it. Raises NvrxError when there is no srun or no place for its output: then nothing runs."""
        try:
            with open(log_path, "ab", buffering=0) as output:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environ),
                    # Its own session: a signal to the batch shell's group must not end srun before run-task decides.
                    start_new_session=True,
                    bufsize=0,
                )
                if self._process.stdin is not None:
                    os.set_blocking(self._process.stdin.fileno(), False)
        except OSError as error:
            raise NvrxError(
                f"starting {argv[0]}: {error.strerror or error}", part=str(error.filename or log_path)
            ) from error

    def poll(self) -> int | None:
        return self._process.poll()

    def save(self) -> None:
        self._say(b"save\n")

    def excuse(self, seconds: float) -> None:
        self._say(f"excused {seconds:.1f}\n".encode())

    def stop(self, *, gentle: bool) -> None:
        self._say(b"stop gentle\n" if gentle else b"stop\n")

    def kill(self) -> None:
        if self._process.poll() is None:
            log.warning("killing srun pid=%s", self._process.pid)
            self._process.kill()
            try:
                self._process.wait(KILLED_SECONDS)
            except subprocess.TimeoutExpired:
                log.error("srun cannot be killed pid=%s", self._process.pid)

    def _say(self, words: bytes) -> None:
        if self._process.stdin is None:
            return
        try:
            os.write(self._process.stdin.fileno(), words)
        except BrokenPipeError:
            log.info("srun has ended already, it was not told words=%s", words)
        except BlockingIOError:
            # A stopped srun that reads nothing: the wrappers see closed.json, and kill() ends it.
            log.warning("srun takes no words from its standard input words=%s", words)


def srun_options(node_count: int) -> tuple[str, ...]:
    """Every node of the allocation, one wrapper a node, whatever the site's or the user's defaults are."""
    return (
        f"--nodes={node_count}",
        f"--ntasks={node_count}",
        "--ntasks-per-node=1",
        "-K0",
        "--wait=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=ALL",
        "--unbuffered",
    )


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of srun: the job's own, without SLURM_ and SRUN_ options that would change the step."""
    dropped = {
        "SLURM_KILL_BAD_EXIT",
        "SLURM_WAIT",
        "SLURM_STDINMODE",
        "SLURM_STDOUTMODE",
        "SLURM_STDERRMODE",
        "SLURM_LABELIO",
        "SLURM_CPU_BIND",
        "SLURM_DISTRIBUTION",
        "SLURM_EXPORT_ENV",
    }
    return {name: value for name, value in environ.items() if name not in dropped}


def interpreter_argv(interpreter: str, *words: str) -> tuple[str, ...]:
    """A command of ours by isolated interpreter: a stray json.py in the run directory must not win."""
    return (interpreter, "-I", "-m", "nvrx_chain", *words)
