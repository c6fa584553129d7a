"""The `nvrx-watch` command: options, and errors turned into exit codes. Touches: standard output and error.

What runs a pass is imported late, so that `--help` and `--list-detectors` start fast. Every option also reads
`NVRX_WATCH_<OPTION>` and a key of the same name in the file of `--config`; the command line wins over both.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nvrx_chain import __version__
from nvrx_chain.errors import NvrxError
from nvrx_chain.slurm.client_kind import ENVIRONMENT_NAME, SlurmClientKind
from nvrx_watch.plain_text import plain

if TYPE_CHECKING:
    from nvrx_watch.config_file import OptionKind

log = logging.getLogger(__name__)

BAD_USAGE = 64
DEGRADED = 1
_LONGEST_ERROR = 2000
ENVIRONMENT_PREFIX = "NVRX_WATCH"
_ACTIONS = ("fence", "cancel-chain", "extend", "hold")
_SUBJECTS = ("jobid", "run_dir", "all_mine")


class _GivenPath(click.Path):
    """A path that is not empty: an unset variable in a crontab must not mean the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


# readable=False: click would ask access(2), which does not know of capabilities or ACLs; opening the file tells.
_PATH = _GivenPath(path_type=Path, readable=False)


def _read_config(context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Put the file's values in the place of the defaults: before any other option is looked at."""
    if path is not None:
        from nvrx_watch.config_file import read_config_file

        kinds = {parameter.name: _kind_of(parameter) for parameter in context.command.params if parameter.name}
        config = read_config_file(path, kinds)
        context.default_map = {**(context.default_map or {}), **config.options}
        context.meta["nvrx_watch.thresholds"] = config.thresholds
    return path


def _kind_of(parameter: click.Parameter) -> OptionKind:
    """What the file may say of an option: the same as the command line, with TOML's own kinds."""
    from nvrx_watch.config_file import OptionKind

    kind = parameter.type
    if isinstance(kind, click.IntRange | click.FloatRange):
        number = int if isinstance(kind, click.IntRange) else float
        return OptionKind(number=number, least=kind.min, most=kind.max)
    # An address of --notify may have a comma in it.
    is_list = parameter.name == "disable"
    return OptionKind(
        is_flag=isinstance(parameter, click.Option) and parameter.is_flag,
        choices=tuple(kind.choices) if isinstance(kind, click.Choice) else (),
        many=is_list or (isinstance(parameter, click.Option) and parameter.multiple),
        separator="," if is_list or parameter.name == "allow" else "",
        is_joined=is_list,
        as_text=parameter.name == "jobid",
    )


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": ENVIRONMENT_PREFIX},
    epilog="Exit codes: 0 clean, 1 degraded (something could not be seen), 2 a critical finding, 64 bad usage.",
)
@click.argument("jobid", required=False)
@click.option("--run-dir", type=_PATH, metavar="DIR", help="The chain by its run directory instead of a job id.")
@click.option("--all-mine", is_flag=True, help="Every chain of --user (yourself) that is in the queue.")
@click.option(
    "--platform",
    type=click.Choice(["slurm", "none"]),
    default="slurm",
    show_default=True,
    help="none: ask no scheduler, read the files only.",
)
@click.option(
    "--slurm-client",
    type=click.Choice([kind.value for kind in SlurmClientKind]),
    default=SlurmClientKind.COMMAND.value,
    show_default=True,
    envvar=[f"{ENVIRONMENT_PREFIX}_SLURM_CLIENT", ENVIRONMENT_NAME],
    help=f"How Slurm is asked: by its programs, or through PySlurm  [env: {ENVIRONMENT_NAME}]",
)
@click.option("--user", metavar="USER", help="Whose chain it is, where the job does not say; with --all-mine, whose.")
@click.option("--once", is_flag=True, help="One pass, also with --live (one static frame) or --interval.")
@click.option(
    "--interval",
    type=click.FloatRange(min=1, max=86400),
    metavar="SECONDS",
    help="Go on as a daemon, a pass each SECONDS.",
)
@click.option("--live", is_flag=True, help="A live screen.")
@click.option(
    "--json", "as_json", is_flag=True, envvar=f"{ENVIRONMENT_PREFIX}_JSON", help="One JSON object per pass and chain."
)
@click.option("--act", is_flag=True, help="Release the pending spares of an orphaned generation.")
@click.option(
    "--allow",
    type=click.Choice(_ACTIONS),
    multiple=True,
    metavar="ACTION",
    help=f"With --act, also: {', '.join(_ACTIONS)}.",
)
@click.option("--act-as-operator", is_flag=True, help="Act on jobs of other users too.")
@click.option("--dry-run", is_flag=True, help="Say what --act would ask of Slurm, and ask nothing.")
@click.option(
    "--keep-queued",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="With --allow extend: generations to keep queued.",
)
@click.option(
    "--leave-after",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="With --all-mine: let go of a chain whose jobs have been gone for so long without a verdict.",
)
@click.option("--disable", metavar="A,B", default="", help="Detectors to leave out.")
@click.option("--list-detectors", is_flag=True, help="List the detectors and leave.")
@click.option("--explain", metavar="DETECTOR", help="Say what a detector means and what to do, and leave.")
@click.option("--work-dir", type=_PATH, metavar="DIR", help="A chain of NVRx's layout: its work directory.")
@click.option("--cycle-info-glob", metavar="GLOB", help="The same: its cycle records, `*` for the array job id.")
@click.option("--checkpoint-iteration-file", type=_PATH, metavar="FILE", help="The same: its checkpoint iteration.")
@click.option("--job-name", metavar="NAME", help="The same: the job name of all its generations.")
@click.option(
    "--max-restarts", type=click.IntRange(min=0), metavar="N", help="The same: the launcher's restart budget."
)
@click.option("--iteration-pattern", metavar="REGEX", help="How a log line shows the iteration (one group).")
@click.option("--state-dir", type=_PATH, metavar="DIR", help="What the watcher remembers  [~/.local/state/nvrx-watch]")
@click.option("--heartbeat-url", metavar="URL", help="Pinged after each pass that could see everything.")
@click.option("--heartbeat-url-file", type=_PATH, metavar="FILE", help="The same from a file.")
@click.option("--pd-routing-key", metavar="KEY", help="PagerDuty, Events API v2.")
@click.option("--pd-routing-key-file", type=_PATH, metavar="FILE", help="The same from a file.")
@click.option("--pd-url", metavar="URL", help="Another address of the Events API.")
@click.option("--webhook-url", metavar="URL", help="A Slack-compatible webhook.")
@click.option("--webhook-url-file", type=_PATH, metavar="FILE", help="The same from a file.")
@click.option("--notify", metavar="URL", multiple=True, help="Any address that apprise knows (pip install apprise).")
@click.option("--notify-file", type=_PATH, metavar="FILE", help="The same, one address a line.")
@click.option(
    "--alert-cooldown",
    type=click.FloatRange(min=0),
    default=14400.0,
    show_default=True,
    metavar="SECONDS",
    help="Before a message is repeated to the same sink.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve /metrics for Prometheus.")
