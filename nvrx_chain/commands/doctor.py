"""`nvrx-chain doctor`: from options to one call. Touches: the environment, standard output and error."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import msgspec

from nvrx_chain.clock import SystemClock
from nvrx_chain.commands.completing import complete_node
from nvrx_chain.commands.desk import chosen_client_kind, json_option, slurm_client_option
from nvrx_chain.commands.directory import current_directory
from nvrx_chain.commands.progress import Progress
from nvrx_chain.doctor.model import Grade, Report
from nvrx_chain.doctor.run import DoctorRequest, examine
from nvrx_chain.doctor.show import render_report
from nvrx_chain.doctor.site import ASK_SECONDS
from nvrx_chain.doctor.visit import Visitor
from nvrx_chain.errors import ExitCode, UsageError
from nvrx_chain.interrupts import raised_as_interrupt
from nvrx_chain.ops.words import render_safely
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.records.near import CHAINS_DIRECTORY
from nvrx_chain.slurm.choose import make_client
from nvrx_chain.slurm.client_kind import SlurmClientKind
from nvrx_chain.slurm.user import user_name

ANY_NODE = "any"
_LAUNCHERS = tuple(kind.value for kind in (LauncherKind.NVRX, LauncherKind.FT_LAUNCHER, LauncherKind.TORCHRUN))
_COLOURS = {Grade.OK: None, Grade.UNKNOWN: "cyan", Grade.WARN: "yellow", Grade.BAD: "red"}


@click.command()
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Examine for the chain in this directory, with its launcher and interpreters, or for one to be made there.",
)
@click.option(
    "--run-root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Examine for chains below this directory.  [default: ./{CHAINS_DIRECTORY}]",
)
@click.option(
    "--launcher", type=click.Choice(_LAUNCHERS), help="Launcher to look for.  [default: the chain's, else any of them]"
)
@click.option(
    "--python", metavar="PATH", help="Interpreter of launcher and training.  [default: the chain's, else this one]"
)
@click.option(
    "--on-node",
    is_flag=False,
    flag_value=ANY_NODE,
    metavar="[NODE]",
    shell_complete=complete_node,
    help="Look at a compute node too, at NODE or at any, with one short job.",
)
@click.option("--partition", metavar="NAME", help="Partition of that job, and of your chains.")
@click.option(
    "--sbatch-arg", "sbatch_args", multiple=True, metavar="ARG", help="A further option for that job's sbatch."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1, max=86400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a node.",
)
@slurm_client_option
@json_option
def doctor(
    run_dir: Path | None,
    run_root: Path | None,
    launcher: str | None,
    python: str | None,
    on_node: str | None,
    partition: str | None,
    sbatch_args: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Examine the site: does it give a chain what it needs?

    Nothing is changed. Ends with 1 when something is bad, with 0 when the worst is a warning or could not be seen.
    """
    request = DoctorRequest(
        run_directory=_choose_directory(run_dir, run_root),
        is_chain=run_dir is not None,
        interpreter=sys.executable,
        # Not resolved: the real path of a virtual environment's interpreter is not in it.
        python=os.path.abspath(python) if python and "/" in python else python,
        launcher=launcher,
        look_at_node=on_node is not None,
        node=None if on_node == ANY_NODE else on_node,
        partition=partition,
        sbatch_args=sbatch_args,
        wait_seconds=timeout,
    )
    _finish(_examine(request, chosen_client_kind(), quiet=as_json), as_json=as_json)


def _choose_directory(run_dir: Path | None, run_root: Path | None) -> Path:
    what = "choosing what to examine"
    if run_dir and run_root:
        raise UsageError(f"{what}: --run-dir and --run-root exclude each other", hint="leave one out")
    directory = current_directory(os.environ) / (run_dir or run_root or CHAINS_DIRECTORY)
    if not str(directory).isprintable():
        # It goes to a node as JSON, which has no word for bytes that are no text.
        raise UsageError(f"{what}: not printable", part=repr(str(directory)), hint="choose another name")
    return directory


def _examine(request: DoctorRequest, kind: SlurmClientKind, *, quiet: bool) -> Report:
    clock = SystemClock()
    quick = make_client(kind, clock=clock, environ=os.environ, timeout_seconds=ASK_SECONDS)
    # Only a job needs the patient one, which may take long to find out that no controller is there.
    patient = make_client(kind, clock=clock, environ=os.environ) if request.look_at_node else quick
    with raised_as_interrupt(), Progress("looking", quiet=quiet) as shown:
        visitor = Visitor(client=patient, clock=clock, environ=os.environ, user=user_name(os.geteuid()), say=shown.tell)
        return examine(request, visitor, quick)


def _finish(report: Report, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        for grade, line in render_report(report):
            click.secho(render_safely(line), fg=_COLOURS[grade])
    if report.grade is Grade.BAD:
        sys.exit(int(ExitCode.FAILED))
