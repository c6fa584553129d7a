"""Wiring of `nvrx-chain launch`: from settings to a launcher at work, and to its exit code.

Touches: the environment, what `loop.py` touches.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from torch.distributed.elastic.agent.server.api import WorkerSpec

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_chain.launcher.agent import LaunchAgent
from nvrx_chain.launcher.care import NodeCare
from nvrx_chain.launcher.coordinator import Limits
from nvrx_chain.launcher.cycle_files import identify_job
from nvrx_chain.launcher.environment import World, interpreter, node_environment
from nvrx_chain.launcher.job import Job, Meeting, new_agent_id
from nvrx_chain.launcher.judge import JobJudge
from nvrx_chain.launcher.keeping import JobRecords
from nvrx_chain.launcher.logs import LaunchLogs
from nvrx_chain.launcher.loop import NodeLoop, Parts
from nvrx_chain.launcher.members import Member, Spec
from nvrx_chain.launcher.monitor import Monitor
from nvrx_chain.launcher.node import Grace, Leave, Node
from nvrx_chain.launcher.numa import require_numa
from nvrx_chain.launcher.orphans import become_subreaper
from nvrx_chain.launcher.outcome_file import JobOutcome, read_outcome
from nvrx_chain.launcher.place import Place, read_place, require_one_launcher
from nvrx_chain.launcher.pool import PoolSettings
from nvrx_chain.launcher.rank_store import FreePort, RankStore
from nvrx_chain.launcher.ranks import Ranks
from nvrx_chain.launcher.reasons import Reason, exit_code
from nvrx_chain.launcher.rendezvous import NvrxRendezvous, register
from nvrx_chain.launcher.settings import LaunchSettings, WorkerStore
from nvrx_chain.launcher.timeline import Timeline
from nvrx_chain.launcher.workers import EntryPoint
from nvrx_chain.records.cycle_info import CycleDirectory, open_cycle_directory

log = logging.getLogger(__name__)

HOST_WAITS_SECONDS = 60.0
"""How long the host stays for launchers that have not left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launcher:
    """One launcher put together."""

    settings: LaunchSettings
    job: Job
    place: Place
    care: NodeCare
    logs: LaunchLogs
    records: JobRecords
    judge: JobJudge
    timeline: Timeline
    cycles: CycleDirectory | None

    @property
    def is_host(self) -> bool:
        return self.job.meeting.is_host


def run_launch(settings: LaunchSettings, environ: Mapping[str, str]) -> int:
    """Run the ranks of this node to the end of their job; the exit code. Raises UsageError for what cannot work."""
    become_subreaper()
    register()
    launcher = _assemble(settings, environ)
    try:
        left = _run(launcher, environ)
    except BaseException:
        launcher.logs.close(None)
        raise
    code = _exit_code(left, launcher)
    last = f"the launcher ends reason={left.reason.value} exit_code={code} detail={left.detail}"
    log.info(last)
    launcher.timeline.close()
    last_line = last if settings.logs.places.launcher_log is not None else None
    launcher.logs.close(last_line, is_host_lost=left.reason is Reason.HOST_LOST)
    launcher.job.leave(host_waits_seconds=HOST_WAITS_SECONDS)
    if launcher.is_host:
        launcher.judge.close()
        launcher.records.close()
    launcher.logs.stop_writer()
    launcher.care.close()
    return code


def _assemble(settings: LaunchSettings, environ: Mapping[str, str]) -> _Launcher:
    may_share = require_one_launcher(environ)
    if settings.numa is not None:
        require_numa(settings.numa, settings.procs_per_node, environ)
    place = read_place(environ, socket.gethostname(), settings.local_addr)
    care = NodeCare(settings.health, settings.reclaim, place, environ)
    member = place.member(new_agent_id(place.infra_rank), care.domain(settings.segment))
    meeting = _meeting(settings, place, member, environ, may_share=may_share)
    limits = Limits(max_restarts=settings.max_restarts, no_restart_exit_code=settings.no_restart_exit_code)
    spec = _spec(settings, place)
    job = Job(meeting, spec, limits, member, procs_per_node=settings.procs_per_node)
    cycles = _cycles(settings, environ)
    judge = JobJudge(
        settings.progress,
        by=member.agent_id,
        no_restart_exit_code=settings.no_restart_exit_code,
        marker_file=settings.records.checkpoint_iteration_file,
        verdict_file=settings.records.verdict_file,
    )
    records = JobRecords(
        cycles if meeting.is_host else None,
        run_id=settings.run_id,
        judge=judge,
        log_file_of=lambda cycle: settings.logs.places.path_of_app(cycle) or "",
    )
    if meeting.is_host:
        records.prepare()
    return _Launcher(
        settings=settings,
        job=job,
        place=place,
        care=care,
        logs=LaunchLogs(settings.logs, member.agent_id, place.node, meeting.secret, is_host=meeting.is_host),
        records=records,
        judge=judge,
        timeline=Timeline(settings.records.timeline_dir, node=place.node, agent=member.agent_id),
        cycles=cycles,
    )


