"""NVIDIA's ft_launcher 0.7.0: joins spares, restarts in place, writes cycle records. Pure.

Flags and their meaning: its own command line. `is_host` is passed explicitly because a launcher that compares host
names itself can find two hosts, or none. MAX is every node that can be alive: one agent more closes the rendezvous.
"""

from __future__ import annotations

import re
from pathlib import Path

from nvrx_chain.launchers.seats import LaunchPlan, LaunchRequest
from nvrx_chain.records.layout import RunDirectory

INJECTED_FAILURES = "NVRX_INJECT_GPU_FAILURE"
MODULE = "nvidia_resiliency_ext.fault_tolerance.launcher"


def plan(request: LaunchRequest) -> LaunchPlan:
    """The command of one node."""
    shape, seat, launcher = request.shape, request.seat, request.launcher
    argv = [
        launcher.python,
        "-m",
        MODULE,
        f"--nnodes={shape.min_nodes}:{shape.max_nodes}",
        f"--nproc-per-node={shape.procs_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={seat.rendezvous_host}:{seat.rendezvous_port}",
        f"--rdzv-id={seat.run_id}",
        f"--rdzv-conf=is_host={int(seat.is_host)}",
        f"--max-restarts={launcher.max_restarts}",
        f"--ft-no-restart-exit-code={launcher.no_restart_exit_code}",
        f"--ft-cycle-info-dir={seat.cycle_info_dir}",
        f"--ft-per-cycle-applog-prefix={seat.application_log}",
        f"--ft-checkpoint-iteration-file={_iteration_file(request)}",
    ]
    if shape.segment is not None:
        argv.append(f"--ft-segment={shape.segment}")
    if seat.segment_health_dir is not None and has_segment_health_check(launcher.version):
        argv.append(f"--ft-segment-health-check-dir={seat.segment_health_dir}")
    failures = request.faults.gpu_failures if request.faults else ()
    # Also when there are none: a variable left in the shell of whoever extends a chain must not fail its nodes.
    environment = {INJECTED_FAILURES: ",".join(failures)}
    return LaunchPlan(argv=(*argv, *launcher.arguments, *request.workload), environment=environment)


def _iteration_file(request: LaunchRequest) -> str:
    """Where the launcher looks whether training goes on; for the demonstration a file that nobody writes."""
    if request.faults is not None and request.faults.no_restart_demo:
        return str(RunDirectory(Path(request.seat.run_directory)).still_iteration)
    return request.seat.checkpoint_iteration_file


def has_segment_health_check(version: str | None) -> bool:
    """Whether it takes --ft-segment-health-check-dir, as of 0.7. Unknown is no: an unknown flag ends the launch."""
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})", version or "", re.ASCII)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (0, 7)
