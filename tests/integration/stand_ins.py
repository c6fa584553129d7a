"""Launchers that fail on order: a stand-in for the interpreter of a real launcher, and small shell launchers.

Pure but for the scripts that are written.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from nvrx_chain.records.manifest import LauncherKind
from tests.integration.harness import Launcher, command_launcher

MODULES = {
    LauncherKind.FT_LAUNCHER: "nvidia_resiliency_ext.fault_tolerance.launcher",
    LauncherKind.TORCHRUN: "torch.distributed.run",
}


def write_script(path: Path, body: str) -> Path:
    """An executable bash script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def sabotaged(launcher: Launcher, directory: Path, body: str) -> Launcher:
    """The same launcher, whose interpreter runs `body` first wherever it starts inside a job.

    Outside of a job, as at submit, it is a healthy interpreter: an environment that broke later looks like that.
    """
    script = write_script(
        directory / "python",
        f'if [ -n "${{SLURM_JOB_ID:-}}" ]; then\n{body}\nfi\nexec {shlex.quote(launcher.python)} "$@"',
    )
    return replace(launcher, python=str(script))


def shell_launcher(path: Path, body: str, *arguments: str) -> Launcher:
    """A launcher that is a bash script; `arguments` may hold the fields of --launcher-command."""
    script = write_script(path, body)
    return command_launcher(shlex.join([str(script), *arguments]), name="command")


def impatient(launcher: Launcher, join_seconds: int) -> Launcher:
    """The same launcher through `--launcher command`, with a join time-out of its own that is this short."""
    words = [
        launcher.python,
        "-m",
        MODULES[launcher.kind],
        "--nnodes={nnodes}",
        "--nproc-per-node={nproc}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint={host}:{port}",
        "--rdzv-id={run_id}",
        f"--rdzv-conf=is_host={{is_host}},join_timeout={join_seconds}",
        "--no-python",
        "{workload}",
    ]
    return replace(command_launcher(shlex.join(words), name=launcher.name), python=launcher.python)
