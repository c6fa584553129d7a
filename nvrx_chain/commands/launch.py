"""`nvrx-chain launch`: from flags to one call. Touches: the environment, the secret's file, standard error.

Spellings of torchrun and ft_launcher 0.7.0 are accepted for what we have, with dashes or underscores; what of theirs we
do not have is refused with the reason, or ignored where nothing depends on it.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, NoReturn

import click

from nvrx_chain.commands.launch_options import LAUNCH_OPTIONS, options_by_heading
from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.flags import IGNORED, REFUSED, build_settings

_COMMAND = click.Argument(["command"], nargs=-1, required=True, type=click.UNPROCESSED)


class SectionedLaunch(click.Command):
    """Help under headings, and a word for each flag of the others that we do not have."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, options in options_by_heading():
            rows = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            with formatter.section(section):
                formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _without_ignored(args, self.options_with_value(ctx)))

    def options_with_value(self, ctx: click.Context) -> frozenset[str]:
        """Every spelling of an option that takes the next word."""
        return frozenset(
            word
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for word in parameter.opts
        )


def _without_ignored(args: list[str], with_value: frozenset[str]) -> list[str]:
    """The words of the command line up to the script's own, without those that steer nothing here."""
    kept: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "--":
            return [*kept, word, *rest]
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        if name in REFUSED:
            _refuse(name)
        if name in IGNORED:
            logging.getLogger(__name__).info("ignored %s: %s", name, IGNORED[name])
            if not equals and rest:
                rest.pop(0)
            continue
        kept.append(word)
        if not equals and name in with_value and rest:
            kept.append(rest.pop(0))
    return kept


def _refuse(name: str) -> NoReturn:
    raise UsageError("reading the command line", part=name, hint=REFUSED[name])


@click.command(
    cls=SectionedLaunch,
    params=[*(option for _, option in LAUNCH_OPTIONS), _COMMAND],
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: word.replace("_", "-"),
    },
)
def launch(**flags: Any) -> None:
    """Run the ranks of this node, and restart them together with the other nodes when one fails.

    \b
    nvrx-chain launch --nproc-per-node 8 --max-restarts 3 train.py --config run.yaml
    nvrx-chain launch --nnodes 4:5 --rdzv-endpoint node0:29500 --secret-file job.secret ... train.py

    The exit code is 0 when all ranks ended with 0, the no-restart code when a further start is useless, 75 when the
    rendezvous host is lost, 143 when it was told to end, 1 else.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    settings = build_settings(flags, os.environ)
    from nvrx_chain.launcher.launch import run_launch

    code = run_launch(settings, os.environ)
    logging.shutdown()
    sys.stdout.flush()
    # Threads that wait in the store's client would abort an interpreter that ends in order, and it takes its time.
    os._exit(code)
