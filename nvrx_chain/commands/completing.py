"""What a shell is offered for a chain, a job or a node when Tab is pressed. Never fails and never takes long.

Touches: the current directory, ./nvrx-chains, the record of a sandbox, Slurm (one squeue or sinfo of at most a second).
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nvrx_chain.errors import NvrxError, Unobserved

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from nvrx_chain.slurm.command_client import CommandLineClient

SLURM_SECONDS = 1.0
"""A shell that waits longer for Tab feels broken; what Slurm would have added is then left out."""
MOST = 200


def complete_chain(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Run directories below ./nvrx-chains and job ids of the user's live chains; else the shell's own directories."""
    from click.shell_completion import CompletionItem

    _be_quiet()
    # First: the shell's script forgets the words before it, and asks for directories only when no word fits.
    directories = [CompletionItem(".", type="dir")]
    try:
        found = [name for name in _directories() if name.startswith(incomplete)]
        if not incomplete or incomplete.isdigit():
            found += [job for job in _jobs() if job.startswith(incomplete)]
    except (NvrxError, OSError):
        return directories
    return directories + _items(found)


def complete_node(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Names of the cluster's nodes."""
    _be_quiet()
    try:
        nodes = _quick_client().nodes(())
    except (NvrxError, OSError):
        return []
    return [] if isinstance(nodes, Unobserved) else _items([name for name in nodes if name.startswith(incomplete)])


def complete_sandbox_node(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Names of the nodes of the sandbox that `--dir` names so far."""
    from nvrx_chain.sandbox.config import default_directory
    from nvrx_chain.sandbox.record import SandboxState, find_place, read_state

    _be_quiet()
    try:
        place = find_place(context.params.get("directory") or default_directory(os.environ))
        state = read_state(place) if place else None
    except (NvrxError, OSError):
        return []
    names = state.config.node_names if isinstance(state, SandboxState) else ()
    return _items([name for name in names if name.startswith(incomplete)])


Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def complete_value(metavar: str | None, choices: tuple[str, ...]) -> Completer | None:
    """The completer of an option by what it takes; None where nothing can be offered."""
    if choices:
        return lambda context, parameter, incomplete: _items([word for word in choices if word.startswith(incomplete)])
    if metavar == "NODES":
        return complete_node
    kind = {"DIR": "dir", "FILE": "file", "PATH": "file"}.get(metavar or "")
    return _offer_paths(kind) if kind else None


def _offer_paths(kind: str) -> Completer:
    def offer(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=kind)]

    return offer


def _items(words: list[str]) -> list[CompletionItem[str]]:
    """A word that a shell would take apart cannot be offered: the script of the shell inserts it as it is."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(word) for word in words if shlex.quote(word) == word][:MOST]


def _directories() -> list[str]:
    """As one would type them here: the names that hold a chain."""
    from nvrx_chain.records.files import list_names
    from nvrx_chain.records.layout import RunDirectory
    from nvrx_chain.records.near import CHAINS_DIRECTORY

    names = list_names(Path(CHAINS_DIRECTORY))
    below = [Path(CHAINS_DIRECTORY, name) for name in (names if isinstance(names, tuple) else ())][:MOST]
    return [str(path) for path in below if os.path.lexists(RunDirectory(path).manifest)]


def _jobs() -> list[str]:
    """Array jobs of the user that carry the comment of a chain, newest first."""
    from nvrx_chain.slurm.identity import parse_comment
    from nvrx_chain.slurm.user import user_name

    queue = _quick_client().queue(user_name(os.geteuid()))
    if isinstance(queue, Unobserved):
        return []
    live = {task.array_job_id for task in queue.tasks if not task.state.is_terminal and parse_comment(task.comment)}
    return [str(job) for job in sorted(live, reverse=True)]


def _quick_client() -> CommandLineClient:
    from nvrx_chain.clock import SystemClock
    from nvrx_chain.slurm.command_client import CommandLineClient

    return CommandLineClient(clock=SystemClock(), environ=os.environ, timeout_seconds=SLURM_SECONDS)


def _be_quiet() -> None:
    """A warning of a library would stand in the middle of the line that is being typed."""
    logging.getLogger("nvrx_chain").addHandler(logging.NullHandler())
