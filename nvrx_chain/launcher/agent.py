"""The launcher as torch.distributed.elastic sees it: an `ElasticAgent`, with a rendezvous handler of our own.

Touches: what `loop.py` touches.
"""

from __future__ import annotations

from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    ElasticAgent,
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)

from nvrx_chain.launcher.loop import NodeLoop
from nvrx_chain.launcher.node import Leave
from nvrx_chain.launcher.reasons import Reason


class LaunchAgent(ElasticAgent):  # type: ignore[misc]
    """Runs the ranks of one node to the end of their job. `left` says why it left."""

    def __init__(self, spec: WorkerSpec, loop: NodeLoop) -> None:
        self._spec = spec
        self._loop = loop
        self.left: Leave | None = None

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Take part until the job is over or this node leaves it. The results of ranks are their own."""
        self.left = self._loop.run()
        is_success = self.left.reason is Reason.SUCCESS
        return RunResult(state=WorkerState.SUCCEEDED if is_success else WorkerState.FAILED)

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """A copy of what is known of the ranks of this node."""
        group = WorkerGroup(self._spec)
        running = self._loop.running
        if running is not None:
            group.group_rank = running.group_rank
            group.master_addr, group.master_port = running.hosted.address, running.hosted.port
            group.state = WorkerState.HEALTHY
            size = self._spec.local_world_size
            for worker in group.workers:
                worker.global_rank = worker.role_rank = running.group_rank * size + worker.local_rank
        return group
