"""Wiring of `nvrx-chain launch`: from settings to a launcher at work, and to its exit code.

Touches: the environment, what `loop.py` touches.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Mapping

from torch.distributed.elastic.agent.server.api import WorkerSpec

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.agent import LaunchAgent
from nvrx_chain.launcher.coordinator import Limits
from nvrx_chain.launcher.environment import World, interpreter, node_environment
from nvrx_chain.launcher.events import Ended, JobState, Opened
from nvrx_chain.launcher.job import Job, Meeting, new_agent_id
from nvrx_chain.launcher.loop import NodeLoop, Parts
from nvrx_chain.launcher.members import Member, Spec
from nvrx_chain.launcher.node import Grace, Leave, Node
from nvrx_chain.launcher.orphans import become_subreaper
from nvrx_chain.launcher.pool import Pool, PoolSettings
from nvrx_chain.launcher.rank_store import RankStore
from nvrx_chain.launcher.reasons import exit_code
from nvrx_chain.launcher.rendezvous import NvrxRendezvous, register
from nvrx_chain.launcher.settings import LaunchSettings
from nvrx_chain.launcher.workers import EntryPoint

log = logging.getLogger(__name__)

HOST_WAITS_SECONDS = 60.0
"""How long the host stays for launchers that have not left."""


def run_launch(settings: LaunchSettings, environ: Mapping[str, str]) -> int:
    """Run the ranks of this node to the end of their job; the exit code."""
    become_subreaper()
    register()
    member = _member(settings, environ)
    is_host = settings.is_host if settings.is_host is not None else member.infra_rank == 0
    spec = _spec(settings)
    limits = Limits(max_restarts=settings.max_restarts, no_restart_exit_code=settings.no_restart_exit_code)
    job = Job(_meeting(settings, is_host), spec, limits, member, procs_per_node=settings.procs_per_node)
    agent = _agent(settings, environ, job, is_host)
    agent.run(settings.role)
    assert agent.left is not None
    code = _exit_code(agent.left, job.state, settings.no_restart_exit_code)
    log.info("the launcher ends reason=%s exit_code=%s detail=%s", agent.left.reason.value, code, agent.left.detail)
    job.leave(host_waits_seconds=HOST_WAITS_SECONDS)
    return code


def _agent(settings: LaunchSettings, environ: Mapping[str, str], job: Job, is_host: bool) -> LaunchAgent:
    world = World(
        run_id=settings.run_id,
        role=settings.role,
        nodes=settings.min_nodes,
        procs_per_node=settings.procs_per_node,
        max_restarts=settings.max_restarts,
    )
    agent_id = job.member.agent_id
    entry = EntryPoint(
        argv=settings.argv, module=settings.module, no_python=settings.no_python, python=interpreter(environ)
    )
    ranks = range(settings.procs_per_node)
    pool = Pool(
        PoolSettings(
            entry=entry,
            warm=settings.warm_workers,
            preload=settings.preload,
            environments=tuple(node_environment(environ, world, agent_id, rank) for rank in ranks),
        )
    )
    grace = Grace(restart=settings.stop_grace, ending=settings.term_timeout)
    loop = NodeLoop(
        job,
        Node(agent_id, grace, is_host=is_host),
        pool,
        world,
        Parts(
            check_health=lambda round_number: None,
            reclaim=None,
            start_rank_store=RankStore,
            explain=lambda round_number, local_rank: "",
            mark=lambda round_number, name: None,
        ),
        connect=lambda: job.connect(_judge),
        refill_seconds=settings.refill_delay,
    )
    elastic = WorkerSpec(
        role=settings.role,
        local_world_size=settings.procs_per_node,
        rdzv_handler=NvrxRendezvous(job, join_seconds=settings.join_timeout),
        entrypoint=settings.argv[0],
        args=settings.argv[1:],
        max_restarts=settings.max_restarts,
    )
    return LaunchAgent(elastic, loop)


def _judge(opened: Opened, state: JobState) -> Ended | None:
    return None


def _member(settings: LaunchSettings, environ: Mapping[str, str]) -> Member:
    infra_rank = int(environ.get("SLURM_PROCID") or environ.get("GROUP_RANK") or 0)
    agent_id = new_agent_id(infra_rank)
    address = settings.local_addr or socket.getfqdn()
    return Member(agent_id=agent_id, infra_rank=infra_rank, group=agent_id, address=address)


def _spec(settings: LaunchSettings) -> Spec:
    return Spec(
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        segment=settings.segment,
        first_grace_seconds=settings.first_round_grace,
        last_call_seconds=settings.last_call_timeout,
        last_call_max_seconds=settings.last_call_max,
        join_timeout_seconds=settings.join_timeout,
        sticky=not settings.rebalance_on_restart,
    )


def _meeting(settings: LaunchSettings, is_host: bool) -> Meeting:
    alone = settings.max_nodes == 1
    if not settings.secret and not alone:
        raise UsageError(
            "joining the job: there is no secret",
            hint="give all nodes the same NVRX_CHAIN_LAUNCH_SECRET, or --secret-file with mode 600",
        )
    return Meeting(
        host=settings.host,
        port=settings.port,
        run_id=settings.run_id,
        secret=settings.secret or secrets.token_hex(16),
        is_host=is_host,
        connect_seconds=settings.connect_timeout,
        liveness_seconds=settings.liveness_timeout,
        allow_shared_node=os.environ.get("NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE") == "1",
    )


def _exit_code(left: Leave, state: JobState, no_restart_exit_code: int) -> int:
    if state.ended is not None and state.ended.reason is left.reason:
        return state.ended.exit_code
    return exit_code(left.reason, no_restart_exit_code)
