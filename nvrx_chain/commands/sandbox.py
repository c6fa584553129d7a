"""`nvrx-chain sandbox`: start, look at, fault and end a private Slurm cluster. Only parses, calls and prints."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from nvrx_chain.clock import SystemClock
from nvrx_chain.commands.completing import complete_sandbox_node
from nvrx_chain.commands.progress import Progress
from nvrx_chain.sandbox import BatchScope, FaultReport, Sandbox, SandboxConfig
from nvrx_chain.sandbox.cluster import end_directory
from nvrx_chain.sandbox.config import default_directory
from nvrx_chain.sandbox.status import SandboxStatus

SCHEMA = 1
"""Of every JSON object that is printed here."""
_DEFAULTS = SandboxConfig(directory=Path("/"))
_F = TypeVar("_F", bound=Callable[..., Any])


def _directory_option(command: _F) -> _F:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="NVRX_SANDBOX_DIR",
        help="The sandbox's directory; one sandbox per directory.  [default: below the user's state directory]",
        callback=lambda _context, _option, value: (value or default_directory(os.environ)).absolute(),
    )(command)


_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def sandbox() -> None:
    """A real private Slurm cluster on this machine, and its faults. Needs root."""


@sandbox.command()
@_directory_option
@click.option("--nodes", default=_DEFAULTS.nodes, show_default=True, help="Virtual nodes.")
@click.option("--gpus-per-node", default=_DEFAULTS.gpus_per_node, show_default=True, help="Fake GPUs of each node.")
@click.option("--cpus-per-node", default=_DEFAULTS.cpus_per_node, show_default=True, help="CPUs each node claims.")
@click.option("--accounting", is_flag=True, help="With slurmdbd and a private MariaDB, so that sacct works.")
@click.option("--kill-wait", default=_DEFAULTS.kill_wait_seconds, show_default=True, help="Slurm's KillWait, seconds.")
@click.option(
    "--slurmd-timeout",
    default=_DEFAULTS.slurmd_timeout_seconds,
    show_default=True,
    help="Slurm's SlurmdTimeout, seconds.",
)
@click.option("--max-array-size", default=_DEFAULTS.max_array_size, show_default=True, help="Slurm's MaxArraySize.")
@click.option(
    "--kill-on-bad-exit", default=_DEFAULTS.kill_on_bad_exit, show_default=True, help="Slurm's KillOnBadExit, 0 or 1."
)
@click.option(
    "--network", is_flag=True, help="A network of its own for each node, on a private bridge, so that it can be cut."
)
@click.option("--private-jobs", is_flag=True, help="Slurm's PrivateData=jobs: users see their own jobs only.")
@_json_option
def up(as_json: bool, kill_wait: int, slurmd_timeout: int, **options: Any) -> None:
    """Start a cluster and wait until all of its nodes are idle."""
    config = SandboxConfig(kill_wait_seconds=kill_wait, slurmd_timeout_seconds=slurmd_timeout, **options)
    with Progress(f"starting a cluster of {config.nodes} nodes", quiet=as_json):
        started = Sandbox.up(config).status()
    _print(started, as_json, _status_text)


@sandbox.command()
@_directory_option
@click.option("--grace", default=5.0, show_default=True, help="Seconds that jobs have to end after scancel.")
@click.option("--keep-logs", is_flag=True, help="Leave the daemons' logs in the directory.")
@_json_option
def down(directory: Path, grace: float, keep_logs: bool, as_json: bool) -> None:
    """End the cluster with all its jobs and remove it; whatever state it is in. May be repeated."""
    with Progress("ending the cluster and its jobs", quiet=as_json):
        report = end_directory(directory, SystemClock(), grace_seconds=grace, keep_logs=keep_logs)
    killed = f", jobs killed: {' '.join(report.jobs_killed)}" if report.jobs_killed else ""
    ended = f"sandbox of {report.directory} ended: {report.processes_ended} processes{killed}"
    _print(report, as_json, lambda _: ended if report.was_there else f"no sandbox in {report.directory}")


@sandbox.command()
@_directory_option
@_json_option
def status(directory: Path, as_json: bool) -> None:
    """Show daemons and nodes, as the kernel has them and as Slurm sees them."""
    _print(Sandbox.open(directory).status(), as_json, _status_text)


@sandbox.command()
@_directory_option
def env(directory: Path) -> None:
    """Print the shell lines that point Slurm's programs at the sandbox: eval "$(nvrx-chain sandbox env)"."""
    for name, value in Sandbox.open(directory).environ.items():
        if os.environ.get(name) != value:
            click.echo(f"export {name}={shlex.quote(value)}")


