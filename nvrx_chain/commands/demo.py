"""`nvrx-chain demo`: from options to one call, and from its report to an exit code. Only parses, calls and prints."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from nvrx_chain.clock import SystemClock
from nvrx_chain.demo.expectations import failures
from nvrx_chain.demo.hand_off import HAND_OFF
from nvrx_chain.demo.no_restart import NO_RESTART
from nvrx_chain.demo.runner import DemoRequest, run_demo
from nvrx_chain.demo.scenario import DemoReport, ScenarioName
from nvrx_chain.demo.view import make_console, opened_view, print_report, render_json
from nvrx_chain.demo.walltime import WALLTIME
from nvrx_chain.errors import DemoError
from nvrx_chain.records.manifest import LauncherKind

SCENARIOS = {scenario.name: scenario for scenario in (HAND_OFF, NO_RESTART, WALLTIME)}
_LAUNCHERS = (LauncherKind.NVRX, LauncherKind.FT_LAUNCHER, LauncherKind.TORCHRUN)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--scenario",
    type=click.Choice([name.value for name in ScenarioName]),
    default=ScenarioName.HAND_OFF.value,
    show_default=True,
    help="What happens to the chain.",
)
@click.option(
    "--launcher",
    type=click.Choice([kind.value for kind in _LAUNCHERS]),
    help="Launcher inside a generation; no-restart brings its own.  [default: ft_launcher, else torchrun]",
)
@click.option(
    "--python",
    default=sys.executable,
    show_default="the one that runs nvrx-chain",
    help="Interpreter of launcher and training.",
)
@click.option(
    "--dir",
    "parent",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the demo makes its directory.  [default: the temporary directory]",
)
@click.option("--keep", is_flag=True, help="Leave the directory and the private Slurm, and say how to look at them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end; the story goes to stderr.")
@click.option("--plain", is_flag=True, help="Plain lines with times, also on a terminal.")
def demo(
    scenario: str, launcher: str | None, python: str, parent: Path | None, keep: bool, as_json: bool, plain: bool
) -> None:
    """Watch a real chain on a private Slurm lose a rank and a node, resume, finish and free every node.

    Needs root. Ends with 1 and the names of the expectations that did not hold.
    """
    request = DemoRequest(
        scenario=SCENARIOS[ScenarioName(scenario)],
        launcher=LauncherKind(launcher) if launcher else None,
        # Not resolved: the real path of a virtual environment's interpreter is not in it.
        python=os.path.abspath(python) if "/" in python else python,
        interpreter=sys.executable,
        parent=parent.absolute() if parent else None,
        keep=keep,
        environ=os.environ,
    )
    _finish(_run(request, plain=plain or as_json, to_stderr=as_json), as_json=as_json, plain=plain)


def _run(request: DemoRequest, *, plain: bool, to_stderr: bool) -> DemoReport:
    clock = SystemClock()
    console = make_console(plain=plain, to_stderr=to_stderr)
    with opened_view(console, clock, request.scenario) as view:
        view.say(f"scenario {request.scenario.name.value}: {request.scenario.title}")
        return run_demo(request, clock, view)


def _finish(report: DemoReport, *, as_json: bool, plain: bool) -> None:
    if as_json:
        click.echo(render_json(report))
    else:
        print_report(report, make_console(plain=plain, to_stderr=False))
    if not report.ok:
        raise DemoError(
            "the demo's expectations",
            part=", ".join(failures(report.expectations)),
            hint="--keep leaves the cluster and its logs to look at",
        )
