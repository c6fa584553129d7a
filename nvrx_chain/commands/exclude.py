"""`nvrx-chain exclude`. Only parses, calls and prints.

Touches: the current directory, standard output and error.
"""

from __future__ import annotations

from pathlib import Path

import click

from nvrx_chain.commands.asking import ask
from nvrx_chain.commands.completing import complete_chain, complete_node
from nvrx_chain.commands.desk import finish, json_option, open_desk, resolve, slurm_client_option
from nvrx_chain.commands.progress import Progress
from nvrx_chain.errors import UsageError
from nvrx_chain.ops.bad_nodes import find_bad_nodes, read_deaths, render_bad_nodes
from nvrx_chain.ops.chain import OpenChain, require_own
from nvrx_chain.ops.exclude import (
    ExcludeRequest,
    describe_excluded,
    exclude_nodes,
    parse_nodes,
    read_excluded,
    refuse_job_ids,
    render_exclude,
)
from nvrx_chain.ops.settle import DEADLINE_SECONDS, Desk
from nvrx_chain.ops.words import render_safely


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODES]...", shell_complete=complete_node)
@click.option(
    "--chain",
    metavar="CHAIN",
    help="The chain by a job id in any form, or by its run directory.",
    shell_complete=complete_chain,
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The chain by its run directory, also one whose name looks like a job id.",
)
@click.option("--remove", is_flag=True, help="Take these nodes back.")
@click.option("--bad-nodes", is_flag=True, help="The nodes on which tasks of this chain died again and again.")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@click.option("--force", is_flag=True, help="Also when fewer nodes are left than a generation takes.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask about what --bad-nodes has found.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=DEADLINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to repeat what Slurm does not show as done.",
)
@slurm_client_option
@json_option
def exclude(
    nodes: tuple[str, ...],
    chain: str | None,
    run_dir: Path | None,
    remove: bool,
    bad_nodes: bool,
    reason: str | None,
    force: bool,
    yes: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Keep the queued and later generations of a chain away from NODES, such as n3 or n[01-04,07].

    What runs stays where it is; its spares that still wait get the list too.
    """
    if bool(nodes) == bad_nodes or (bad_nodes and remove):
        raise UsageError("excluding nodes: name nodes, or give --bad-nodes alone", hint="nodes: n3 or n[01-04,07]")
    desk = open_desk()
    refuse_job_ids(nodes, desk.client)
    found = resolve(chain, run_dir, desk).chain
    require_own(found, desk.operator)
    chosen = _find_bad(found, desk, yes=yes) if bad_nodes else _name_nodes(nodes, reason, desk)
    request = ExcludeRequest(nodes=chosen, remove=remove, force=force)
    with Progress("excluding, until Slurm shows it", quiet=as_json):
        report = exclude_nodes(found, desk, request, seconds=timeout) if chosen else describe_excluded(found)
    finish(report, as_json, render_exclude)


def _name_nodes(words: tuple[str, ...], reason: str | None, desk: Desk) -> dict[str, str]:
    return dict.fromkeys(parse_nodes(words), reason or f"by {desk.operator.signature}")


def _find_bad(chain: OpenChain, desk: Desk, *, yes: bool) -> dict[str, str]:
    """The bad nodes that somebody said yes to, each with the reason."""
    excluded = read_excluded(chain)
    found = [node for node in find_bad_nodes(read_deaths(chain)) if node.name not in excluded]
    if not found:
        click.echo("no node on which several tasks died", err=True)
        return {}
    for line in render_bad_nodes(found).split("\n"):
        click.echo(render_safely(line), err=True)
    ask(desk, f"Exclude {' '.join(node.name for node in found)}?", yes=yes, found_by="excluding what was found")
    return {node.name: node.reason for node in found}
