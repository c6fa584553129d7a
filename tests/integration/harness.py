"""The integration tests' harness: a chain on a real private Slurm, watched from outside. Start reading here.

    def test_something(cluster, submit, launcher, figures):
        chain = submit(launcher, target_iteration=150)          # Chain; cancelled at the end of the test
        chain.wait_for_step(chain.jobs[0])                      # the first `step` event of a generation
        fault = chain.kill_task_0(chain.jobs[0])                # a FaultReport, checked: the victim was what was meant
        step = chain.wait_for_step(chain.jobs[1], seconds=90)
        chain.assert_no_overlap()
        figures.add("shell-killed", launcher.name, seconds_between(fault, step))

Fixtures (conftest.py):
  cluster   an idle sandbox: 8 nodes, KillWait 30, SlurmdTimeout 300. `@pytest.mark.cluster(kill_on_bad_exit=1)`
            changes options of SandboxConfig. Clusters are shared by the tests of a session and reset between them.
  submit    submit(launcher, shape=..., depth=..., options=..., ...) -> Chain; see `Chain.submit`. Its run directory has
            a name full of characters that break scripts.
  launcher  `FT_LAUNCHER`, and in the full run `TORCHRUN` as well.
  figures   what was measured; printed as a table at the end of the run, see measure.py.
Markers: every test of this directory is `integration`; the long ones are marked `slow` by hand.

Parts: cluster.py (`Cluster`: queue, nodes, `occupied`, `assert_free`; `wait_for`), timeline.py (the ranks' own events),
bare.py (the same training without nvrx-chain), measure.py (the table of limits). A failed test prints the logs of its
chains. Nothing here imports torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.control import ChainOutcome, Closed, GenerationRecord, Hold
from nvrx_chain.records.layout import GenerationDirectory, RunDirectory
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.sandbox import BatchScope, FaultKind, FaultReport
from nvrx_chain.workloads.events import Event
from tests.integration import timeline
from tests.integration.cluster import Cluster, QueueRow, wait_for

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = str(Path(sys.executable).with_name("nvrx-chain"))
PEER_PYTHON = str(REPOSITORY / ".venv-peers" / "bin" / "python")
NASTY_NAME = "run & dir #1 'quoted' 100% of it"
START_SECONDS = 90.0
"""Generous: two cores import torch for every rank and launcher at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher as a test asks for it. `python` runs it and the workload; `options` go to submit."""

    name: str
    kind: LauncherKind
    python: str
    options: tuple[str, ...] = ()


FT_LAUNCHER = Launcher(name="ft_launcher", kind=LauncherKind.FT_LAUNCHER, python=PEER_PYTHON)
TORCHRUN = Launcher(name="torchrun", kind=LauncherKind.TORCHRUN, python=sys.executable)


def command_launcher(template: str, name: str = "command") -> Launcher:
    """A launcher that is any command; `template` is what --launcher-command takes."""
    return Launcher(
        name=name, kind=LauncherKind.COMMAND, python=sys.executable, options=("--launcher-command", template)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Training tasks, hot and cold spares of a generation; the default is the shape of the table of limits."""

    train: int = 2
    hot: int = 1
    cold: int = 2
    nodes_per_task: int = 1

    @property
    def total(self) -> int:
        return self.train + self.hot + self.cold

    @property
    def options(self) -> tuple[str, ...]:
        counts = {
            "train-tasks": self.train,
            "hot-spares": self.hot,
            "cold-spares": self.cold,
            "nodes-per-task": self.nodes_per_task,
        }
        return tuple(f"--{name}={count}" for name, count in counts.items())


DEFAULT_SHAPE = Shape()
ENDLESS = 1_000_000
"""A target iteration that no test reaches."""


def seconds_between(fault: FaultReport, event: Event) -> float:
    """From a fault to an event of a rank; one machine, so one wall clock."""
    return event.unix - fault.hit_at.timestamp()


