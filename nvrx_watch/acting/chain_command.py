"""Runs the `nvrx-chain` command of this very installation. Starts a process, never a shell.

The command holds and submits by its own rules and checks its own identity; the watcher shares none of that code.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from nvrx_chain.slurm.command import TimedOut
from nvrx_chain.slurm.command import run_command as run_program
from nvrx_watch.acting.desk import CommandAnswer

COMMAND_SECONDS = 90.0
SLURM_SECONDS = 45
"""How long the command repeats itself at Slurm; less than it may take in all."""


def chain_command(*words: str) -> tuple[str, ...]:
    """The argv of an nvrx-chain command.

    `-I`: a json.py that lies in the current directory, or below PYTHONPATH, must not be imported.
    """
    return (sys.executable, "-I", "-m", "nvrx_chain", *words)


def as_typed(argv: Sequence[str]) -> str:
    """The command as a person types it."""
    return shlex.join(("nvrx-chain", *argv[len(chain_command()) :]))


def run_command(argv: Sequence[str], seconds: float) -> CommandAnswer:
    """Run argv without a shell and without the watcher's own settings, at most `seconds`. Raises SlurmUnavailable."""
    # sbatch hands its environment on to the job, and would hand routing keys with it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NVRX_WATCH_")}
    result = run_program(argv, environ, timeout_seconds=seconds)
    if isinstance(result, TimedOut):
        return CommandAnswer(returncode=None, stdout="", stderr="")
    return CommandAnswer(returncode=result.returncode, stdout=result.stdout, stderr=result.stderr)


def is_usable(run_directory: Path) -> bool:
    """Whether a directory can be named to a command: from another directory, and not taken for an option."""
    return run_directory.is_absolute() and "\x00" not in str(run_directory)


def last_words(answer: CommandAnswer) -> str:
    """What a command that failed said, in one line: the end of standard error, else of its output."""
    if answer.returncode is None:
        return "the command did not end in time; what it did is not known"
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    return f"the command ended with {answer.returncode}: {' | '.join(lines[-3:]) or 'it said nothing'}"