@sandbox.command(context_settings={"ignore_unknown_options": True})
@_directory_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(directory: Path, command: tuple[str, ...]) -> None:
    """Become a shell, or COMMAND, whose Slurm is the sandbox."""
    environ = {**os.environ, **Sandbox.open(directory).environ}
    argv = command or (environ.get("SHELL") or "/bin/sh",)
    try:
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        raise click.ClickException(f"starting {argv[0]}: {error.strerror}") from error


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@_directory_option
@_json_option
def kill_node(node: str, directory: Path, as_json: bool) -> None:
    """Power loss: everything on NODE is gone at once, and Slurm is not told."""
    _print(Sandbox.open(directory).kill_node(node), as_json, _fault_text)


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@_directory_option
@_json_option
def freeze_node(node: str, directory: Path, as_json: bool) -> None:
    """Stop everything on NODE (SIGSTOP); its connections stay open."""
    _print(Sandbox.open(directory).freeze_node(node), as_json, _fault_text)


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@_directory_option
@_json_option
def freeze_slurmd(node: str, directory: Path, as_json: bool) -> None:
    """Stop only the slurmd of NODE (SIGSTOP); its jobs run on."""
    _print(Sandbox.open(directory).freeze_slurmd(node), as_json, _fault_text)


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@_directory_option
@_json_option
def thaw_node(node: str, directory: Path, as_json: bool) -> None:
    """Let everything that is stopped on NODE go on."""
    _print(Sandbox.open(directory).thaw_node(node), as_json, _fault_text)


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@_directory_option
@_json_option
def drain_node(node: str, directory: Path, as_json: bool) -> None:
    """Let no new job start on NODE."""
    _print(Sandbox.open(directory).drain_node(node), as_json, _fault_text)


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@_directory_option
@_json_option
def revive_node(node: str, directory: Path, as_json: bool) -> None:
    """Bring NODE back into service: heal it, power it on, thaw it, resume it, whichever it needs."""
    _print(Sandbox.open(directory).revive_node(node), as_json, _fault_text)


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@click.option("--keep-disk", is_flag=True, help="Cut the network only; the shared directory goes on.")
@_directory_option
@_json_option
def cut_node(node: str, keep_disk: bool, directory: Path, as_json: bool) -> None:
    """Cut NODE off: nothing on it ends, it answers nothing, and its shared directory hangs. Needs `up --network`."""
    _print(Sandbox.open(directory).cut_node(node, keep_disk=keep_disk), as_json, _fault_text)


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@_directory_option
@_json_option
def isolate_from_controller(node: str, directory: Path, as_json: bool) -> None:
    """Keep NODE and slurmctld from each other; it reaches its peers and the disk. Needs `up --network`."""
    _print(Sandbox.open(directory).isolate_from_controller(node), as_json, _fault_text)


@sandbox.command()
@click.argument("node", required=False)
@click.option("--all", "every", is_flag=True, help="Every node that runs.")
@click.option("--seconds", type=click.FloatRange(min=0.1, max=1e6), required=True, help="For how long.")
@_directory_option
@_json_option
def slow_disk(node: str | None, every: bool, seconds: float, directory: Path, as_json: bool) -> None:
    """Let the shared directory of NODE stall: whoever opens something in it waits."""
    if (node is None) is not every:
        raise click.UsageError("name one NODE, or --all")
    _print(Sandbox.open(directory).slow_disk(node, seconds=seconds), as_json, _fault_text)