@dataclass(frozen=True, slots=True)
class Chain:
    """A submitted chain. `jobs` are its array job ids in the order of the generations."""

    cluster: Cluster
    run_dir: Path
    chain_id: str
    name: str
    jobs: tuple[int, ...]
    shape: Shape = field(default=DEFAULT_SHAPE)

    @classmethod
    def submit(
        cls,
        cluster: Cluster,
        run_dir: Path,
        launcher: Launcher,
        *,
        shape: Shape = DEFAULT_SHAPE,
        depth: int = 3,
        time_limit: str = "30",
        target_iteration: int | None = None,
        workload: Sequence[str] = (),
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Chain:
        """Submit through the command line. With `target_iteration` the workload is mock-gpt that trains up to it, and
        `workload` are its further arguments; without, `workload` is the command after `--`."""
        argv = [COMMAND, "submit", "--json", *shape.options, f"--chain-depth={depth}", f"--time-limit={time_limit}"]
        argv += [f"--launcher={launcher.kind.value}", f"--python={launcher.python}", *launcher.options]
        argv += [f"--run-dir={run_dir}", "--allow-local-run-dir", *options]
        if target_iteration is not None:
            argv += [f"--target-iteration={target_iteration}", "--workload=mock-gpt"]
            # One line a step: the last line of a killed rank is then close to its death.
            workload = ("--log-interval=1", *(workload or DEFAULT_PACE))
        if workload:
            argv += ["--", *workload]
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        done = cluster.run(argv, cwd=run_dir.parent, environ=environ)
        answer = json.loads(done.stdout)
        return cls(cluster, run_dir, answer["chain_id"], answer["name"], tuple(answer["array_job_ids"]), shape)

    # Records

    @property
    def files(self) -> ChainFiles:
        return ChainFiles(RunDirectory(self.run_dir), self.chain_id)

    def generation(self, job: int) -> GenerationDirectory:
        """The paths of a generation's files."""
        return RunDirectory(self.run_dir).generation(job)

    def closed(self, job: int) -> Closed | None:
        return self.files.closed_of(job)

    def record(self, job: int) -> GenerationRecord | None:
        return self.files.record_of(job)

    def verdict(self) -> ChainOutcome | None:
        return self.files.outcome()

    def hold(self) -> Hold | None:
        return self.files.hold()

    def task_log(self, job: int, task: int) -> str:
        """What run-task of a task logged; empty while there is nothing."""
        path = self.generation(job).task_log(task)
        return path.read_text() if path.exists() else ""

    # Slurm

    def rows(self, job: int | None = None) -> tuple[QueueRow, ...]:
        """The chain's tasks in the queue, ended ones included."""
        wanted = set(self.jobs) if job is None else {job}
        return tuple(row for row in self.cluster.queue() if row.job in wanted)

    def live_rows(self, job: int | None = None) -> tuple[QueueRow, ...]:
        """The chain's tasks that have not ended."""
        return tuple(row for row in self.rows(job) if row.is_live)

    def running(self, job: int) -> dict[int, str]:
        """Node (node list) by array task, of the tasks that run."""
        return {row.task or 0: row.nodes for row in self.rows(job) if row.state == "RUNNING"}

    def host_of(self, job: int, task: int) -> str:
        """The only node of a running task."""
        running = self.running(job)
        assert task in running, f"task {task} of {job} does not run; running are {running}"
        return running[task]

    def started_jobs(self) -> tuple[int, ...]:
        """The generations of which a task ever started: by their directories and by the nodes that Slurm gave."""
        generations = self.run_dir / "generations"
        seen = {int(path.name) for path in generations.iterdir()} if generations.is_dir() else set()
        # The record of a cancelled rest has no node; COMPLETING, RUNNING and ended tasks that ran have one.
        seen |= {row.job for row in self.rows() if row.nodes not in ("", "(null)", "None assigned")}
        return tuple(job for job in self.jobs if job in seen)

    def cli(self, command: str, *words: str, check: bool = True) -> Any:
        """`nvrx-chain COMMAND --run-dir ...`; its standard output, parsed with --json among the words."""
        done = self.cluster.run([COMMAND, command, f"--run-dir={self.run_dir}", *words], check=check)
        return json.loads(done.stdout) if "--json" in words else done.stdout

    # Ranks

    def events(self, job: int | None = None) -> tuple[Event, ...]:
        """What the ranks wrote, in order."""
        events = timeline.read_timeline(self.run_dir / "events")
        return events if job is None else timeline.of_generation(events, job)

    def assert_no_overlap(self) -> None:
        """No two generations ever had a live rank at the same time, by the ranks' own events."""
        timeline.assert_no_overlap(self.events())

    def rank_hosts(self, job: int) -> dict[int, str]:
        """Where each rank of a generation was last seen."""
        return {event.rank: event.host for event in self.events(job)}

    # Waiting

    def wait_for(self, condition: Callable[[], T | None], seconds: float, what: str) -> T:
        """See `cluster.wait_for`."""
        return wait_for(condition, seconds, what)

    def wait_for_step(self, job: int, *, seconds: float = START_SECONDS, after: float = 0.0, steps: int = 1) -> Event:
        """The `steps`-th step event of a generation that is later than `after` (Unix seconds)."""

        def find() -> Event | None:
            found = [event for event in timeline.steps(self.events(job)) if event.unix > after]
            return found[steps - 1] if len(found) >= steps else None

        return wait_for(find, seconds, f"step {steps} of generation {job}")

    def wait_for_training(self, job: int, *, seconds: float = START_SECONDS) -> None:
        """Until both the training of a generation and a first checkpoint of it are there."""
        start = self.wait_for_step(job, seconds=seconds).iteration
        wait_for(
            lambda: (iteration := self.iteration()) is not None and iteration >= start,
            seconds,
            f"a checkpoint of generation {job}",
        )

    def iteration(self) -> int | None:
        """The iteration of the last checkpoint."""
        try:
            return int(RunDirectory(self.run_dir).default_iteration_file.read_text())
        except FileNotFoundError:
            return None

    def wait_for_outcome(self, job: int, *, seconds: float) -> Outcome:
        """How a generation was closed."""
        return wait_for(lambda: self.closed(job), seconds, f"generation {job} to be closed").outcome

    def wait_for_verdict(self, *, seconds: float) -> Verdict:
        """How the chain ended."""
        return wait_for(self.verdict, seconds, "the chain's verdict").verdict

    def wait_until_gone(self, *, seconds: float) -> None:
        """Until no task of the chain is in the queue, not even a completing one."""
        wait_for(lambda: not self.live_rows(), seconds, "the chain to leave the queue")

    # Faults. Each asserts that the victim was what was meant.

    def kill_task_0(self, job: int, scope: BatchScope = BatchScope.SHELL) -> FaultReport:
        """SIGKILL in task 0's batch step while the task runs; its node lives on."""
        host = self.host_of(job, 0)
        report = self.cluster.sandbox.kill_task_0(job, scope=scope)
        _check(report, FaultKind.KILL_TASK_0, f"task 0 of array job {job} on {host} ({scope.value})")
        return report

    def kill_rank(self, job: int, rank: int) -> FaultReport:
        """SIGKILL of one training process."""
        host = self.rank_hosts(job)[rank]
        report = self.cluster.sandbox.kill_rank(job, rank)
        _check(report, FaultKind.KILL_RANK, f"rank {rank} of array job {job} on {host}")
        return report

    def kill_node_of(self, job: int, task: int) -> FaultReport:
        """Power loss of the node of a running task."""
        host = self.host_of(job, task)
        report = self.cluster.sandbox.kill_node(host)
        _check(report, FaultKind.KILL_NODE, host)
        # The node took a shell, a run-task and, with a training task, ranks with it.
        assert len(report.pids) >= 4, f"too little died with {host}: {report}"
        return report

    def freeze_slurmd_of(self, job: int, task: int) -> FaultReport:
        """SIGSTOP of the slurmd under a running task, which runs on."""
        host = self.host_of(job, task)
        report = self.cluster.sandbox.freeze_slurmd(host)
        _check(report, FaultKind.FREEZE_SLURMD, host)
        return report

    def freeze_node_of(self, job: int, task: int) -> FaultReport:
        """SIGSTOP of everything on the node of a running task."""
        host = self.host_of(job, task)
        report = self.cluster.sandbox.freeze_node(host)
        _check(report, FaultKind.FREEZE_NODE, host)
        return report

    def cut_node_of(self, job: int, task: int, *, keep_disk: bool = False) -> FaultReport:
        """The node of a running task falls silent, and lives on."""
        host = self.host_of(job, task)
        report = self.cluster.sandbox.cut_node(host, keep_disk=keep_disk)
        _check(report, FaultKind.CUT_NODE, host)
        assert len(report.pids) >= 4, f"too little lives on on {host}: {report}"
        return report

    def isolate_node_of(self, job: int, task: int) -> FaultReport:
        """The node of a running task and slurmctld lose each other; its peers and the shared directory stay."""
        host = self.host_of(job, task)
        report = self.cluster.sandbox.isolate_from_controller(host)
        _check(report, FaultKind.ISOLATE_NODE, host)
        assert len(report.pids) >= 4, f"too little lives on on {host}: {report}"
        return report

    def heal(self, fault: FaultReport) -> FaultReport:
        """Undo a cut, an isolation or a stalled disk of one node."""
        report = self.cluster.sandbox.heal_node(fault.target)
        _check(report, FaultKind.HEAL_NODE, fault.target)
        return report

    def slow_disk_of(self, job: int, task: int | None, seconds: float) -> FaultReport:
        """The shared directory stalls on the node of a running task, None on all nodes."""
        host = None if task is None else self.host_of(job, task)
        report = self.cluster.sandbox.slow_disk(host, seconds=seconds)
        _check(report, FaultKind.SLOW_DISK, host or " ".join(self.cluster.sandbox.node_names))
        return report

    # The end

    def cancel(self) -> None:
        """Cancel whatever of it is in the queue, pending tasks first so that none starts meanwhile."""
        if self.live_rows():
            self.cluster.cancel("--state=PENDING", *self.jobs)
            self.cluster.cancel(*self.jobs)

    def describe(self) -> str:
        """Logs, control files and queue, for a failed test."""
        parts = [f"chain {self.name} in {self.run_dir}, jobs {self.jobs}, verdict {self.verdict()}", self._files()]
        for path in sorted((self.run_dir / "generations").glob("*/logs/*.log")):
            lines = path.read_text(errors="replace").splitlines()
            parts.append("\n".join((f"--- {path.relative_to(self.run_dir)}", *lines[-25:])))
        parts.append(self.cluster.describe())
        return "\n".join(parts)

    def _files(self) -> str:
        names = [str(path.relative_to(self.run_dir)) for path in (self.run_dir / "generations").glob("*/control/*")]
        closed = [path.read_text() for path in (self.run_dir / "generations").glob("*/control/closed.json")]
        return "\n".join((" ".join(sorted(names)), *closed))


DEFAULT_PACE = ("--step-seconds=0.1", "--save-interval=20")


def _check(report: FaultReport, kind: FaultKind, target: str) -> None:
    assert report.kind is kind, report
    assert report.target == target, f"meant {target}: {report}"
    assert report.pids, report
    assert report.verified, report
