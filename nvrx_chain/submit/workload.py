"""From what a user types after `--` to the words that follow a launcher's own flags. Pure.

ft_launcher and torchrun run `python [-m] PROGRAM ARGS`, or any program after `--no-python`; the words stored in the
manifest start with one of these two when it is needed. A launcher command of the user's own gets a whole command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nvrx_chain.errors import UsageError
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import Completion, Launcher, LauncherKind

MOCK_GPT_MODULE = "nvrx_chain.workloads.mock_gpt"
_PYTHON = re.compile(r"(python|pypy)[0-9.]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the launcher runs. `interpreter` is one that the user named by a path, `program` a file to look for.

    `hint` says what to do when it is not there; `environment` is set where the job's own says nothing; `rendered_only`
    says that no test ever ran it.
    """

    words: tuple[str, ...]
    label: str
    interpreter: str | None = None
    program: str | None = None
    hint: str = "name a file that every node sees"
    environment: Mapping[str, str] = field(default_factory=dict)
    built_in: bool = False
    rendered_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """What a chain runs, under which launcher, and when it is finished: the three depend on each other."""

    workload: Workload
    launcher: Launcher
    completion: Completion


def mock_gpt_workload(
    run: RunDirectory, extra: tuple[str, ...], *, target_iteration: int | None, launcher: LauncherKind, python: str
) -> Workload:
    """The built-in training, told where its files go and, when the chain has one, its last iteration."""
    words = [
        "-m",
        MOCK_GPT_MODULE,
        "--checkpoint-dir",
        str(run.default_iteration_file.parent),
        "--event-file",
        str(run.path / "events" / "rank{rank}.jsonl"),
    ]
    if target_iteration is not None:
        words += ["--target-iteration", str(target_iteration)]
    if launcher is LauncherKind.COMMAND:
        words.insert(0, python)
    return Workload(words=(*words, *extra), label="mock-gpt", built_in=True)


def parse_workload(command: tuple[str, ...], launcher: LauncherKind, directory: Path) -> Workload:
    """The user's own command; paths in it are relative to `directory`, where the job will not run.

    Raises UsageError for an empty command, or for options of the interpreter, which no launcher passes on.
    """
    if launcher is LauncherKind.COMMAND:
        # The template of the user decides what surrounds it, so nothing is taken away or added.
        return Workload(words=command, label=_label(command[0]))
    first, rest = command[0], command[1:]
    if _PYTHON.fullmatch(os.path.basename(first)):
        return _python_workload(rest, directory, interpreter=first if "/" in first else None)
    if first == "-m" or first.endswith(".py"):
        return _python_workload(command, directory, interpreter=None)
    if first == "--no-python":
        if not rest:
            raise UsageError("reading the workload: --no-python without a program", hint="name the program behind it")
        first, rest = rest[0], rest[1:]
    if first.startswith("-"):
        raise UsageError("reading the workload: it starts with an option", part=first, hint="start with the program")
    program = _absolute(first, directory) if "/" in first else None
    return Workload(words=("--no-python", program or first, *rest), label=_label(first), program=program)


def _python_workload(words: tuple[str, ...], directory: Path, *, interpreter: str | None) -> Workload:
    # Launchers run `python -u` themselves, so it is the one option of an interpreter that nobody misses.
    while words[:1] == ("-u",):
        words = words[1:]
    if not words:
        raise UsageError(
            "reading the workload: python without a script or a module", hint="name the script, or -m and a module"
        )
    interpreter = _absolute(interpreter, directory) if interpreter else None
    if words[0] == "-m":
        if len(words) < 2:
            raise UsageError("reading the workload: -m without a module", hint="name the module behind it")
        return Workload(words=words, label=words[1].rpartition(".")[2], interpreter=interpreter)
    if words[0].startswith("-"):
        raise UsageError(
            "reading the workload: an option of the interpreter cannot be passed on by the launcher",
            part=words[0],
            hint="set it in the environment, for example PYTHONOPTIMIZE or PYTHONFAULTHANDLER",
        )
    script = _absolute(words[0], directory)
    return Workload(words=(script, *words[1:]), label=_label(script), interpreter=interpreter, program=script)


def _absolute(path: str, directory: Path) -> str:
    return os.path.normpath(directory / os.path.expanduser(path))


def _label(path: str) -> str:
    return os.path.basename(path).removesuffix(".py") or "workload"
