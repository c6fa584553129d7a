"""`nvrx-chain wait`. Only parses, calls and prints.

Touches: the current directory, standard output and error, inotify.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click
import msgspec

from nvrx_chain.commands.desk import chain_options, json_option, open_desk, resolve
from nvrx_chain.commands.progress import Progress
from nvrx_chain.ops.chain import OpenChain
from nvrx_chain.ops.settle import Desk
from nvrx_chain.ops.waiting import QueueTurns, Waiter, WaitReport, render_wait
from nvrx_chain.ops.words import render_safely


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
    with Progress("waiting", quiet=as_json) as shown:
        report = _run(_waiter(found, desk, shown, until_held=until_held, timeout=timeout))
    text = "\n".join(render_safely(line) for line in render_wait(report).split("\n"))
    click.echo(msgspec.json.encode(report) if as_json else text)
    sys.exit(report.exit_code)


def _waiter(chain: OpenChain, desk: Desk, shown: Progress, *, until_held: bool, timeout: float | None) -> Waiter:
    return Waiter(
        chain=chain,
        client=desk.client,
        clock=desk.clock,
        show=shown.tell,
        wake=threading.Event(),
        until_held=until_held,
        timeout_seconds=timeout,
        turns=QueueTurns(clock=desk.clock),
    )


def _run(waiter: Waiter) -> WaitReport:
    from nvrx_chain.ops.wake import wake_on_change

    try:
        with wake_on_change(waiter.chain.directory.path, waiter.wake, recursive=False):
            return waiter.run()
    except KeyboardInterrupt:
        # As a shell counts: 1 would say that the chain is exhausted.
        sys.exit(128 + signal.SIGINT)
