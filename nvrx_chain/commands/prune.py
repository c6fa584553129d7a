"""`nvrx-chain prune`. Only parses, calls and prints.

Touches: the current directory, standard output and error.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import click

from nvrx_chain.commands.asking import ask
from nvrx_chain.commands.ops import chain_options, finish, json_option, open_desk, resolve
from nvrx_chain.ops.chain import OpenChain
from nvrx_chain.ops.prune import KEPT_GENERATIONS, PrunePlan, PruneReport, PruneRequest, plan_prune, render_prune
from nvrx_chain.ops.prune import prune as remove
from nvrx_chain.ops.settle import Desk

_SHOW_AFTER_SECONDS = 1.0


@click.command()
@chain_options
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=KEPT_GENERATIONS,
    show_default=True,
    metavar="N",
    help="Leave the N newest generations that have begun as they are.",
)
@click.option(
    "--older-than",
    type=click.FloatRange(min=0, max=36500),
    default=0.0,
    metavar="DAYS",
    help="Only what ended so long ago.",
)
@click.option("--dry-run", is_flag=True, help="Print what would go, with sizes, and remove nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def prune(
    chain: str | None, run_dir: Path | None, keep: int, older_than: float, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Remove the logs, control files and cycle records of old generations, and history/.

    CHAIN is a run directory or a job id in any form. Checkpoints, records and whatever lives are never touched.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk).chain
    plan = plan_prune(found, desk, PruneRequest(keep=keep, older_than=timedelta(days=older_than)))
    if not dry_run and plan.doomed:
        ask(desk, "Remove these files?", yes=yes, shown=render_prune(plan.report), found_by="pruning a chain")
        finish(_remove(found, plan, desk), as_json, render_prune)
    else:
        finish(plan.report, as_json, render_prune)


def _remove(chain: OpenChain, plan: PrunePlan, desk: Desk) -> PruneReport:
    """Remove them; after a second with a bar on a terminal."""
    began, total, done = desk.clock.monotonic(), max(1, plan.report.bytes), 0

    def show(size: int) -> None:
        nonlocal done
        done += size
        if sys.stderr.isatty() and desk.clock.monotonic() - began > _SHOW_AFTER_SECONDS:
            share = done / total
            click.echo(f"\r\x1b[K[{'#' * int(30 * share):<30}] {share:4.0%}", nl=False, err=True)

    report = remove(chain, plan, show)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    return report
