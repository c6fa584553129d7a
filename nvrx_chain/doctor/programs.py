"""Slurm's programs as this machine has them: paths, versions, wrappers, and a squeue that takes our options.

Touches: the first bytes of each program, processes (`--version` of each, two squeues).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from nvrx_chain.clock import Clock
from nvrx_chain.doctor.facts import Program, SlurmPrograms
from nvrx_chain.errors import SlurmUnavailable, Unobserved
from nvrx_chain.slurm.command import TimedOut, reading_environment, run_command
from nvrx_chain.slurm.command_client import PROGRAMS, CommandLineClient
from nvrx_chain.slurm.parse.replies import one_line

NAMES = (*PROGRAMS, "srun")
VERSION_SECONDS = 2.5
QUEUE_SECONDS = 3.0
_VERSION = re.compile(r"\bslurm\S*\s+(\d+\.\d+\S*)", re.IGNORECASE)


def read_programs(environ: Mapping[str, str], clock: Clock, user: str) -> SlurmPrograms:
    """Everything at once: with a controller that hangs it takes no longer than the slowest of them."""
    with ThreadPoolExecutor(len(NAMES) + 2) as pool:
        programs = [pool.submit(_read_program, name, environ) for name in NAMES]
        ours, typed = pool.submit(_ask_queue, environ, clock, user), pool.submit(_type_queue, environ, user)
        seconds, problem = ours.result()
        return SlurmPrograms(
            programs=tuple(program.result() for program in programs),
            queue_seconds=seconds,
            queue_problem=problem,
            typed_problem=typed.result(),
        )


def _read_program(name: str, environ: Mapping[str, str]) -> Program:
    path = shutil.which(name, path=environ.get("PATH", ""))
    if path is None:
        return Program(name=name, problem="not on PATH")
    try:
        with open(path, "rb") as stream:
            is_script = stream.read(2) == b"#!"
        done = run_command((path, "--version"), reading_environment(environ), timeout_seconds=VERSION_SECONDS)
    except (OSError, SlurmUnavailable) as error:
        return Program(name=name, path=path, problem=str(error))
    if isinstance(done, TimedOut):
        return Program(name=name, path=path, is_script=is_script, problem=f"--version hung for {done.seconds:.0f} s")
    version = _VERSION.search(done.stdout)
    if done.returncode != 0 or version is None:
        said = one_line((done.stderr or done.stdout).replace(f"{name}: ", ""), 100) or "nothing"
        return Program(name=name, path=path, is_script=is_script, problem=f"--version printed {said!r}")
    return Program(name=name, path=path, version=version[1], is_script=is_script)


def _ask_queue(environ: Mapping[str, str], clock: Clock, user: str) -> tuple[float, str | None]:
    """The queue reading that every command and every run-task begins with."""
    client = CommandLineClient(clock=clock, environ=environ, timeout_seconds=QUEUE_SECONDS)
    began = clock.monotonic()
    answer = client.queue(user)
    return clock.monotonic() - began, answer.reason if isinstance(answer, Unobserved) else None


def _type_queue(environ: Mapping[str, str], user: str) -> str | None:
    """What people and other tools type; a site's wrapper often knows fewer options."""
    argv = ("squeue", "-r", "-h", "-o", "%i", "-u", user)
    try:
        done = run_command(argv, reading_environment(environ), timeout_seconds=QUEUE_SECONDS)
    except SlurmUnavailable as error:
        return str(error)
    if isinstance(done, TimedOut):
        return f"squeue did not answer in {done.seconds:.0f} s"
    return one_line(done.stderr or done.stdout) or "it failed" if done.returncode != 0 else None
