"""`nvrx-chain completion`: the script by which a shell completes both commands.

Touches: one run of bash, for its version.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAMS = ("nvrx-chain", "nvrx-watch")


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the lines that let SHELL (bash, zsh, fish) complete nvrx-chain and nvrx-watch.

    \b
    bash  eval "$(nvrx-chain completion bash)"      in ~/.bashrc
    zsh   eval "$(nvrx-chain completion zsh)"       in ~/.zshrc, after compinit
    fish  nvrx-chain completion fish | source       in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    for program in PROGRAMS:
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        # The script calls the program by its name; the command that is given here is not looked at.
        click.echo(kind(completion, {}, program, variable).source())
