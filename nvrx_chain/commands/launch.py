"""`nvrx-chain launch`: from flags to one call. Touches: the environment, standard error."""

from __future__ import annotations

import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any

import click

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.settings import (
    PRELOAD,
    LaunchSettings,
    parse_bool,
    parse_endpoint,
    parse_nnodes,
    parse_rdzv_conf,
    parse_seconds,
)

SECRET = "NVRX_CHAIN_LAUNCH_SECRET"


@click.command(
    context_settings={
        "ignore_unknown_options": False,
        "allow_interspersed_args": False,
        "token_normalize_func": lambda word: word.replace("_", "-"),
    }
)
@click.option("--nnodes", default="1:1", envvar="PET_NNODES", show_default=True)
@click.option("--nproc-per-node", type=click.IntRange(1), default=1, envvar="PET_NPROC_PER_NODE", show_default=True)
@click.option("--rdzv-endpoint", default="", envvar="PET_RDZV_ENDPOINT")
@click.option("--rdzv-id", default="none", envvar="PET_RDZV_ID")
@click.option("--rdzv-backend", default="nvrx", envvar="PET_RDZV_BACKEND", type=click.Choice(["nvrx", "c10d"]))
@click.option("--rdzv-conf", default="", envvar="PET_RDZV_CONF")
@click.option("--local-addr", envvar="PET_LOCAL_ADDR")
@click.option("--standalone", is_flag=True)
@click.option("--secret-file", type=click.Path())
@click.option("--liveness-timeout", type=click.FloatRange(0.5), default=10.0, show_default=True)
@click.option("--first-round-grace", type=click.FloatRange(0), default=0.0, show_default=True)
@click.option("--max-restarts", type=click.IntRange(0), default=0, envvar="PET_MAX_RESTARTS", show_default=True)
@click.option("--stop-grace", "--workers-stop-timeout", type=click.FloatRange(0), default=2.0, show_default=True)
@click.option("--term-timeout", type=click.FloatRange(0), default=1800.0, show_default=True)
@click.option("--no-restart-exit-code", "--ft-no-restart-exit-code", type=click.IntRange(1, 255), default=93)
@click.option("--warm-workers/--no-warm-workers", default=True, show_default=True)
@click.option("--preload", default=",".join(PRELOAD), show_default=True)
@click.option("--refill-delay", type=click.FloatRange(0), default=30.0, show_default=True)
@click.option("--role", default="default", envvar="PET_ROLE")
@click.option("-m", "--module", is_flag=True, envvar="PET_MODULE")
@click.option("--no-python", is_flag=True, envvar="PET_NO_PYTHON")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(**flags: Any) -> None:
    """Run the ranks of this node, and restart them with the other nodes when one fails."""
    settings = _settings(flags)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    from nvrx_chain.launcher.launch import run_launch

    code = run_launch(settings, os.environ)
    logging.shutdown()
    sys.stdout.flush()
    # Threads that wait in the store's client would abort an interpreter that ends in order, and it takes its time.
    os._exit(code)


def _settings(flags: dict[str, Any]) -> LaunchSettings:
    least, most = parse_nnodes(flags["nnodes"])
    conf = parse_rdzv_conf(flags["rdzv_conf"])
    alone = flags["standalone"] or (most == 1 and not flags["rdzv_endpoint"])
    host, port = ("localhost", 0) if alone else parse_endpoint(flags["rdzv_endpoint"])
    is_host = parse_bool("is_host in --rdzv-conf", conf["is_host"]) if "is_host" in conf else None
    return LaunchSettings(
        min_nodes=least,
        max_nodes=most,
        procs_per_node=flags["nproc_per_node"],
        argv=tuple(flags["command"]),
        module=flags["module"],
        no_python=flags["no_python"],
        role=flags["role"],
        host=host,
        port=port,
        run_id=flags["rdzv_id"],
        is_host=True if alone else is_host,
        local_addr=flags["local_addr"],
        secret=_read_secret(flags["secret_file"]),
        join_timeout=parse_seconds("join_timeout", conf.get("join_timeout", "600")),
        connect_timeout=parse_seconds("store_connect_wait_seconds", conf.get("store_connect_wait_seconds", "120")),
        last_call_timeout=parse_seconds("last_call_timeout", conf.get("last_call_timeout", "1")),
        first_round_grace=flags["first_round_grace"],
        liveness_timeout=flags["liveness_timeout"],
        max_restarts=flags["max_restarts"],
        stop_grace=flags["stop_grace"],
        term_timeout=flags["term_timeout"],
        no_restart_exit_code=flags["no_restart_exit_code"],
        warm_workers=flags["warm_workers"],
        preload=tuple(filter(None, (name.strip() for name in flags["preload"].split(",")))),
        refill_delay=flags["refill_delay"],
    )


def _read_secret(path: str | None) -> str:
    """The secret of the job. Raises UsageError for a file that others can read."""
    if path is None:
        return os.environ.get(SECRET, "")
    try:
        status = os.stat(path)
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError("reading the secret of the job: others can read its file", part=path, hint="chmod 600")
        return Path(path).read_text().strip()
    except OSError as error:
        raise UsageError(f"reading the secret of the job: {error.strerror or error}", part=path) from error
