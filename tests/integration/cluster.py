"""The sandbox as the integration tests see it: its queue, its nodes, jobs that only occupy nodes, back to idle.

Slurm is asked by its own programs and their output is split here, so that a fault of the code under test cannot hide
itself. Touches: the sandbox.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox import Sandbox, SandboxConfig
from nvrx_chain.sandbox.members import describe, find_node
from nvrx_chain.sandbox.procfs import Process, read_arguments, read_environment
from nvrx_chain.sandbox.record import SandboxState, find_place, read_state
from nvrx_chain.sandbox.status import ProcessState

T = TypeVar("T")

COMMAND_SECONDS = 60.0
POLL_SECONDS = 0.2
TERMINAL = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
_IN_SERVICE = frozenset({"idle", "allocated", "mixed", "completing"})
_FOREIGN = ("SLURM", "SBATCH", "SQUEUE", "SACCT", "SCANCEL", "SINFO", "SRUN", "NVRX", "PMI", "NODES_PER", "GPUS_PER")


class Overdue(AssertionError):
    """What was waited for did not happen in time."""


def wait_for(condition: Callable[[], T | None], seconds: float, what: str) -> T:
    """Poll until `condition` returns something true, and return that. Raises Overdue after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Overdue(f"not within {seconds:g} s: {what}")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One array task (`task` None: a job that is no array) as squeue shows it, ended ones included."""

    job: int
    task: int | None
    state: str
    reason: str
    nodes: str
    name: str

    @property
    def is_live(self) -> bool:
        """Not ended; a COMPLETING task still holds its node and counts as live."""
        return self.state not in TERMINAL

    @property
    def is_pending(self) -> bool:
        return self.state == "PENDING"


class Cluster:
    """A running sandbox. `environ` is a clean environment for programs that use it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        clean = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        self.environ: dict[str, str] = {**clean, **sandbox.environ}

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of Slurm or of ours. Raises AssertionError with its words when it fails and `check` is set."""
        done = subprocess.run(
            [*argv],
            env={**self.environ, **(environ or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)[:300]} exited with {done.returncode}: {done.stderr or done.stdout}")
        return done

    # The queue

    def queue(self) -> tuple[QueueRow, ...]:
        """Every task that Slurm still lists, ended ones included, one row each."""
        out = self.run(["squeue", "-h", "-r", "-t", "all", "-o", "%F|%K|%T|%N|%j|%r"]).stdout
        return tuple(_parse_row(line) for line in out.splitlines() if line.strip())

    def live_rows(self) -> tuple[QueueRow, ...]:
        """The tasks that have not ended."""
        return tuple(row for row in self.queue() if row.is_live)

    def cancel(self, *specs: object) -> None:
        """scancel by id; what has ended already is no error."""
        if specs:
            self.run(["scancel", *(str(spec) for spec in specs)], check=False)

    # Nodes

    def node_states(self) -> dict[str, str]:
        """State of each node in sinfo's short words, e.g. `idle`, `allocated*`."""
        out = self.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout
        return dict(line.split() for line in out.splitlines() if line.strip())

    def job_processes(self) -> tuple[str, ...]:
        """Every process of any job that lives in any node, as one line each; the kernel is asked, not Slurm."""
        found = []
        for node in self.sandbox.node_names:
            for process in self._inside(node):
                title = " ".join(read_arguments(process.pid))
                if "SLURM_JOB_ID" in read_environment(process.pid) or title.startswith("slurmstepd"):
                    found.append(f"{node}: {describe(process)}")
        return tuple(found)

    def _inside(self, node: str) -> tuple[Process, ...]:
        place = find_place(self.sandbox.directory)
        state = read_state(place) if place else None
        assert isinstance(state, SandboxState), f"the record of the sandbox cannot be read: {state}"
        view = find_node(state, node)
        return view.inside if view else ()

    def assert_free(self, seconds: float = 30.0) -> None:
        """Every node idle, nothing queued, no process of any job left."""
        wait_for(lambda: not self.live_rows(), seconds, f"an empty queue; it has {self.live_rows()}")
        wait_for(
            lambda: set(self.node_states().values()) == {"idle"}, seconds, f"idle nodes; they are {self.node_states()}"
        )
        wait_for(lambda: not self.job_processes(), seconds, f"no process of a job; there are {self.job_processes()}")

    @contextmanager
    def occupied(self, nodes: Sequence[str]) -> Iterator[Mapping[str, Callable[[], None]]]:
        """Foreign jobs that hold whole nodes; yields by node the call that frees it. All are freed at the end."""
        jobs: dict[str, int] = {}
        try:
            for node in nodes:
                argv = ["sbatch", "--parsable", "--exclusive", f"--nodelist={node}", "--job-name=foreign"]
                out = self.run([*argv, "--output=/dev/null", "--wrap=sleep 3600"]).stdout
                jobs[node] = int(out.split(";")[0])
            wait_for(
                lambda: {row.job for row in self.queue() if row.state == "RUNNING"} >= set(jobs.values()),
                30,
                f"foreign jobs on {', '.join(nodes)}",
            )
            yield {node: partial(self.cancel, job) for node, job in jobs.items()}
        finally:
            self.cancel(*jobs.values())

    # Between tests

    def reset(self, seconds: float = 10.0) -> None:
        """End every job and bring every node back. Raises AssertionError or SandboxError when that fails."""
        self.sandbox.start_controller()
        self._cancel_everything()
        for node in self.sandbox.status().nodes:
            if node.faults:
                self.sandbox.heal_node(node.name)
            in_service = node.slurm_state is not None and node.slurm_state.rstrip("*") in _IN_SERVICE
            runs = node.machine is ProcessState.RUNNING and node.slurmd is ProcessState.RUNNING
            if not (runs and in_service) or "*" in (node.slurm_state or "*"):
                self.sandbox.revive_node(node.name)
            elif any(process.is_stopped for process in self._inside(node.name)):
                self.sandbox.thaw_node(node.name)
        # What was frozen, or on a node that was off, may have missed the first one.
        self._cancel_everything()
        self.assert_free(seconds)

    def _cancel_everything(self) -> None:
        self.cancel(*sorted({row.job for row in self.live_rows()}))

    def describe(self) -> str:
        """Queue and nodes, for a failed test."""
        try:
            queue = self.run(["squeue", "-r", "-t", "all", "-o", "%i %T %r %N %S %e"], check=False).stdout
            nodes = self.run(["sinfo", "-N", "-o", "%N %T %E"], check=False).stdout
        except subprocess.TimeoutExpired as error:
            return f"Slurm does not answer: {error}"
        return f"squeue:\n{queue}\nsinfo:\n{nodes}"