@sandbox.command()
@click.argument("node", shell_complete=complete_sandbox_node)
@_directory_option
@_json_option
def heal_node(node: str, directory: Path, as_json: bool) -> None:
    """Undo a cut, an isolation and a stalled disk of NODE, whichever there are."""
    _print(Sandbox.open(directory).heal_node(node), as_json, _fault_text)


@sandbox.command("kill-task-0")
@click.argument("array_job_id", type=int)
@click.option("--whole-batch-step", "scope", flag_value="whole-batch-step", help="Every process of the batch step.")
@click.option("--run-task", "scope", flag_value="run-task", help="Only run-task, which the batch shell started.")
@_directory_option
@_json_option
def kill_task_0(array_job_id: int, scope: str | None, directory: Path, as_json: bool) -> None:
    """SIGKILL the batch shell of array task 0; its node lives on."""
    how = BatchScope(scope) if scope else BatchScope.SHELL
    _print(Sandbox.open(directory).kill_task_0(array_job_id, scope=how), as_json, _fault_text)


@sandbox.command()
@click.argument("array_job_id", type=int)
@click.option("--rank", default=0, show_default=True, help="The process that has this RANK in its environment.")
@_directory_option
@_json_option
def kill_rank(array_job_id: int, rank: int, directory: Path, as_json: bool) -> None:
    """SIGKILL one training process."""
    _print(Sandbox.open(directory).kill_rank(array_job_id, rank), as_json, _fault_text)


@sandbox.command()
@click.option("--kill", is_flag=True, help="SIGKILL: clients are refused instead of waiting.")
@_directory_option
@_json_option
def stop_controller(kill: bool, directory: Path, as_json: bool) -> None:
    """Stop slurmctld (SIGSTOP); jobs run on."""
    _print(Sandbox.open(directory).stop_controller(kill=kill), as_json, _fault_text)


@sandbox.command()
@_directory_option
@_json_option
def start_controller(directory: Path, as_json: bool) -> None:
    """Let slurmctld go on, or start it again when it is dead."""
    _print(Sandbox.open(directory).start_controller(), as_json, _fault_text)


_T = TypeVar("_T")


def _print(value: _T, as_json: bool, text: Callable[[_T], str]) -> None:
    """Paths become strings; enums, instants and dataclasses are msgspec's own business."""
    if as_json:
        click.echo(msgspec.json.encode({"schema": SCHEMA, **msgspec.to_builtins(value, enc_hook=str)}))
    else:
        click.echo(text(value))


def _fault_text(report: FaultReport) -> str:
    at = report.hit_at.strftime("%H:%M:%S.%f")[:-3]
    return f"{report.kind.value} {report.target} at {at} UTC: {report.verified}"


def _status_text(status: SandboxStatus) -> str:
    state = "up" if status.ready else "half-started (run `sandbox down`)"
    lines = [f"sandbox of {status.directory}: {state}, {len(status.nodes)} nodes", f"  SLURM_CONF={status.slurm_conf}"]
    lines += [f"  {daemon.name:<10} {daemon.state.value:<8} pid {daemon.pid}" for daemon in status.daemons]
    for node in status.nodes:
        seen = node.slurm_state or "?"
        faults = f"  ({', '.join(node.faults)})" if node.faults else ""
        words = (f"{node.machine.value:<8}", f"{node.address:<14}", f"slurmd {node.slurmd.value:<8}")
        lines.append(f"  {node.name:<10} {' '.join(words)} Slurm: {seen}{faults}")
    if status.no_answer:
        lines.append(f"  Slurm was not asked: {status.no_answer}")
    return "\n".join(lines)
