"""Runs the rendered batch script with bash, as Slurm would, and a stand-in for the interpreter that obeys the test."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.records.control import Closed
from nvrx_chain.records.files import read_record
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.submit.render import read_template, render_script

NASTY = "run & dir#1 'q\"u' %j é"
DEADLINE_SECONDS = 60.0
START_PAUSES = "start_pauses='15 30 60 120'"

# Runs a file of Python in place of `-I -m nvrx_chain run-task --run-dir DIR`, with `here` for its own directory.
_STAND_IN = """#!{python}
import os, pathlib, signal, sys, time
assert sys.argv[1:5] == ["-I", "-m", "nvrx_chain", "run-task"], sys.argv
assert sys.argv[5] == "--run-dir", sys.argv
run_dir = pathlib.Path(sys.argv[6])
here = pathlib.Path({here!r})
def until(name):
    give_up_at = time.monotonic() + {deadline}
    while not (here / name).exists():
        if time.monotonic() > give_up_at:
            sys.exit(250)
        time.sleep(0.002)
def on(number, then):
    signal.signal(number, lambda *_: then())
{body}
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a deadline that only a broken test reaches."""
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, f"never happened: {what}"
        time.sleep(0.002)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """A rendered script on disk, with its stand-in interpreter, its run directory and a directory first in PATH."""

    path: Path
    here: Path
    run: RunDirectory
    programs: Path

    def start(self, *, task: str = "0", environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start it as array task `task` of job 77, in its own session as slurmstepd does."""
        variables = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "SLURM_ARRAY_JOB_ID": "77",
            "SLURM_ARRAY_TASK_ID": task,
            "SLURM_JOB_ID": "78",
            "SLURMD_NODENAME": "node-7",
            **(environ or {}),
        }
        with open(self.here / "output", "wb") as output:
            return subprocess.Popen(
                ["/bin/bash", str(self.path)],
                env=variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run_to_end(self, *, task: str = "0", environ: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Its exit code and output."""
        code = self.start(task=task, environ=environ).wait(DEADLINE_SECONDS)
        return code, (self.here / "output").read_text()

    def closed(self) -> Closed | None:
        """The record that it left. Fails when there is one that cannot be read."""
        record = read_record(self.run.generation(77).closed, Closed)
        assert record is None or isinstance(record, Closed), record
        return record

    def leftovers(self) -> list[str]:
        """What else is in the control directory."""
        control = self.run.generation(77).control
        return [name for name in os.listdir(control) if name != "closed.json"] if control.exists() else []

    def exists(self, name: str) -> bool:
        return (self.here / name).exists()

    def touch(self, name: str) -> None:
        (self.here / name).touch()

    def put_program(self, name: str, body: str) -> None:
        """A program found before the system's; `$here` is the test's directory, `$real` the system's program."""
        real = next(Path(place, name) for place in ("/usr/bin", "/bin") if Path(place, name).exists())
        _write_executable(self.programs / name, f"#!/bin/bash\nhere={self.here}\nreal={real}\n{body}\n")


def make_script(
    directory: Path, body: str, *, edit: Callable[[str], str] = lambda text: text, start_pauses: str = ""
) -> BatchScript:
    """A script whose run-task runs `body`. `edit` changes the rendered text, to show what a line of it prevents.

    `start_pauses` (seconds) stand in for those after which a run-task that could not start is started again.
    """
    run = RunDirectory(directory / NASTY)
    (run.path / "generations").mkdir(parents=True)
    here, programs = directory / "here", directory / "bin"
    here.mkdir()
    programs.mkdir()
    interpreter = directory / "py thon"
    text = _STAND_IN.format(python=sys.executable, here=str(here), deadline=DEADLINE_SECONDS, body=body)
    _write_executable(interpreter, text)
    path = directory / "slurm_script"
    text = _render(run, interpreter)
    assert text.count(START_PAUSES) == 1
    path.write_text(edit(text.replace(START_PAUSES, f"start_pauses='{start_pauses}'")))
    return BatchScript(path=path, here=here, run=run, programs=programs)


def _render(run: RunDirectory, interpreter: Path) -> str:
    return render_script(
        read_template(),
        {
            "JOB_NAME": "chain",
            "ARRAY": "0-2%2",
            "NODES": "1",
            "WALLTIME_WARNING": "60",
            "RUN_DIR": shlex.quote(str(run.path)),
            "PYTHON": shlex.quote(str(interpreter)),
            "CHAIN_ID": "abc",
            "SCRIPT_VERSION": "1",
        },
    )


def _write_executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def storm(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Send a signal every other millisecond until the process has ended; how many were sent."""
    sent = 0
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while process.poll() is None:
        assert time.monotonic() < give_up_at, "the storm never ended"
        process.send_signal(number)
        sent += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            # An endless flood nests handlers until bash has no stack left; Slurm sends a handful.
            process.wait(0.002)
    return sent
