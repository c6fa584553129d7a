"""`nvrx-chain doctor-probe`: started by doctor, here and by srun, never by people. Alone, so that it starts fast."""

from __future__ import annotations

import click

from nvrx_chain.doctor.probe import run_probe


@click.command("doctor-probe", hidden=True)
@click.argument("request")
def doctor_probe(request: str) -> None:
    """(internal) What one machine says of itself; started by doctor, here and by srun."""
    click.echo(run_probe(request))