@click.option("--metrics-address", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to serve it.")
@click.option("--textfile", type=_PATH, metavar="DIR", help="Write nvrx_watch_*.prom for node_exporter there.")
@click.option(
    "--config",
    type=_PATH,
    metavar="FILE",
    is_eager=True,
    callback=_read_config,
    help="Options and [thresholds] in TOML.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log what the watcher does.")
@click.version_option(__version__, prog_name="nvrx-watch")
@click.pass_context
def watch(context: click.Context, /, **options: Any) -> None:
    """Watch a chain from outside: find what nobody inside the job can see.

    JOBID is any job id of the chain, in any form (123, 123_0, 123_[2-4]), of a live or an ended generation.
    """
    from nvrx_watch.command import run_command_line

    _prefer_the_command_line(context, options)
    context.exit(run_command_line(options, context.meta.get("nvrx_watch.thresholds")))


def _prefer_the_command_line(context: click.Context, options: dict[str, Any]) -> None:
    """Whom to watch is one setting with several names: one on the command line wins over another from elsewhere."""
    typed = [name for name in _SUBJECTS if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    for name in _SUBJECTS:
        if typed and name not in typed:
            options[name] = False if name == "all_mine" else None


def _mend_descriptors() -> None:
    """Standard streams that are closed (cron, `<&-`) or narrow (LC_ALL=C) must not break a pass."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Entry point. Bad usage is 64, since 2 means a critical finding; what could not be looked at is 1."""
    _mend_descriptors()
    # Nobody else may write what a watcher remembers or acts on.
    os.umask(os.umask(0o077) | 0o022)
    # One pass ends before garbage could matter, and starting is half of it; a daemon switches the collector on again.
    gc.disable()
    try:
        code = watch.main(prog_name="nvrx-watch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = BAD_USAGE
    except click.Abort:
        code = 130
    except NvrxError as error:
        code = _say(error)
    except OSError as error:
        # A directory that was named by hand and that the system will not show; a pass catches its own.
        log.info("the watcher could not look", exc_info=True)
        click.echo(f"nvrx-watch: {plain(str(error), _LONGEST_ERROR)}", err=True)
        code = DEGRADED
    sys.exit(code if isinstance(code, int) else 0)


def _say(error: NvrxError) -> int:
    """One line. A chain that cannot be found is a wrong word; one that cannot be looked at is a blind watcher."""
    from nvrx_watch.resolve.sight import is_blind

    click.echo(f"nvrx-watch: {plain(str(error), _LONGEST_ERROR)}", err=True)
    return DEGRADED if is_blind(error) else BAD_USAGE
