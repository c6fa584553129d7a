"""Where a batch script has its launcher write: read out of its text with a bash grammar, never by running it.

`read_script_paths` does that in a child process with limits on time and memory: some texts of a few kilobytes keep the
grammar's parser busy for minutes and gigabytes. Touches: one short-lived child process, and in it the files that the
script sources (regular files of the job's user or root, read only) and symbolic links on the way to its paths.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.files import read_bytes
from nvrx_watch.resolve.shell_options import CYCLES, ITERATION, RESTARTS
from nvrx_watch.resolve.shell_scope import CURRENT_DIRECTORY, Scope
from nvrx_watch.resolve.shell_text import ANY_JOB, UNKNOWN, absolute, clean, glob_of, is_literal
from nvrx_watch.resolve.shell_tree import ScriptTooHard
from nvrx_watch.resolve.shell_walk import UnreadableSource, Walk

log = logging.getLogger(__name__)

LONGEST_SCRIPT = 1 << 20
_LONGEST_SOURCE = 1 << 18
_SECONDS = 15.0
_CPU_SECONDS = 10
_MEMORY_BYTES = 1 << 30
_MOST_RESTARTS_DIGITS = 6
# -I: a stray module in the current directory must not be what is run.
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from nvrx_watch.resolve.batch_script import run_child; run_child()"
)


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the job that runs the script; None where it is not. `uid`: whose files may be read with it."""

    work_directory: str | None
    job_name: str | None
    user: str | None
    uid: int | None
    home: str | None
    script_path: str | None


class ScriptPaths(msgspec.Struct, frozen=True, kw_only=True):
    """What the script tells; None where it does not, or not beyond doubt. All paths are absolute.

    `cycle_info_glob` has a `*` for the id of the array job, unless the script writes all cycles into one directory.
    `gives_cycles`: whether the option for them stands there at all, known or not.
    """

    cycle_info_glob: str | None = None
    gives_cycles: bool = False
    iteration_file: str | None = None
    gives_iteration: bool = False
    max_restarts: int | None = None
    work_directory: str | None = None


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    facts: ScriptFacts


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    paths: ScriptPaths | None = None
    refused: str = ""


def read_script_paths(text: str, facts: ScriptFacts, *, seconds: float = _SECONDS) -> ScriptPaths | Unobserved:
    """What the script tells, read in a child process; `Unobserved` when that ends badly or takes too long."""
    if len(text) > LONGEST_SCRIPT:
        return Unobserved(f"the batch script is larger than {LONGEST_SCRIPT} bytes")
    argv = [sys.executable, "-I", "-c", _CHILD, json.dumps([part for part in sys.path if part])]
    task = msgspec.json.encode(_Task(text=clean(text), facts=facts))
    try:
        done = subprocess.run(argv, input=task, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Unobserved(f"reading the batch script took longer than {seconds:.0f} s")
    except OSError as error:
        return Unobserved(f"reading the batch script: {error.strerror or error}")
    if done.returncode != 0:
        log.debug("the reader of a batch script failed stderr=%r", done.stderr[-2000:])
        return Unobserved(f"reading the batch script was given up, its reader ended with {done.returncode}")
    try:
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unobserved(f"reading the batch script: {error}")
    return answer.paths if answer.paths is not None else Unobserved(answer.refused)


def interpret_script(text: str, facts: ScriptFacts) -> ScriptPaths | Unobserved:
    """The same in this process. Bounded in nodes and depth, not in what the grammar's parser takes for odd texts."""
    scope = _surroundings(facts)
    walk = Walk(_source_reader(facts.uid), clean(facts.script_path) if facts.script_path else UNKNOWN)
    try:
        walk.run(clean(text), scope)
    except ScriptTooHard as error:
        return Unobserved(f"the batch script is too much to read: {error}")
    cycles, iteration = walk.options.value(CYCLES), walk.options.value(ITERATION)
    restarts = walk.options.value(RESTARTS) or ""
    is_number = restarts.isascii() and restarts.isdigit() and len(restarts) <= _MOST_RESTARTS_DIGITS
    return ScriptPaths(
        cycle_info_glob=f"{glob_of(cycles)}/cycle_info.*" if cycles and cycles != "/" else None,
        gives_cycles=walk.options.was_given(CYCLES),
        iteration_file=iteration if iteration and is_literal(iteration) else None,
        gives_iteration=walk.options.was_given(ITERATION),
        max_restarts=int(restarts) if is_number else None,
        work_directory=_work_directory(scope),
    )


def run_child() -> None:
    """The child process: a task on standard input, the answer on standard output. Its limits end a wild run."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    # No core file of somebody else's script in the current directory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    found = interpret_script(task.text, task.facts)
    answer = _Answer(refused=found.reason) if isinstance(found, Unobserved) else _Answer(paths=found)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _surroundings(facts: ScriptFacts) -> Scope:
    """What Slurm and the login give to the script before its first line."""

    def known(value: str | None) -> str:
        return clean(value) if value else UNKNOWN

    scope = Scope()
    scope.set(CURRENT_DIRECTORY, known(facts.work_directory))
    scope.set("SLURM_SUBMIT_DIR", known(facts.work_directory))
    scope.set("SLURM_JOB_NAME", known(facts.job_name))
    scope.set("HOME", known(facts.home))
    for name in ("USER", "LOGNAME"):
        scope.set(name, known(facts.user))
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID"):
        scope.set(name, ANY_JOB)
    return scope


def _source_reader(uid: int | None) -> Callable[[str], str | None]:
    """Reads regular files of the job's user and of root, and none while nobody knows who that user is."""

    def read(path: str) -> str | None:
        if uid is None:
            raise UnreadableSource
        content = read_bytes(Path(os.path.realpath(path)), max_bytes=_LONGEST_SOURCE, owner_uid=uid)
        if isinstance(content, Unobserved):
            log.info("a sourced file was not read reason=%s", content.reason)
            raise UnreadableSource
        return None if content is None else content.decode("utf-8", errors="replace")

    return read


def _work_directory(scope: Scope) -> str | None:
    """The names by which NVRx's own example, and scripts made after it, call their work directory."""
    for name in ("NVRX_WORK_DIR", "WORK_DIR"):
        value = scope.get(name)
        if value:
            path = absolute(value, scope.get(CURRENT_DIRECTORY) or UNKNOWN)
            return path if is_literal(path) and path != "/" else None
    return None
