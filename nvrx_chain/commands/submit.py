"""`nvrx-chain submit`: from the table of options to one call. Touches: the environment, standard output and error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from nvrx_chain.clock import SystemClock
from nvrx_chain.commands.completing import complete_value
from nvrx_chain.commands.directory import current_directory
from nvrx_chain.errors import PreflightError, UsageError
from nvrx_chain.slurm.choose import make_client
from nvrx_chain.slurm.client_kind import SlurmClientKind, describe_unproven
from nvrx_chain.slurm.command import scrubbed_environment
from nvrx_chain.submit.config import ChainConfig, build_config
from nvrx_chain.submit.option import Kind, Option, Section
from nvrx_chain.submit.options import OPTIONS
from nvrx_chain.submit.places import own_places
from nvrx_chain.submit.preview import preview_chain
from nvrx_chain.submit.problem import Severity
from nvrx_chain.submit.settings import Settings, read_settings
from nvrx_chain.submit.show import render_preview, render_settings

# A dry run is typed often; a controller that is down must not hold it up for the 25 s of a real submit.
_DRY_RUN_TIMEOUT_SECONDS = 3.0
_ENCLOSING_JOB = ("PMI", "SBATCH_", "SLURM_")


class SectionedCommand(click.Command):
    """A command whose help page has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {parameter.name: parameter.get_help_record(ctx) for parameter in self.get_params(ctx)}
        for section in Section:
            rows = [records.get(option.parameter) for option in OPTIONS if option.section is section]
            with formatter.section(section.value):
                formatter.write_dl([row for row in rows if row is not None])


def _parameter(option: Option) -> click.Parameter:
    """The click side of one option: words in, no types and no defaults, so that all sources are read alike."""
    if option.positional:
        return click.Argument([option.parameter], nargs=-1, metavar=option.metavar, type=click.UNPROCESSED)
    is_switch = option.kind is Kind.SWITCH
    declaration = f"--{option.key}" + (f"/--no-{option.key}" if option.negatable else "")
    shown = f" [env: {', '.join(option.environment)}]"
    if option.default not in (None, ()) and option.default is not False:
        shown = f" [default: {option.default}]" + shown
    return click.Option(
        [declaration, option.parameter],
        is_flag=is_switch,
        default=None,
        multiple=option.kind in (Kind.WORDS, Kind.PAIRS),
        metavar=None if is_switch else option.metavar,
        shell_complete=complete_value(option.metavar, option.choices),
        help=option.help + shown,
    )


@click.command(cls=SectionedCommand, params=[_parameter(option) for option in OPTIONS])
def submit(**flags: Any) -> None:
    """Queue a training job as a chain of generations that take over from each other.

    \b
    nvrx-chain submit --train-tasks 32 --hot-spares 1 -- train.py --config run.yaml
    nvrx-chain submit --train-tasks 32 --hot-spares 1 --dry-run

    Settings come from flags, the environment, nvrx-chain.toml and defaults, in that order. An explicitly empty value
    means off.
    """
    directory = current_directory(os.environ)
    settings = read_settings(flags, os.environ, directory)
    as_json, parsable = settings.switch("json"), settings.switch("parsable")
    if settings.switch("show-config"):
        click.echo(render_settings(settings, as_json=as_json))
        return
    _refuse_two_outputs(as_json=as_json, parsable=parsable)
    config = build_config(
        settings, directory=directory, interpreter=sys.executable, environ=os.environ, own_places=own_places()
    )
    kind = _choose_client(settings)
    if settings.switch("dry-run"):
        _dry_run(config, kind, as_json=as_json)
    else:
        _submit(config, kind, as_json=as_json, parsable=parsable)


def _choose_client(settings: Settings) -> SlurmClientKind:
    kind = SlurmClientKind(settings.text("slurm-client"))
    tell_unproven(kind)
    return kind


def _refuse_two_outputs(*, as_json: bool, parsable: bool) -> None:
    if as_json and parsable:
        raise UsageError("choosing the output: --json and --parsable exclude each other", hint="leave one of them out")


def _dry_run(config: ChainConfig, kind: SlurmClientKind, *, as_json: bool) -> None:
    clock = SystemClock()
    client = make_client(kind, clock=clock, environ=os.environ, timeout_seconds=_DRY_RUN_TIMEOUT_SECONDS)
    preview = preview_chain(config, client, clock, dry_run=True)
    for problem in preview.problems:
        click.echo(problem, err=True)
    click.echo(render_preview(preview, as_json=as_json))
    if any(problem.severity is Severity.ERROR for problem in preview.problems):
        sys.exit(int(PreflightError.exit_code))


def _submit(config: ChainConfig, kind: SlurmClientKind, *, as_json: bool, parsable: bool) -> None:
    # Not at the top: a dry run does without them, and starts that much faster.
    from nvrx_chain.commands.progress import Progress
    from nvrx_chain.submit.chain import submit_chain
    from nvrx_chain.submit.receipt import render_parsable, render_result

    tell_dropped_variables(os.environ)
    clock = SystemClock()
    client = make_client(kind, clock=clock, environ=os.environ)
    with Progress(f"queueing {config.chain_depth} generations", quiet=as_json or parsable):
        result = submit_chain(config, client, clock, say=lambda line: click.echo(line, err=True))
    click.echo(render_parsable(result) if parsable else render_result(result, as_json=as_json))


def tell_unproven(kind: SlurmClientKind) -> None:
    """Say what is known of a client that not many have used, before anything depends on it."""
    said = describe_unproven(kind)
    if said is not None:
        click.echo(f"note: {said}", err=True)


def tell_dropped_variables(environ: Mapping[str, str]) -> None:
    """Say which variables of the caller a job does not get: whoever misses one must find out why."""
    dropped = [name for name in scrubbed_environment(environ)[1] if name.startswith(_ENCLOSING_JOB)]
    if dropped:
        click.echo(f"note: kept from sbatch, they belong to another job or site: {' '.join(dropped)}", err=True)
