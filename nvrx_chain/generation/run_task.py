"""Wiring of run-task: builds the context from the allocation and the manifest, and lets it live.

Touches: the environment, logging to the generation's directory, everything that it builds.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from nvrx_chain.clock import Clock, SystemClock
from nvrx_chain.errors import ExitCode, RecordError
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.identity import TaskIdentity, read_identity, read_own_manifest
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
    read_private_if_any,
)
from nvrx_chain.generation.signals import SignalFlags
from nvrx_chain.generation.task_log import TaskLog
from nvrx_chain.generation.task_zero import TaskZero
from nvrx_chain.generation.watcher import CROWD, BoardWatcher
from nvrx_chain.launchers.container import container_options
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.command_client import CommandLineClient

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 2.0


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


def exit_process(code: int) -> None:
    """End without waiting for threads that hang in a file system or in Slurm."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
