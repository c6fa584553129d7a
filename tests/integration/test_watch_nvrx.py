"""Chains that nvrx-chain did not submit: a recorded run of NVRx's own example, and a live one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, wait_for
from tests.integration.harness import PEER_PYTHON
from tests.integration.watch_tools import Watcher, tasks_in, wait_for_states

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "watch" / "nvrx-run"

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=theirs
set -u
HERE="$(cd "$(dirname "$0")" && pwd)"
WORK_DIR="${{NVRX_WORK_DIR:-{work}}}"
STATE="$WORK_DIR/nvrx/${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}"
mkdir -p "$STATE/cycle_infos" "$WORK_DIR/checkpoints"
if [ "$SLURM_ARRAY_TASK_ID" != 0 ]; then exec sleep 600; fi
args=(
  --nnodes=1:1 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-id="$SLURM_ARRAY_JOB_ID"
  --max-restarts=20 --ft-cycle-info-dir="$STATE/cycle_infos"
  --ft-checkpoint-iteration-file "$WORK_DIR/checkpoints/latest_checkpointed_iteration.txt"
  --ft-max-no-progress-cycles=0
)
exec {python} -m nvidia_resiliency_ext.fault_tolerance.launcher "${{args[@]}}" "$WORK_DIR/rank.py"
"""
RANK = """\
import sys, time
time.sleep(1)
sys.exit(3)
"""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_a_recorded_run_is_read_without_a_scheduler_and_without_our_manifest(tmp_path: Path, cluster: Cluster) -> None:
    watch = Watcher(cluster, tmp_path / "state")
    seen = watch.look(f"--work-dir={RECORDED}", "--platform=none", "--job-name=nvrx_singleton").only
    assert [one["array_job_id"] for one in seen["generations"]] == [8, 9, 10]
    assert [one["cycles"] for one in seen["generations"]] == [2, 1, 1]
    assert seen["iteration"] == 600
    assert seen["unobserved"] == {}
    assert seen["chain"]["chain_id"] is None


@pytest.mark.slow
def test_a_live_chain_of_nvrx_is_found_through_its_batch_script(cluster: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "their work"
    work.mkdir()
    (work / "rank.py").write_text(RANK)
    script = work / "launch.sbatch"
    script.write_text(SCRIPT.format(work=work, port=free_port(), python=PEER_PYTHON))
    argv = [
        "sbatch",
        "--parsable",
        "--array=0-2%2",
        "--dependency=singleton",
        "--exclusive",
        "--time=20",
        "--nodes=1",
        "--ntasks-per-node=1",
    ]
    argv += [f"--output={work}/out.%a", f"--chdir={work}", str(script)]
    job = int(cluster.run(argv).stdout.split(";")[0])
    wait_for_states(cluster, job, "RUNNING", 2)
    watch = Watcher(cluster, tmp_path / "state", {"storm_cycles": 3})
    cycles = work / "nvrx" / str(job) / "cycle_infos"
    wait_for(lambda: cycles.is_dir() and len(list(cycles.glob(f"cycle_info.{job}.0.*"))) >= 4, 120, "four cycles")
    seen = watch.look_until("restart_storm", f"{job}_0", "--act", seconds=60)
    assert seen.only["chain"]["name"] == "theirs"
    assert seen.only["generations"][-1]["cycles"] >= 4
    # What to do is printed, and nothing is done: a hold of a chain that is not ours is its owner's.
    finding = seen.finding("restart_storm")
    assert finding is not None
    assert json.dumps(seen.only["actions"]).count('"done"') == 0
    assert tasks_in(cluster, job, "RUNNING") == {0, 1}
