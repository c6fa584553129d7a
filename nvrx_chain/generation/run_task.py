"""Wiring of run-task and run-launcher: builds the context from the allocation and the manifest, and lets it live.

Touches: the environment, logging to the generation's directory, everything that it builds.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from nvrx_chain.clock import Clock, SystemClock
from nvrx_chain.errors import ExitCode, RecordError
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.identity import TaskIdentity, read_identity
from nvrx_chain.generation.launcher_process import (
    LauncherProcess,
    SrunLauncher,
    interpreter_argv,
    srun_options,
    step_environment,
)
from nvrx_chain.generation.lease import LeaseWriter, lease_interval_seconds
from nvrx_chain.generation.link import Host, HostLink, Link, PeerLink, word_interval_seconds
from nvrx_chain.generation.peer import Peer
from nvrx_chain.generation.private import (
    find_programs,
    read_private,
    read_private_if_any,
    with_exported,
    with_private_words,
)
from nvrx_chain.generation.signals import SignalFlags
from nvrx_chain.generation.task_log import TaskLog
from nvrx_chain.generation.task_zero import TaskZero
from nvrx_chain.generation.watcher import CROWD, BoardWatcher
from nvrx_chain.generation.wrapper import Wrapper
from nvrx_chain.launchers.choose import plan_launch
from nvrx_chain.launchers.container import container_options
from nvrx_chain.launchers.prologue import behind_prologue
from nvrx_chain.launchers.seats import LaunchRequest, Seat, with_defaults
from nvrx_chain.records.chain import ChainFiles, read_manifest
from nvrx_chain.records.control import Rendezvous
from nvrx_chain.records.files import refresh_names
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest, LauncherKind
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.command_client import CommandLineClient

log = logging.getLogger(__name__)

STEP_BOOKED_SECONDS = 5
LAST_WORDS_SECONDS = 2.0
RENDEZVOUS_SECONDS = 90.0
RENDEZVOUS_POLL_SECONDS = 0.5


def run_task(run_dir: Path, environ: Mapping[str, str]) -> ExitCode:
    """Live as one array task of the chain in `run_dir`. Raises NvrxError when it cannot even start."""
    signals = SignalFlags()
    signals.install()
    clock = SystemClock()
    programs = find_programs(environ, read_private_if_any(read_own_manifest(RunDirectory(run_dir))))
    srun = programs.pop("srun", "srun")
    client = CommandLineClient(environ=environ, clock=clock, programs=programs)
    context = build_context(run_dir, environ, clock, client, signals, srun=srun)
    identity = context.identity
    task_log = TaskLog(context.board.directory.task_log(identity.array_task_id))
    log.info("run-task task=%s host=%s pid=%s", identity.spec, identity.host, identity.pid)
    try:
        code = _live(context)
        log.info("run-task ends code=%s", int(code))
    finally:
        task_log.close(LAST_WORDS_SECONDS)
    return code


def _live(context: TaskContext) -> ExitCode:
    if context.identity.restart_count == 0:
        # A start that is going to refuse must not move the lease by which ranks of the first one, cut off, still live.
        context.lease.start()
        context.board.join()
    context.watcher.start()
    _start_link(context)
    try:
        return TaskZero(context).run() if context.identity.array_task_id == 0 else Peer(context).run()
    finally:
        context.lease.stop()
        context.watcher.stop()


def _start_link(context: TaskContext) -> None:
    if isinstance(context.link, PeerLink):
        context.link.start()
    elif isinstance(context.link, HostLink):
        try:
            context.link.start()
        except OSError as error:
            # Then a stall is nobody's excuse and nobody says that the host is silent, as without a link.
            log.warning("no link to the peers error=%s", error)


def _build_link(watcher: BoardWatcher, clock: Clock, task: int, total: int) -> Link:
    if task == 0:
        return HostLink(clock, secrets.token_hex(16))

    def find_host() -> Host | None:
        found = watcher.latest().rendezvous
        if found is None or found.link_port is None:
            return None
        return Host(address=(found.rendezvous_host, found.link_port), secret=found.secret)

    return PeerLink(clock, task, word_interval_seconds(total), find_host=find_host, unread=watcher.unread_seconds)


def read_own_manifest(directory: RunDirectory) -> ChainManifest:
    """The manifest, if it is that of this very user. Raises RecordError.

    Whoever may write where the run directory lies can put another one in its place, with commands in its manifest.
    """
    uid = os.geteuid()
    manifest = read_manifest(directory, owner_uid=uid)
    if manifest.uid != uid:
        raise RecordError(f"reading the chain: it is that of uid {manifest.uid}, and this job runs as uid {uid}")
    return manifest


def build_context(
    run_dir: Path,
    environ: Mapping[str, str],
    clock: Clock,
    client: SlurmClient,
    signals: SignalFlags,
    *,
    srun: str = "srun",
) -> TaskContext:
    """The context of this array task. Makes the generation's directories."""
    directory = RunDirectory(run_dir)
    manifest = read_own_manifest(directory)
    identity = read_identity(environ)
    board = Board(directory.generation(identity.array_job_id), identity, clock, manifest.uid)
    board.prepare()
    chain = ChainFiles(directory, manifest.chain_id, manifest.uid)
    total = manifest.shape.total
    interval = lease_interval_seconds(manifest.thresholds.lease_interval, identity.array_task_id, total)
    poll = manifest.thresholds.control_poll * (2 if total > CROWD else 1)
    every = identity.array_task_id == 0 or total <= CROWD
    watcher = BoardWatcher(board, chain, clock, poll, all_leases=every, total_tasks=total)
    return TaskContext(
        manifest=manifest,
        chain=chain,
        identity=identity,
        board=board,
        clock=clock,
        client=client,
        signals=signals,
        lease=LeaseWriter(board, clock, interval),
        watcher=watcher,
        link=_build_link(watcher, clock, identity.array_task_id, total),
        start_launcher=lambda: _start_launcher(manifest, board, identity, environ, srun),
    )


