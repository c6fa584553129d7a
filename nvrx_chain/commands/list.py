"""`nvrx-chain list`. Only parses, calls and prints.

Touches: the current directory, standard output and error.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from nvrx_chain.commands.desk import json_option, open_desk, slurm_client_option
from nvrx_chain.ops.listing import list_chains, render_list


@click.command("list")
@click.option(
    "--run-root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Only the chains in DIR and directly below it, whoever they belong to.",
)
@click.option("--all", "include_ended", is_flag=True, help="Ended chains too.")
@slurm_client_option
@json_option
def list_command(run_root: Path | None, include_ended: bool, as_json: bool) -> None:
    """List your chains, one line each.

    Looks into the current directory, ./nvrx-chains and, for chains elsewhere, your jobs in the queue.
    """
    desk = open_desk()
    found = list_chains(
        desk.client,
        desk.clock,
        user=desk.operator.user,
        here=Path.cwd(),
        run_root=run_root,
        include_ended=include_ended,
    )
    click.echo(msgspec.json.encode(found) if as_json else render_list(found))
