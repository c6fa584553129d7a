"""torchrun: fixed seats, so spares wait at the gate of run-task and take the seat of a dead member. Pure.

More agents than seats make torchrun restart without end, so exactly `min_nodes` are ever started. The agents' shared
store keeps the keys of the previous attempt, which breaks most restarts of torch 2.13, so it is switched off.
"""

from __future__ import annotations

from nvrx_chain.launchers.seats import LaunchPlan, LaunchRequest

MODULE = "torch.distributed.run"


def plan(request: LaunchRequest) -> LaunchPlan:
    """The command of one node."""
    shape, seat, launcher = request.shape, request.seat, request.launcher
    argv = [
        launcher.python,
        "-m",
        MODULE,
        f"--nnodes={shape.min_nodes}",
        f"--nproc-per-node={shape.procs_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={seat.rendezvous_host}:{seat.rendezvous_port}",
        f"--rdzv-id={seat.run_id}",
        f"--rdzv-conf=is_host={int(seat.is_host)}",
        f"--local-addr={seat.node}",
        f"--max-restarts={launcher.max_restarts}",
    ]
    return LaunchPlan(argv=(*argv, *request.workload), environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
