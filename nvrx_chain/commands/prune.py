"""`nvrx-chain prune`. Only parses, calls and prints.

Touches: the current directory, standard output and error.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from nvrx_chain.commands.asking import ask
from nvrx_chain.commands.desk import chain_options, finish, json_option, open_desk, resolve
from nvrx_chain.commands.progress import Progress
from nvrx_chain.ops.chain import OpenChain
from nvrx_chain.ops.prune import KEPT_GENERATIONS, PrunePlan, PruneReport, PruneRequest, plan_prune, render_prune
from nvrx_chain.ops.prune import prune as remove


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
        finish(_remove(found, plan, quiet=as_json), as_json, render_prune)
    else:
        finish(plan.report, as_json, render_prune)


def _remove(chain: OpenChain, plan: PrunePlan, *, quiet: bool) -> PruneReport:
    with Progress("removing", total=plan.report.bytes, quiet=quiet) as shown:
        return remove(chain, plan, shown.advance)
