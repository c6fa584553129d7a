"""What the tests of the sandbox share: running things on one, and looking for its traces in ways of their own."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.sandbox import Sandbox, SandboxConfig
from nvrx_chain.sandbox.processes import poll
from nvrx_chain.sandbox.procfs import Process, list_processes, read_arguments, read_environment

CLOCK = SystemClock()
PATIENCE = 90.0
T = TypeVar("T")

needs_cluster = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin") is None,
    reason="needs root and Slurm's packages (apt-get install -y slurmctld slurmd slurm-client munge)",
)


def _kernel_holds_opens() -> bool:
    """Whether a fanotify listener may keep an open waiting; asked for an empty directory that nobody else opens."""
    libc = ctypes.CDLL(None, use_errno=True)
    listener = libc.fanotify_init(_FAN_CLASS_CONTENT, os.O_RDONLY)
    if listener < 0:
        return False
    try:
        with tempfile.TemporaryDirectory() as directory:
            marked: int = libc.fanotify_mark(
                listener, _FAN_MARK_ADD, ctypes.c_uint64(_FAN_OPEN_PERM), -1, os.fsencode(directory)
            )
            return marked == 0
    finally:
        os.close(listener)


_FAN_CLASS_CONTENT, _FAN_MARK_ADD, _FAN_OPEN_PERM = 0x4, 0x1, 0x10000
needs_held_opens = pytest.mark.skipif(
    not _kernel_holds_opens(), reason="needs root and a kernel with CONFIG_FANOTIFY_ACCESS_PERMISSIONS"
)

# Two ranks per task, each with a child that inherits RANK; a run-task beside the step; a pulse that says it is alive.
SCRIPT = """\
#!/bin/bash
pulse=$1.$SLURM_ARRAY_TASK_ID
export FIRST=$((2 * SLURM_ARRAY_TASK_ID))
srun -K0 -n1 bash -c 'for r in 0 1; do RANK=$((FIRST + r)) bash -c "sleep 3600; :" & done; wait' &
sh -c 'sleep 3601; :' sh run-task &
while :; do echo x >> "$pulse"; sleep 0.1; done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A sandbox, a directory for jobs, and a word in the environment of every job that ran here."""

    sandbox: Sandbox
    directory: Path
    token: str

    def run(self, *argv: str) -> str:
        """Run a Slurm program against the sandbox; its output. Fails the test when it fails."""
        environ = {**os.environ, **self.sandbox.environ, "LAB_TOKEN": self.token}
        done = subprocess.run(
            argv, env=environ, cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, *options: str, script: str = SCRIPT) -> int:
        """sbatch of a script that gets `pulse` as its argument; the array job id."""
        path = self.directory / "job.sh"
        path.write_text(script)
        words = ("--parsable", "--no-requeue", "--output", str(self.directory / "out.%A_%a"), *options)
        return int(self.run("sbatch", *words, str(path), str(self.directory / "pulse")))

    def queue(self) -> dict[str, tuple[str, str]]:
        """Array task (`12_0`) -> (state, node)."""
        rows = (line.split("|") for line in self.run("squeue", "-h", "-a", "-r", "-o", "%i|%T|%N").splitlines())
        return {row[0]: (row[1], row[2]) for row in rows}

    def running_array(self, tasks: int = 2) -> int:
        """Submit SCRIPT as an array of whole nodes and wait until all ranks of all tasks are there."""
        job = self.submit(f"--array=0-{tasks - 1}", "-N1", "--exclusive")
        wait(lambda: all(len(self.ranks(job, rank)) == 2 for rank in range(2 * tasks)), "all ranks and their children")
        # The step may be up before the shell has started what follows it.
        wait(lambda: all(self.pulse(task) > 0 for task in range(tasks)), "a pulse of every task")
        return job

    def node_of(self, task: str) -> str:
        return self.queue()[task][1]

    def ranks(self, job: int, rank: int) -> list[Process]:
        """Found by the token, without the code under test: the rank, then its child."""
        return [
            process
            for process, environ in self.processes()
            if (environ.get("SLURM_ARRAY_JOB_ID"), environ.get("RANK")) == (str(job), str(rank))
        ]

    def processes(self) -> list[tuple[Process, dict[str, str]]]:
        """Every live process of any job of this lab."""
        seen = ((process, read_environment(process.pid)) for process in list_processes())
        return [(process, environ) for process, environ in seen if environ.get("LAB_TOKEN") == self.token]

    def pulse(self, task: int) -> int:
        path = self.directory / f"pulse.{task}"
        return path.stat().st_size if path.exists() else 0

    def beats(self, task: int) -> bool:
        """Whether the task's shell goes on within 2 s."""
        before = self.pulse(task)
        return poll(CLOCK, lambda: self.pulse(task) > before, 2.0) is not None

    def traces(self) -> list[str]:
        """Commands of live processes of the sandbox or its jobs, by their text and the token alone."""
        runtime = f"{self.sandbox.slurm_conf.parent}/"
        named = [" ".join(read_arguments(process.pid)) for process in list_processes()]
        jobs = [f"{process.pid} of a job" for process, _ in self.processes()]
        return [text for text in named if runtime in text] + jobs

    def reset(self) -> None:
        """Every job ended, every node in service and idle."""
        self.run("scancel", "--state=RUNNING")
        self.run("scancel", "--state=PENDING")
        for node, status in zip(self.sandbox.node_names, self.sandbox.status().nodes, strict=True):
            if status.slurmd.value != "running" or status.slurm_state != "idle":
                self.sandbox.revive_node(node)
        self.sandbox.wait_idle(PATIENCE)
        for pulse in self.directory.glob("pulse.*"):
            pulse.unlink()


def wait(check: Callable[[], T], wanted: str, seconds: float = PATIENCE) -> T:
    """Wait for something true. Fails the test by name when it never is."""
    found = poll(CLOCK, check, seconds)
    assert found, f"never: {wanted}"
    return found


@contextmanager
def running_lab(directory: Path, **options: int | bool) -> Iterator[Lab]:
    """A lab of its own that is ended afterwards, and proved to be."""
    directory.mkdir()
    sandbox = Sandbox.up(SandboxConfig(directory=directory / "cluster", **options))  # type: ignore[arg-type]
    lab = Lab(sandbox=sandbox, directory=directory, token=os.urandom(8).hex())
    try:
        yield lab
    finally:
        sandbox.down(grace_seconds=1.0)
        assert lab.traces() == []
        assert not sandbox.slurm_conf.parent.exists()


def end_group(process: subprocess.Popen[str]) -> None:
    """End a test's own child and whatever is in its process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
