"""`nvrx-chain extend`. Only parses, calls and prints.

Touches: the environment, the current directory, standard output and error.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from nvrx_chain.commands.desk import chain_options, json_option, open_desk, resolve
from nvrx_chain.commands.progress import Progress
from nvrx_chain.commands.submit import tell_dropped_variables
from nvrx_chain.ops.chain import require_cluster, require_own
from nvrx_chain.ops.settle import Desk
from nvrx_chain.ops.words import render_safely
from nvrx_chain.submit.extend import extend_chain, render_extended, render_extension
from nvrx_chain.submit.extension import ExtendRequest, plan_extension

MOST_GENERATIONS = 100
"""Each is an sbatch and a generation's worth of a site's submit limit: a slip of the finger must not fill the queue."""


@click.command()
@chain_options
@click.option(
    "--by",
    "number",
    type=click.IntRange(min=1, max=MOST_GENERATIONS),
    required=True,
    metavar="N",
    help=f"Generations to queue behind those that are queued, 1 to {MOST_GENERATIONS}.",
)
@click.option("--dry-run", is_flag=True, help="Print the sbatch commands and change nothing.")
@json_option
def extend(chain: str | None, run_dir: Path | None, number: int, dry_run: bool, as_json: bool) -> None:
    """Queue further generations of a chain that has not ended.

    CHAIN is a run directory or a job id in any form. The generations are submitted as the newest one was, and get the
    environment of this command.
    """
    desk = open_desk()
    found = resolve(chain, run_dir, desk).chain
    require_own(found, desk.operator)
    require_cluster(found, desk.client)
    request = ExtendRequest(
        files=found.files, manifest=found.manifest, resume_command=found.resume_command, number=number
    )
    if dry_run:
        click.echo(render_extension(request, plan_extension(request, desk.client, desk.clock), as_json=as_json))
    else:
        _extend(request, desk, as_json=as_json)


def _extend(request: ExtendRequest, desk: Desk, *, as_json: bool) -> None:
    tell_dropped_variables(os.environ)
    with Progress(f"queueing {request.number} generations", quiet=as_json):
        result = extend_chain(request, desk.client, desk.clock, say=desk.say)
    text = render_extended(result, as_json=as_json)
    # JSON has escapes of its own, and spelling out would break it.
    click.echo(text if as_json else "\n".join(render_safely(line) for line in text.split("\n")))
