"""Our own launcher, `nvrx-chain launch`: joins spares, restarts in place, writes cycle records. Pure.

It runs in the interpreter of the training, because it hosts the store in which the ranks meet and parks interpreters
that have imported torch.
"""

from __future__ import annotations

from pathlib import Path

from nvrx_chain.launchers.ft_launcher import INJECTED_FAILURES
from nvrx_chain.launchers.seats import LaunchPlan, LaunchRequest
from nvrx_chain.records.layout import RunDirectory

LAUNCHER = "nvrx_chain.launcher.launch"
"""What has to be importable."""
SECRET = "NVRX_CHAIN_LAUNCH_SECRET"


def plan(request: LaunchRequest) -> LaunchPlan:
    """The command of one node."""
    shape, seat, launcher = request.shape, request.seat, request.launcher
    argv = [
        launcher.python,
        "-m",
        "nvrx_chain",
        "launch",
        f"--nnodes={shape.min_nodes}:{shape.max_nodes}",
        f"--nproc-per-node={shape.procs_per_node}",
        f"--rdzv-endpoint={seat.rendezvous_host}:{seat.rendezvous_port}",
        f"--rdzv-id={seat.run_id}",
        f"--rdzv-conf=is_host={int(seat.is_host)}",
        f"--local-addr={seat.node}",
        f"--max-restarts={launcher.max_restarts}",
        f"--no-restart-exit-code={launcher.no_restart_exit_code}",
        f"--cycle-info-dir={seat.cycle_info_dir}",
        f"--timeline-dir={seat.timeline_dir}",
        f"--per-cycle-applog-prefix={seat.application_log}",
        f"--checkpoint-iteration-file={_iteration_file(request)}",
    ]
    if shape.segment is not None:
        argv.append(f"--segment={shape.segment}")
    if seat.segment_health_dir is not None:
        argv.append(f"--segment-health-check-dir={seat.segment_health_dir}")
    if request.faults is not None and request.faults.no_restart_demo:
        # Its cycles are short, and such ones do not count otherwise.
        argv.append("--min-cycle-seconds=0")
    failures = request.faults.gpu_failures if request.faults else ()
    # Also when there are none: a variable left in the shell of whoever extends a chain must not fail its nodes.
    environment = {INJECTED_FAILURES: ",".join(failures), SECRET: seat.secret}
    return LaunchPlan(argv=(*argv, *launcher.arguments, *request.workload), environment=environment)


def _iteration_file(request: LaunchRequest) -> str:
    """Where the launcher looks whether training goes on; for the demonstration a file that nobody writes."""
    if request.faults is not None and request.faults.no_restart_demo:
        return str(RunDirectory(Path(request.seat.run_directory)).still_iteration)
    return request.seat.checkpoint_iteration_file