def _start_launcher(
    manifest: ChainManifest, board: Board, identity: TaskIdentity, environ: Mapping[str, str], srun: str
) -> LauncherProcess:
    for node in identity.nodes:
        # An exit file of an earlier launch of this task would look like the end of this one.
        path = board.directory.launcher_exit(identity.array_task_id, node)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise RecordError(f"removing {path}: {error.strerror or error}", part=path.name) from error
    command = interpreter_argv(manifest.interpreter, "run-launcher", "--run-dir", str(Path(manifest.run_directory)))
    container = container_options(
        manifest.container,
        array_job_id=identity.array_job_id,
        array_task_id=identity.array_task_id,
        work_directory=manifest.run_directory,
    )
    argv = (srun, *srun_options(len(identity.nodes)), *container, *command)
    return SrunLauncher(argv, step_environment(environ), board.directory.launcher_log(identity.array_task_id))


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
    index = int(environ.get("SLURM_PROCID") or "0")
    seat = Seat(
        array_job_id=identity.array_job_id,
        array_task_id=identity.array_task_id,
        node_index=index,
        node=node,
        rendezvous_host=rendezvous.rendezvous_host,
        rendezvous_port=rendezvous.rendezvous_port,
        nonce=rendezvous.nonce,
        node_rank=_node_rank(manifest, identity, rendezvous.members, index),
        cycle_info_dir=str(board.directory.cycle_infos),
        application_log=str(_application_log(board, manifest, identity, node)),
        run_directory=str(run_dir),
        checkpoint_iteration_file=manifest.checkpoint_iteration_file,
        segment_health_dir=str(board.directory.control) if manifest.excludes_drained else None,
    )
    request = LaunchRequest(
        launcher=manifest.launcher,
        shape=manifest.shape,
        workload=manifest.workload,
        seat=seat,
        faults=manifest.faults,
    )
    launch = with_defaults(with_exported(plan_launch(request), private), manifest.workload_environment, environ)
    plan = behind_prologue(launch, manifest.prologue)
    wrapper = Wrapper(
        board=board,
        clock=clock,
        thresholds=manifest.thresholds,
        plan=plan,
        node=node,
        no_restart_exit_code=manifest.launcher.no_restart_exit_code,
        rendezvous=(rendezvous.rendezvous_host, rendezvous.rendezvous_port),
        log_path=_launcher_output(board, manifest, identity, node),
        is_host=seat.is_host,
        step_exit_code=_step_exit_code(manifest, CommandLineClient(environ=environ, clock=clock), environ, clock),
    )
    return wrapper.run()


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


def exit_process(code: int) -> None:
    """End without waiting for threads that hang in a file system or in Slurm."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
