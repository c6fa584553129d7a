"""`nvrx-chain status`, `cancel`, `hold`, `release` and `logs`. Only parses, calls and prints.

Touches: the current directory, standard output and error.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

import click
import msgspec

from nvrx_chain.commands.asking import ask
from nvrx_chain.commands.desk import chain_options, finish, json_option, open_desk, resolve
from nvrx_chain.commands.progress import Progress
from nvrx_chain.ops.cancel import CancelReport, ask_before_cancel, cancel_chain, render_cancel
from nvrx_chain.ops.chain import require_own
from nvrx_chain.ops.ending import EndingReport, ask_before_ending, end_after_current, render_ending
from nvrx_chain.ops.hold import hold_chain, release_chain, render_hold
from nvrx_chain.ops.logs import Emit, Follower, LogRequest, choose_logs, print_tail
from nvrx_chain.ops.operator import FLAG, act_for_owner
from nvrx_chain.ops.resolve import Resolved
from nvrx_chain.ops.settle import DEADLINE_SECONDS, Desk
from nvrx_chain.ops.survey import survey_chain
from nvrx_chain.ops.timeline import survey_timeline
from nvrx_chain.ops.words import render_safely

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
@click.option("--timeline", is_flag=True, help="Show instead how long each restart cycle took to train again.")
@json_option
def status(chain: str | None, run_dir: Path | None, timeline: bool, as_json: bool) -> None:
    """Show a chain: one line per generation.

    CHAIN is a run directory or a job id in any form (123, 123_4, 123_[2-4]). Without one it is the chain in the current
    directory, else the only live one below ./nvrx-chains.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk)
    if timeline:
        _show_timeline(found, as_json=as_json)
        return
    seen = survey_chain(found.chain, desk.client, desk.clock)
    if as_json:
        click.echo(msgspec.json.encode(seen))
    else:
        # Not at the top: scripts ask for JSON, and rich is most of the time that this command takes.
        from nvrx_chain.ops.status_view import make_console, print_status

        print_status(seen, make_console())


def _show_timeline(found: Resolved, *, as_json: bool) -> None:
    seen = survey_timeline(found.chain, found.array_job_id)
    if as_json:
        click.echo(msgspec.json.encode(seen))
    else:
        from nvrx_chain.ops.status_view import make_console
        from nvrx_chain.ops.timeline_view import print_timeline

        print_timeline(seen, make_console())


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
