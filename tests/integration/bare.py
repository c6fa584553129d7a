"""The same training without nvrx-chain: two bare arrays of one name under singleton, the least that any hand-off needs.

What a chain is compared with. The first array only occupies the nodes; when it is cancelled Slurm starts the second,
whose tasks find their host through a file and run the launcher. Touches: the cluster, a directory of its own.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from nvrx_chain.generation.rendezvous import choose_port
from nvrx_chain.records.manifest import LauncherKind
from tests.integration import timeline
from tests.integration.cluster import Cluster, wait_for
from tests.integration.harness import START_SECONDS, Launcher, Shape

_MODULES = {
    LauncherKind.FT_LAUNCHER: "nvidia_resiliency_ext.fault_tolerance.launcher",
    LauncherKind.TORCHRUN: "torch.distributed.run",
}

_SCRIPT = """\
#!/bin/bash
dir={directory}
if [ "$SLURM_ARRAY_TASK_ID" = 0 ]; then
  echo "$SLURMD_NODENAME" >"$dir/host.new" && mv "$dir/host.new" "$dir/host"
fi
until [ -s "$dir/host" ]; do sleep 0.1; done
read -r host <"$dir/host"
is_host=0; [ "$SLURM_ARRAY_TASK_ID" = 0 ] && is_host=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# torchrun has no use for spares: they stay idle, as our chain keeps them.
[ "$SLURM_ARRAY_TASK_ID" -lt {seats} ] || exec sleep 3600
exec srun -N1 -n1 --cpu-bind=none {python} -m {module} --nnodes={nnodes} --nproc-per-node=1 --rdzv-backend=c10d \\
  --rdzv-endpoint="$host:{port}" --rdzv-id="$SLURM_ARRAY_JOB_ID" \\
  --rdzv-conf="is_host=$is_host" --max-restarts=5 -m nvrx_chain.workloads.mock_gpt {workload}
"""


def measure_bare_successor(cluster: Cluster, directory: Path, launcher: Launcher, shape: Shape) -> float:
    """Seconds from the cancel of an array to the first step of the successor that waited for it; ends both."""
    directory.mkdir(parents=True)
    placeholder = _submit(cluster, directory, shape, "#!/bin/bash\nexec sleep 3600\n")
    successor = _submit(cluster, directory, shape, _render(directory, launcher, shape))
    try:
        wait_for(lambda: _running(cluster, placeholder) == shape.train + shape.hot, 30, "the bare predecessor to run")
        assert _running(cluster, successor) == 0, "singleton did not hold the successor back"
        began = time.time()
        cluster.cancel(placeholder)
        step = wait_for(
            lambda: timeline.steps(timeline.read_timeline(directory / "events")),
            START_SECONDS,
            "a first step of the bare successor",
        )[0]
        return step.unix - began
    finally:
        cluster.cancel("--state=PENDING", placeholder, successor)
        cluster.cancel(placeholder, successor)
        cluster.assert_free(60)


def _render(directory: Path, launcher: Launcher, shape: Shape) -> str:
    takes_spares = launcher.kind is LauncherKind.FT_LAUNCHER
    workload = [
        f"--checkpoint-dir={directory / 'checkpoints'}",
        f"--event-file={directory / 'events' / 'rank{rank}.jsonl'}",
        "--target-iteration=1000000",
        "--step-seconds=0.1",
        "--log-interval=1",
    ]
    return _SCRIPT.format(
        directory=shlex.quote(str(directory)),
        seats=shape.total if takes_spares else shape.train,
        python=shlex.quote(launcher.python),
        module=_MODULES[launcher.kind],
        port=choose_port(),
        nnodes=f"{shape.train}:{shape.train + shape.hot}" if takes_spares else str(shape.train),
        workload=shlex.join(workload),
    )


def _submit(cluster: Cluster, directory: Path, shape: Shape, script: str) -> int:
    path = directory / f"array{len(list(directory.glob('array*')))}.sh"
    path.write_text(script)
    argv = ["sbatch", "--parsable", "--job-name=bare", "--dependency=singleton", "--no-requeue", "--exclusive", "-N1"]
    argv += [f"--array=0-{shape.total - 1}%{shape.train + shape.hot}", f"--output={directory}/%A_%a.log", str(path)]
    return int(cluster.run(argv, cwd=directory).stdout.split(";")[0])


def _running(cluster: Cluster, job: int) -> int:
    return sum(row.job == job and row.state == "RUNNING" for row in cluster.queue())
