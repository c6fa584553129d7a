"""`nvrx-chain wait`. Only parses, calls and prints.

Touches: the current directory, standard output and error, inotify.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from pathlib import Path

import click
import msgspec

from nvrx_chain.commands.ops import chain_options, json_option, open_desk, resolve
from nvrx_chain.ops.waiting import QueueTurns, Waiter, WaitReport, render_wait
from nvrx_chain.ops.words import render_safely

_CLEAR_LINE = "\r\x1b[K"


@click.command()
@chain_options
@click.option("--until-held", is_flag=True, help="Return also when the chain is held, with 77.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Return after so long, with 124. Without it there is no limit.",
)
@json_option
def wait(chain: str | None, run_dir: Path | None, until_held: bool, timeout: float | None, as_json: bool) -> None:
    """Wait until a chain has ended; the exit code says how.

    CHAIN is a run directory or a job id in any form. 0: completed, 1: exhausted, 79: cancelled, 93: no restart.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk).chain
    waiter = Waiter(
        chain=found,
        client=desk.client,
        clock=desk.clock,
        show=_show,
        wake=threading.Event(),
        until_held=until_held,
        timeout_seconds=timeout,
        turns=QueueTurns(clock=desk.clock),
    )
    report = _run(waiter)
    text = "\n".join(render_safely(line) for line in render_wait(report).split("\n"))
    click.echo(msgspec.json.encode(report) if as_json else text)
    sys.exit(report.exit_code)


def _run(waiter: Waiter) -> WaitReport:
    from nvrx_chain.ops.wake import wake_on_change

    try:
        with wake_on_change(waiter.chain.directory.path, waiter.wake, recursive=False):
            return waiter.run()
    except KeyboardInterrupt:
        # As a shell counts: 1 would say that the chain is exhausted.
        sys.exit(128 + signal.SIGINT)
    finally:
        if sys.stderr.isatty():
            click.echo(_CLEAR_LINE, nl=False, err=True)


def _show(line: str) -> None:
    """One line on a terminal, always the same one."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"{_CLEAR_LINE}{render_safely(line)[:width]}", nl=False, err=True)
