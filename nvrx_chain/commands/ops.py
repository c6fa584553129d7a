"""`nvrx-chain status`, `cancel`, `hold`, `release` and `logs`. Only parses, calls and prints.

Touches: the environment, the current directory, standard output and error.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import msgspec

from nvrx_chain.clock import SystemClock
from nvrx_chain.commands.asking import ask
from nvrx_chain.commands.completing import complete_chain
from nvrx_chain.commands.progress import Progress
from nvrx_chain.errors import ExitCode
from nvrx_chain.ops.cancel import CancelReport, ask_before_cancel, cancel_chain, render_cancel
from nvrx_chain.ops.chain import Operator, require_own
from nvrx_chain.ops.ending import EndingReport, ask_before_ending, end_after_current, render_ending
from nvrx_chain.ops.hold import hold_chain, release_chain, render_hold
from nvrx_chain.ops.logs import Emit, Follower, LogRequest, choose_logs, print_tail
from nvrx_chain.ops.operator import FLAG, act_for_owner
from nvrx_chain.ops.resolve import Resolved, resolve_chain
from nvrx_chain.ops.settle import DEADLINE_SECONDS, Desk
from nvrx_chain.ops.survey import survey_chain
from nvrx_chain.ops.words import render_safely
from nvrx_chain.slurm.choose import make_client
from nvrx_chain.slurm.client_kind import ENVIRONMENT_NAME, SlurmClientKind

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
"""For a command that opens a desk: which Slurm client that gets."""


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
_timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=DEADLINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to repeat what a reading of the queue does not show as done.",
)


_operator_option = click.option(
    FLAG, "as_operator", is_flag=True, help="As root: act on the chain of another user, with that user's rights."
)


@click.command()
@chain_options
@json_option
def status(chain: str | None, run_dir: Path | None, as_json: bool) -> None:
    """Show a chain: one line per generation.

    CHAIN is a run directory or a job id in any form (123, 123_4, 123_[2-4]). Without one it is the chain in the current
    directory, else the only live one below ./nvrx-chains.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk)
    seen = survey_chain(found.chain, desk.client, desk.clock)
    if as_json:
        click.echo(msgspec.json.encode(seen))
    else:
        # Not at the top: scripts ask for JSON, and rich is most of the time that this command takes.
        from nvrx_chain.ops.status_view import make_console, print_status

        print_status(seen, make_console())


@click.command()
@chain_options
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@click.option("--after-current", is_flag=True, help="Let the running generation train to its end; it is the last one.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_operator_option
@_timeout_option
@json_option
def cancel(
    chain: str | None,
    run_dir: Path | None,
    reason: str | None,
    after_current: bool,
    yes: bool,
    as_operator: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Stop a chain for good: queued generations first, then the running one.

    CHAIN is a run directory or a job id in any form. Ends with 1 when something of the chain is still in the queue.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk)
    desk = act_for_owner(found.chain, desk) if as_operator else desk
    require_own(found.chain, desk.operator)
    ask(desk, (ask_before_ending if after_current else ask_before_cancel)(found.chain), yes=yes)
    stop = end_after_current if after_current else cancel_chain
    with Progress("cancelling, until the queue shows it", quiet=as_json):
        report = stop(found.chain, desk, why=reason, seconds=timeout)
    finish(report, as_json, _render_stop)


def _render_stop(report: CancelReport | EndingReport) -> str:
    return render_ending(report) if isinstance(report, EndingReport) else render_cancel(report)


@click.command()
@chain_options
@click.option("--reason", metavar="TEXT", help="Why, for the record and for `status`.")
@_operator_option
@_timeout_option
@json_option
def hold(
    chain: str | None, run_dir: Path | None, reason: str | None, as_operator: bool, timeout: float, as_json: bool
) -> None:
    """Keep the queued generations from starting. The running one goes on.

    CHAIN is a run directory or a job id in any form. Ends with 1 when a queued generation is not shown as held.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk)
    desk = act_for_owner(found.chain, desk) if as_operator else desk
    with Progress("holding, until the queue shows it", quiet=as_json):
        report = hold_chain(found.chain, desk, why=reason, seconds=timeout)
    finish(report, as_json, render_hold)


@click.command()
@chain_options
@_operator_option
@_timeout_option
@json_option
def release(chain: str | None, run_dir: Path | None, as_operator: bool, timeout: float, as_json: bool) -> None:
    """Let a held chain go on.

    CHAIN is a run directory or a job id in any form. Ends with 1 when a generation is still held.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk)
    desk = act_for_owner(found.chain, desk) if as_operator else desk
    with Progress("releasing, until the queue shows it", quiet=as_json):
        report = release_chain(found.chain, desk, seconds=timeout)
    finish(report, as_json, render_hold)


@click.command()
@chain_options
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, across hand-offs, until the chain ends.")
@click.option("--generation", type=int, metavar="JOB", help="The generation with this array job id, not the newest.")
@click.option("--task", type=click.IntRange(min=0), metavar="K", help="Only the logs of array task K.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each line (JSON lines).")
@click.option(
    "--cycle", type=click.IntRange(min=0), metavar="N", help="Only what the workload wrote in restart cycle N, from 0."
)
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), default=20, show_default=True, metavar="N", help="Lines of each log."
)
def logs(
    chain: str | None,
    run_dir: Path | None,
    follow: bool,
    generation: int | None,
    task: int | None,
    cycle: int | None,
    as_json: bool,
    lines: int,
) -> None:
    """Print or follow the logs of a generation, each line after the name of its log.

    CHAIN is a run directory or a job id in any form; a job id also names the generation, and 123_4 the task.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk)
    request = choose_logs(found, generation, task, lines, cycle)
    emit = _emit_json if as_json else _emit
    if follow:
        _follow(found, request, desk, emit)
    else:
        print_tail(found.chain, request, emit)


def _follow(found: Resolved, request: LogRequest, desk: Desk, emit: Emit) -> None:
    from nvrx_chain.ops.wake import wake_on_change

    wake = threading.Event()
    follower = Follower(chain=found.chain, request=request, clock=desk.clock, emit=emit, wake=wake)
    # An interrupt is how one leaves.
    with contextlib.suppress(KeyboardInterrupt), wake_on_change(found.chain.directory.generations, wake):
        follower.run()


def _emit(label: str, line: str) -> None:
    # As bytes: a locale without UTF-8 must not end the reading.
    click.echo(f"{label} | {render_safely(line, keep_colours=sys.stdout.isatty())}".encode())


def _emit_json(label: str, line: str) -> None:
    click.echo(msgspec.json.encode({"schema": 1, "log": label, "line": line}))


def resolve(chain: str | None, run_dir: Path | None, desk: Desk) -> Resolved:
    return resolve_chain(chain, run_dir, desk.client, Path.cwd())


def open_desk() -> Desk:
    """The desk that was handed in, else one with the machine's own clock, Slurm and user."""
    context = click.get_current_context()
    given = context.find_object(Desk)
    if given is not None:
        return given
    clock, uid = SystemClock(), os.geteuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return Desk(
        client=make_client(context.meta.get(_KIND, SlurmClientKind.COMMAND), clock=clock, environ=os.environ),
        clock=clock,
        operator=Operator(user=user, uid=uid, host=socket.gethostname()),
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
