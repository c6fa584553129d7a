"""The one question before what cannot be undone. Touches: standard input and error."""

from __future__ import annotations

import click

from nvrx_chain.errors import UsageError
from nvrx_chain.ops.settle import Desk
from nvrx_chain.ops.words import render_safely


def ask(desk: Desk, question: str, *, yes: bool, shown: str = "", found_by: str | None = None) -> None:
    """Ask after `shown`, unless --yes has answered. Raises Abort at a no.

    Where nobody can be asked, in scripts, what was named by its user is done, as scancel does it. `found_by` says that
    the command itself has chosen what it will act on, and how: that needs somebody who looked, or --yes; UsageError.
    """
    if yes:
        return
    if not desk.is_interactive:
        if found_by is not None:
            raise UsageError(f"{found_by}: nobody is there to be asked", hint="--yes does it unasked")
        return
    for line in shown.split("\n") if shown else ():
        click.echo(render_safely(line), err=True)
    click.confirm(render_safely(question), abort=True, err=True)
