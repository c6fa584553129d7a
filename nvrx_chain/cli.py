"""The `nvrx-chain` command: names its subcommands, imports the module of the one that runs, maps errors to exit codes.

Touches: standard error. The modules are imported late so that `--help`, `submit --dry-run` and the batch script's
run-task start fast and never import torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

import click

from nvrx_chain import __version__
from nvrx_chain.errors import NvrxError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMMANDS: dict[str, tuple[str, str]] = {
    "submit": ("nvrx_chain.commands.submit:submit", "Submit a training job as a chain of generations."),
    "status": ("nvrx_chain.commands.ops:status", "Show a chain: one line per generation."),
    "list": ("nvrx_chain.commands.list:list_command", "List your chains, one line each."),
    "wait": ("nvrx_chain.commands.wait:wait", "Wait until a chain has ended; the exit code says how."),
    "extend": ("nvrx_chain.commands.extend:extend", "Queue further generations of a chain."),
    "cancel": ("nvrx_chain.commands.ops:cancel", "Stop a chain for good, queued generations first."),
    "exclude": ("nvrx_chain.commands.exclude:exclude", "Keep a chain away from nodes."),
    "hold": ("nvrx_chain.commands.ops:hold", "Keep the queued generations from starting."),
    "release": ("nvrx_chain.commands.ops:release", "Let a held chain go on."),
    "logs": ("nvrx_chain.commands.ops:logs", "Print or follow the logs of a generation."),
    "doctor": ("nvrx_chain.commands.doctor:doctor", "Examine the site: does it give a chain what it needs?"),
    "prune": ("nvrx_chain.commands.prune:prune", "Remove what old generations of a chain left."),
    "sandbox": ("nvrx_chain.commands.sandbox:sandbox", "A real private Slurm cluster on this machine, and its faults."),
    "demo": ("nvrx_chain.commands.demo:demo", "Watch a chain lose a rank and a node, resume and finish, on a sandbox."),
    "completion": ("nvrx_chain.commands.completion:completion", "Print what lets a shell complete the commands."),
    "launch": ("nvrx_chain.commands.launch:launch", "Run and restart the ranks of this node (in-job launcher)."),
    "run-task": ("nvrx_chain.commands.generation:run_task", "(internal) One array task; started by generation.sbatch."),
    "run-launcher": ("nvrx_chain.commands.generation:run_launcher", "(internal) The launcher's wrapper on one node."),
    "doctor-probe": ("nvrx_chain.commands.doctor_probe:doctor_probe", "(internal) What one machine says; for doctor."),
}
_HIDDEN = frozenset({"run-task", "run-launcher", "doctor-probe"})


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports each one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if name not in _HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """The names from the table: click would import every command for its help text."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name, help=_COMMANDS[name][1]) for name in names] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nvrx-chain")
def cli() -> None:
    """Keep a long training job alive on Slurm: a chain of job-array generations."""


def main() -> None:
    """Entry point. An NvrxError becomes one line on standard error and its documented exit code."""
    # Records, logs and what a job inherits through sbatch: nobody else may write what the tasks of a chain believe.
    os.umask(os.umask(0o077) | 0o022)
    try:
        cli.main(prog_name="nvrx-chain", standalone_mode=True)
    except NvrxError as error:
        # Not at the top: it is for those few that fail. What an error quotes of a file must not steer the terminal.
        from nvrx_chain.ops.words import render_safely

        click.echo(f"nvrx-chain: {render_safely(str(error))}", err=True)
        sys.exit(int(error.exit_code))