def _parse_row(line: str) -> QueueRow:
    job, task, state, nodes, name, reason = line.split("|", 5)
    return QueueRow(
        job=int(job), task=int(task) if task.isdigit() else None, state=state, reason=reason, nodes=nodes, name=name
    )


class ClusterPool:
    """The clusters of a test session, one per configuration, started when first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clusters: dict[SandboxConfig, Cluster] = {}
        self._started = 0

    def get(self, **options: int | bool) -> Cluster:
        """A cluster of this configuration with every node idle and nothing queued; a fresh one if the old is broken."""
        key = SandboxConfig(directory=self._directory, **_DEFAULTS | options)  # type: ignore[arg-type]
        found = self._clusters.get(key)
        if found is not None and self._is_usable(found):
            return found
        if found is not None:
            self._clusters.pop(key).sandbox.down(grace_seconds=0)
        self._clusters[key] = self._start(**_DEFAULTS | options)
        return self._clusters[key]

    def discard(self, cluster: Cluster) -> None:
        """End a cluster that a test broke."""
        self._clusters = {key: value for key, value in self._clusters.items() if value is not cluster}
        cluster.sandbox.down(grace_seconds=0)

    def close(self) -> None:
        """End all of them."""
        for cluster in self._clusters.values():
            cluster.sandbox.down(grace_seconds=0)
        self._clusters.clear()

    def _start(self, **options: int | bool) -> Cluster:
        self._started += 1
        config = SandboxConfig(directory=self._directory / f"sandbox{self._started}", **options)  # type: ignore[arg-type]
        return Cluster(Sandbox.up(config))

    def _is_usable(self, cluster: Cluster) -> bool:
        try:
            cluster.reset()
        except (AssertionError, SandboxError, subprocess.TimeoutExpired):
            return False
        return True


_DEFAULTS: dict[str, int | bool] = {"nodes": 8, "kill_wait_seconds": 30, "slurmd_timeout_seconds": 300}
"""Slurm's own defaults for both times: with shorter ones nothing would be proved about a real cluster."""
