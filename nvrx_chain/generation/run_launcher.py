"""Wiring of run-launcher, on each node of a task: the seat that run-task has opened, the launcher's plan, the wrapper.

Touches: the environment, standard error, the control directory (reads), everything that the wrapper touches.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from nvrx_chain.clock import Clock, SystemClock
from nvrx_chain.errors import RecordError
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.identity import TaskIdentity, read_identity, read_own_manifest
from nvrx_chain.generation.private import read_private, with_exported, with_private_words
from nvrx_chain.generation.wrapper import Wrapper
from nvrx_chain.launchers.choose import plan_launch
from nvrx_chain.launchers.prologue import behind_prologue
from nvrx_chain.launchers.seats import LaunchPlan, LaunchRequest, Seat, with_defaults
from nvrx_chain.records.control import Rendezvous
from nvrx_chain.records.files import refresh_names
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest, LauncherKind, PrivateSettings
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.command_client import CommandLineClient

STEP_BOOKED_SECONDS = 5
RENDEZVOUS_SECONDS = 90.0
RENDEZVOUS_POLL_SECONDS = 0.5


def run_launcher(run_dir: Path, environ: Mapping[str, str]) -> int:
    """Run the launcher of this node to its end; returns its exit code (128+n for a signal)."""
    clock = SystemClock()
    directory = RunDirectory(run_dir)
    manifest = read_own_manifest(directory)
    private = read_private(manifest)
    manifest = with_private_words(manifest, private)
    identity = read_identity(environ)
    board = Board(directory.generation(identity.array_job_id), identity, clock, manifest.uid)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    rendezvous = await_rendezvous(board, clock)
    node = environ.get("SLURMD_NODENAME") or identity.host
    seat = _build_seat(board, manifest, rendezvous, node, environ, run_dir)
    wrapper = Wrapper(
        board=board,
        clock=clock,
        thresholds=manifest.thresholds,
        plan=_plan(manifest, private, seat, environ),
        node=node,
        no_restart_exit_code=manifest.launcher.no_restart_exit_code,
        rendezvous=(rendezvous.rendezvous_host, rendezvous.rendezvous_port),
        log_path=_launcher_output(board, manifest, identity, node),
        is_host=seat.is_host,
        step_exit_code=_step_exit_code(manifest, CommandLineClient(environ=environ, clock=clock), environ, clock),
    )
    return wrapper.run()


def _build_seat(
    board: Board,
    manifest: ChainManifest,
    rendezvous: Rendezvous,
    node: str,
    environ: Mapping[str, str],
    run_dir: Path,
) -> Seat:
    """The place of this node in the launch that run-task has opened."""
    identity = board.identity
    index = int(environ.get("SLURM_PROCID") or "0")
    return Seat(
        array_job_id=identity.array_job_id,
        array_task_id=identity.array_task_id,
        node_index=index,
        node=node,
        rendezvous_host=rendezvous.rendezvous_host,
        rendezvous_port=rendezvous.rendezvous_port,
        nonce=rendezvous.nonce,
        secret=rendezvous.secret,
        node_rank=_node_rank(manifest, identity, rendezvous.members, index),
        cycle_info_dir=str(board.directory.cycle_infos),
        timeline_dir=str(board.directory.timeline),
        application_log=str(_application_log(board, manifest, identity, node)),
        run_directory=str(run_dir),
        checkpoint_iteration_file=manifest.checkpoint_iteration_file,
        segment_health_dir=str(board.directory.control) if manifest.excludes_drained else None,
    )


def _plan(manifest: ChainManifest, private: PrivateSettings, seat: Seat, environ: Mapping[str, str]) -> LaunchPlan:
    """What is started in this seat: the launcher with its environment, behind the prologue."""
    request = LaunchRequest(
        launcher=manifest.launcher,
        shape=manifest.shape,
        workload=manifest.workload,
        seat=seat,
        faults=manifest.faults,
    )
    launch = with_defaults(with_exported(plan_launch(request), private), manifest.workload_environment, environ)
    return behind_prologue(launch, manifest.prologue)


def _step_exit_code(
    manifest: ChainManifest, client: SlurmClient, environ: Mapping[str, str], clock: Clock
) -> Callable[[], int | None]:
    """How to ask what a launcher that is an srun of its own really ended with: Slurm keeps the step's highest code.

    Only a launcher command can hide an srun, and not in a container, which has no Slurm. The step is booked a moment
    after its srun has returned.
    """
    if manifest.launcher.kind is not LauncherKind.COMMAND or manifest.container is not None:
        return lambda: None

    def ask() -> int | None:
        never = threading.Event()
        for _ in range(STEP_BOOKED_SECONDS):
            records = client.show_job(int(environ.get("SLURM_JOB_ID") or "0"))
            for record in records if isinstance(records, tuple) else ():
                code, _, _ = record.fields.get("DerivedExitCode", "0:0").partition(":")
                if code.isdigit() and int(code) != 0:
                    return int(code)
            clock.wait(never, 1.0)
        return None

    return ask


def _node_rank(manifest: ChainManifest, identity: TaskIdentity, members: tuple[int, ...], index: int) -> int:
    """Rank of this node among the seats: the place of its task among the members, then its node."""
    place = members.index(identity.array_task_id) if identity.array_task_id in members else identity.array_task_id
    return place * manifest.shape.nodes_per_task + index


def _application_log(board: Board, manifest: ChainManifest, identity: TaskIdentity, node: str) -> Path:
    """One log a node: two nodes that append to one file on NFS overwrite each other."""
    name = f"app_{identity.array_task_id}"
    return board.directory.logs / (f"{name}.{node}.log" if manifest.shape.nodes_per_task > 1 else f"{name}.log")


def _launcher_output(board: Board, manifest: ChainManifest, identity: TaskIdentity, node: str) -> Path:
    path = board.directory.launcher_log(identity.array_task_id)
    return path.with_name(f"{path.stem}.{node}.log") if manifest.shape.nodes_per_task > 1 else path


def await_rendezvous(board: Board, clock: Clock) -> Rendezvous:
    """The rendezvous that run-task has seen start with a seat for this task. Raises RecordError when it does not come.

    run-task may be on another node: here an older file can be served for as long as NFS caches.
    """
    never = threading.Event()
    deadline = clock.monotonic() + RENDEZVOUS_SECONDS
    while True:
        refresh_names(board.directory.control)
        found = board.rendezvous()
        if found is not None and found.started_at is not None and board.identity.array_task_id in found.members:
            return found
        if clock.monotonic() > deadline:
            raise RecordError(
                "starting the launcher: there is no started rendezvous with a seat for this task",
                part=str(board.directory.rendezvous),
            )
        clock.wait(never, RENDEZVOUS_POLL_SECONDS)
