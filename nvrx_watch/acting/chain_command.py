"""Runs the `nvrx-chain` command of this very installation. Starts a process, never a shell.

The command holds and submits by its own rules and checks its own identity; the watcher shares none of that code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvrx_chain.errors import NvrxError
from nvrx_watch.acting.desk import CommandAnswer

COMMAND_SECONDS = 90.0
SLURM_SECONDS = 45
"""How long the command repeats itself at Slurm; less than it may take in all."""
_AFTER_KILL_SECONDS = 5.0


def chain_command(*words: str) -> tuple[str, ...]:
    """The argv of an nvrx-chain command."""
    return (sys.executable, "-m", "nvrx_chain", *words)


def run_command(argv: Sequence[str], seconds: float) -> CommandAnswer:
    """Run argv from the root directory, stdin empty, in its own process group, which a time-out kills.

    `-m` looks into the current directory first: a json.py that lies in a run directory must not be imported.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=_environment(os.environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise NvrxError(f"start {argv[0]}", part=str(error)) from error
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return CommandAnswer(returncode=None, stdout="", stderr="")
    except BaseException:
        # An interrupt must not leave a command running that submits or holds.
        _kill_group(process)
        raise
    return CommandAnswer(
        returncode=process.returncode,
        stdout=stdout.decode("utf-8", errors="backslashreplace"),
        stderr=stderr.decode("utf-8", errors="backslashreplace"),
    )


def is_usable(run_directory: Path) -> bool:
    """Whether a directory can be named to a command: from another directory, and not taken for an option."""
    return run_directory.is_absolute() and "\x00" not in str(run_directory)


def last_words(answer: CommandAnswer) -> str:
    """What a command that failed said, in one line: the end of standard error, else of its output."""
    if answer.returncode is None:
        return "the command did not end in time; what it did is not known"
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    return f"the command ended with {answer.returncode}: {' | '.join(lines[-3:]) or 'it said nothing'}"


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the watcher's own settings: sbatch hands its environment on to the job, routing keys and all."""
    return {name: value for name, value in environ.items() if not name.startswith("NVRX_WATCH_")}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        # Bounded: a grandchild that left the group can hold the pipes open for ever.
        process.communicate(timeout=_AFTER_KILL_SECONDS)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.poll()
