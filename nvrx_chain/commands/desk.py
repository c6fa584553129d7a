"""What the commands of an operator share: the desk they work at, how a chain is named, how a report is printed.

Touches: the environment, the current directory, standard output and error.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import msgspec

from nvrx_chain.clock import SystemClock
from nvrx_chain.commands.completing import complete_chain
from nvrx_chain.errors import ExitCode
from nvrx_chain.ops.chain import Operator
from nvrx_chain.ops.resolve import Resolved, resolve_chain
from nvrx_chain.ops.settle import Desk
from nvrx_chain.ops.words import render_safely
from nvrx_chain.slurm.choose import make_client
from nvrx_chain.slurm.client_kind import ENVIRONMENT_NAME, SlurmClientKind
from nvrx_chain.slurm.user import user_name

_F = TypeVar("_F", bound=Callable[..., Any])


def _keep_kind(context: click.Context, _parameter: click.Parameter, word: str) -> None:
    context.meta[_KIND] = SlurmClientKind(word)


_KIND = "nvrx_chain.slurm_client"
slurm_client_option = click.option(
    "--slurm-client",
    type=click.Choice([kind.value for kind in SlurmClientKind]),
    default=SlurmClientKind.COMMAND.value,
    show_default=True,
    envvar=ENVIRONMENT_NAME,
    show_envvar=True,
    expose_value=False,
    callback=_keep_kind,
    help="How this call asks Slurm: by its programs, or through PySlurm.",
)
"""Which Slurm client a command gets, through its desk or by `chosen_client_kind`."""


def chosen_client_kind() -> SlurmClientKind:
    """What `slurm_client_option` said to the command that runs."""
    kind: SlurmClientKind = click.get_current_context().meta.get(_KIND, SlurmClientKind.COMMAND)
    return kind


def chain_options(command: _F) -> _F:
    """What names a chain, the same for every command."""
    by_directory = click.option(
        "--run-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The chain by its run directory, also one whose name looks like a job id.",
    )
    return click.argument("chain", required=False, metavar="[CHAIN]", shell_complete=complete_chain)(
        by_directory(slurm_client_option(command))
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def resolve(chain: str | None, run_dir: Path | None, desk: Desk) -> Resolved:
    return resolve_chain(chain, run_dir, desk.client, Path.cwd())


def open_desk() -> Desk:
    """The desk that was handed in, else one with the machine's own clock, Slurm and user."""
    context = click.get_current_context()
    given = context.find_object(Desk)
    if given is not None:
        return given
    clock = SystemClock()
    return Desk(
        client=make_client(chosen_client_kind(), clock=clock, environ=os.environ),
        clock=clock,
        operator=Operator(user=user_name(os.geteuid()), uid=os.geteuid(), host=socket.gethostname()),
        say=lambda line: click.echo(render_safely(line), err=True),
        is_interactive=sys.stdin.isatty(),
    )


class _Report(Protocol):
    @property
    def is_complete(self) -> bool: ...


_R = TypeVar("_R", bound=_Report)


def finish(report: _R, as_json: bool, render: Callable[[_R], str]) -> None:
    """Print a report; end with 1 when it is not complete."""
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        click.echo("\n".join(render_safely(line) for line in render(report).split("\n")))
    if not report.is_complete:
        sys.exit(int(ExitCode.FAILED))