def _run(launcher: _Launcher, environ: Mapping[str, str]) -> Leave:
    settings, job = launcher.settings, launcher.job
    world = World(
        run_id=settings.run_id,
        role=settings.role,
        nodes=settings.min_nodes,
        procs_per_node=settings.procs_per_node,
        max_restarts=settings.max_restarts,
        uses_agent_store=settings.worker_store is WorkerStore.AGENT,
        cycle_record=None if launcher.cycles is None else launcher.cycles.record,
    )
    ranks = Ranks(
        _pool(settings, environ, world, job.member.agent_id, capture_output=launcher.logs.is_capturing),
        world,
        launcher.logs.node,
        lambda: Monitor(settings.hang, settings.procs_per_node, job.news.post),
    )
    grace = Grace(restart=settings.stop_grace, ending=settings.term_timeout)
    care = launcher.care
    loop = NodeLoop(
        job,
        Node(job.member.agent_id, grace, is_host=launcher.is_host),
        ranks,
        Parts(
            check_health=care.check,
            reclaim=care.reclaim if care.must_reclaim else None,
            start_rank_store=RankStore if world.uses_agent_store else FreePort,
            timeline=launcher.timeline,
            capture=settings.capture,
            welcomed=lambda word: launcher.logs.aim(settings.host, word.log_port),
            tend=launcher.logs.tend,
            watched=launcher.logs.watched,
        ),
        connect=lambda: _connect(launcher),
        refill_seconds=settings.refill_delay,
    )
    agent = LaunchAgent(_elastic_spec(settings, job), loop)
    agent.run(settings.role)
    assert agent.left is not None
    return agent.left


def _connect(launcher: _Launcher) -> None:
    launcher.job.connect(launcher.judge, launcher.records, launcher.logs.writer_port)
    launcher.care.start_background()
    if launcher.is_host:
        launcher.judge.watch(launcher.job.end)


def _pool(
    settings: LaunchSettings, environ: Mapping[str, str], world: World, agent_id: str, *, capture_output: bool
) -> PoolSettings:
    ranks = range(settings.procs_per_node)
    numa = settings.numa
    return PoolSettings(
        entry=EntryPoint(
            argv=settings.argv, module=settings.module, no_python=settings.no_python, python=interpreter(environ)
        ),
        warm=settings.warm_workers,
        preload=settings.preload,
        environments=tuple(node_environment(environ, world, agent_id, rank) for rank in ranks),
        prefixes=() if numa is None else tuple(numa.prefix(rank) for rank in ranks),
        capture_output=capture_output,
    )


def _elastic_spec(settings: LaunchSettings, job: Job) -> WorkerSpec:
    return WorkerSpec(
        role=settings.role,
        local_world_size=settings.procs_per_node,
        rdzv_handler=NvrxRendezvous(job, join_seconds=settings.join_timeout),
        entrypoint=settings.argv[0],
        args=settings.argv[1:],
        max_restarts=settings.max_restarts,
    )


def _cycles(settings: LaunchSettings, environ: Mapping[str, str]) -> CycleDirectory | None:
    if settings.records.cycle_info_dir is None:
        return None
    return open_cycle_directory(settings.records.cycle_info_dir, *identify_job(environ))


def _spec(settings: LaunchSettings, place: Place) -> Spec:
    return Spec(
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        group_size=place.nodes_per_task if place.group is not None else 1,
        segment=settings.segment,
        first_grace_seconds=settings.first_round_grace,
        last_call_seconds=settings.last_call_timeout,
        last_call_max_seconds=settings.last_call_max,
        join_timeout_seconds=settings.join_timeout,
        sticky=not settings.rebalance_on_restart,
    )


def _meeting(
    settings: LaunchSettings, place: Place, member: Member, environ: Mapping[str, str], *, may_share: bool
) -> Meeting:
    if not settings.secret and settings.max_nodes > 1:
        raise UsageError(
            "joining the job: there is no secret",
            hint="give all nodes the same NVRX_CHAIN_LAUNCH_SECRET, or --secret-file with mode 600",
        )
    return Meeting(
        host=settings.host,
        port=settings.port,
        run_id=settings.run_id,
        secret=settings.secret or secrets.token_hex(16),
        is_host=settings.is_host if settings.is_host is not None else member.infra_rank <= 0,
        connect_seconds=settings.connect_timeout,
        liveness_seconds=settings.liveness_timeout,
        # Slurm starts another task of the array in the place of one that ended.
        may_be_replaced=place.array_task is not None,
        allow_shared_node=may_share,
    )


def _exit_code(left: Leave, launcher: _Launcher) -> int:
    state, settings = launcher.job.state, launcher.settings
    if state.ended is not None and state.ended.reason is left.reason:
        return state.ended.exit_code
    if left.reason is Reason.HOST_LOST and launcher.cycles is not None:
        # The host wrote down how the job ended before it told anybody.
        outcome = read_outcome(launcher.cycles.outcome, run_id=settings.run_id)
        if isinstance(outcome, JobOutcome):
            log.info("the host is gone, the job had ended reason=%s", outcome.reason.value)
            return outcome.exit_code
        if isinstance(outcome, Unobserved):
            log.warning("whether the job had ended is not known reason=%s", outcome.reason)
    return exit_code(left.reason, settings.no_restart_exit_code)
