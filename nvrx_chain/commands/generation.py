"""`run-task` and `run-launcher`: started by generation.sbatch and by srun, not by people."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command("run-task", hidden=True)
@click.option("--run-dir", type=click.Path(path_type=Path), required=True, help="The chain's run directory.")
def run_task(run_dir: Path) -> None:
    """Live as one array task of a chain (started by generation.sbatch)."""
    from nvrx_chain.generation.run_task import exit_process, run_task

    exit_process(int(run_task(run_dir, os.environ)))


@click.command("run-launcher", hidden=True)
@click.option("--run-dir", type=click.Path(path_type=Path), required=True, help="The chain's run directory.")
def run_launcher(run_dir: Path) -> None:
    """Run the launcher of one node (started by run-task through srun)."""
    from nvrx_chain.generation.run_launcher import run_launcher
    from nvrx_chain.generation.run_task import exit_process

    exit_process(run_launcher(run_dir, os.environ))
