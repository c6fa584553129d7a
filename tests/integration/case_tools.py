"""What the tests of the field cases share: a chain of ranks without torch, fake programs, bare jobs that show a trap.

`beat(...)` is a launcher for `submit`; beat.py is what it runs. `put_fake` puts a program in front of a real one.
`run_bare` runs a plain batch script, to show on the same cluster what happens to one that does not know the trap.
Touches: the cluster, directories of the test.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvrx_chain.records.control import Left
from nvrx_chain.records.files import read_record
from nvrx_chain.workloads.events import Event, EventKind
from tests.integration.cluster import Cluster, QueueRow, wait_for
from tests.integration.harness import COMMAND, Chain, Launcher, Shape, command_launcher

BEAT = Path(__file__).with_name("beat.py")
SMALL = Shape(train=1, hot=0, cold=0)
PAIR = Shape(train=2, hot=0, cold=0)
SECONDS = 60.0
"""For what takes a few seconds on an idle machine."""


def beat(*words: str) -> Launcher:
    """Ranks that step and save without torch, one per node; `words` are further arguments of beat.py."""
    path = str(BEAT).replace("{", "{{").replace("}", "}}")
    rank = ["env", "RANK={node_rank}", "LOCAL_RANK=0", "WORLD_SIZE={nnodes}"]
    return command_launcher(shlex.join([*rank, "{python}", "-I", path, "--is-host={is_host}", *words]), name="beat")


# A chain


def submit_argv(run_dir: Path, launcher: Launcher, shape: Shape, depth: int, *options: str) -> list[str]:
    """The command of a submit, for tests of the submit itself."""
    argv = [COMMAND, "submit", "--json", *shape.options, f"--chain-depth={depth}", "--time-limit=30"]
    argv += [f"--launcher={launcher.kind.value}", f"--python={launcher.python}", *launcher.options]
    return [*argv, f"--run-dir={run_dir}", "--allow-local-run-dir", *options]


def run_submit(
    cluster: Cluster, argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a submit whatever comes of it."""
    return cluster.run(argv, environ=environ, check=False)


def chain_of(cluster: Cluster, done: subprocess.CompletedProcess[str], shape: Shape) -> Chain:
    """The chain that a submit with --json printed."""
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    run_dir = Path(answer["run_directory"])
    return Chain(cluster, run_dir, answer["chain_id"], answer["name"], tuple(answer["array_job_ids"]), shape)


def environment_of(chain: Chain, job: int, task: int) -> dict[str, str]:
    """The environment that the rank of a task had."""
    environ: dict[str, str] = json.loads((chain.run_dir / "environ" / f"{job}.{task}.json").read_text())
    return environ


def tell(chain: Chain) -> None:
    """The time has come: see `told` of beat.py."""
    (chain.run_dir / "told").touch()


def starts(chain: Chain, job: int) -> tuple[Event, ...]:
    """The first event of each life of a rank in a generation."""
    return tuple(event for event in chain.events(job) if event.event is EventKind.START)


def wait_for_ranks(chain: Chain, job: int) -> None:
    """Until every rank of a generation has begun to train."""
    wait_for(lambda: len(starts(chain, job)) >= chain.shape.train, SECONDS, f"all ranks of generation {job}")


def wait_for_row(chain: Chain, job: int, task: int, *states: str, seconds: float = SECONDS) -> QueueRow:
    """The row of a task once it has one of these states."""

    def find() -> QueueRow | None:
        return next((row for row in chain.rows(job) if row.task == task and row.state in states), None)

    return wait_for(find, seconds, f"task {task} of {job} to be {' or '.join(states)}; the queue has {chain.rows(job)}")


def why_left(chain: Chain, job: int, task: int) -> str | None:
    """What a task wrote when its ranks were gone, None while it has not."""
    record = read_record(chain.generation(job).left(task), Left)
    return record.evidence if isinstance(record, Left) else None


def exit_codes(cluster: Cluster, job: int) -> dict[int, str]:
    """`code:signal` by array task, of the tasks of an array that have ended."""
    out = cluster.run(["scontrol", "--oneliner", "show", "job", str(job)]).stdout
    codes = {}
    for line in out.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if fields.get("ArrayTaskId", "").isdigit() and fields["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"):
            codes[int(fields["ArrayTaskId"])] = fields["ExitCode"]
    return codes


def field_of(cluster: Cluster, job: object, field: str) -> str:
    """One field of `scontrol show job`, of the first record; '' when it has none."""
    out = cluster.run(["scontrol", "--oneliner", "show", "job", str(job)]).stdout.splitlines()[0]
    return next((word.split("=", 1)[1] for word in out.split() if word.startswith(f"{field}=")), "")


# Without nvrx-chain


def run_bare(
    cluster: Cluster, directory: Path, script: str, *options: str, environ: Mapping[str, str] | None = None
) -> int:
    """sbatch a plain bash script that runs in `directory`; its job id. Standard output goes to `bare.log` there."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "bare.sh"
    path.write_text(f"#!/bin/bash\n{script}")
    argv = ["sbatch", "--parsable", f"--chdir={directory}", f"--output={directory}/bare.log", *options, str(path)]
    return int(cluster.run(argv, environ=environ).stdout.split(";")[0])


def wait_for_end(cluster: Cluster, job: int, seconds: float = SECONDS) -> None:
    """Until no task of a job is in the queue."""
    wait_for(lambda: all(row.job != job for row in cluster.live_rows()), seconds, f"job {job} to end")


def wait_for_text(path: Path, seconds: float = SECONDS) -> str:
    """The text of a file once it has any."""
    return wait_for(lambda: path.read_text().strip() if path.exists() else None, seconds, f"text in {path}")


# Fake programs


def put_fake(directory: Path, name: str, body: str, cluster: Cluster) -> dict[str, str]:
    """Put a bash script before a Slurm program; the environment in which it comes first.

    In `body`, `$real` is the real program, `$n` the number of this call from 1, `$own` a prefix for files of its own.
    """
    bin_dir = directory / "bin"
    bin_dir.mkdir(parents=True, exist_ok=True)
    path = bin_dir / name
    real = shutil.which(name, path=cluster.environ["PATH"])
    assert real, f"there is no {name}"
    own = shlex.quote(str(directory / name))
    head = f'real={shlex.quote(real)}\nown={own}\nn=$(( $(cat "$own.calls" 2>/dev/null || echo 0) + 1 ))\n'
    path.write_text(f'#!/bin/bash\n{head}echo $n >"$own.calls"\n{body}')
    path.chmod(0o755)
    return {"PATH": f"{bin_dir}{os.pathsep}{cluster.environ['PATH']}"}


def calls_of(directory: Path, name: str) -> int:
    """How often a fake was called."""
    path = directory / f"{name}.calls"
    return int(path.read_text()) if path.exists() else 0
