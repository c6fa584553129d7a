"""Several launchers of one job on this host, as plain processes, for the tests of the launcher and its benchmark.

A node is one `nvrx-chain launch` process with what it started. Everything is waited for with a deadline; nothing is
left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[3]
RANK = Path(__file__).with_name("rank.py")
PATIENCE_SECONDS = 90.0
LOOK_SECONDS = 0.01
DYING_SECONDS = 5.0


def free_port() -> int:
    """A port of this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended may wait for init to be taken."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(slots=True)
class LaunchedNode:
    """One launcher of the job."""

    index: int
    process: subprocess.Popen[bytes]
    log: Path
    ended_at: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def processes(self) -> list[int]:
        """It and everything below it."""
        try:
            below = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [self.pid, *(process.pid for process in below)]

    def kill(self) -> None:
        """Power it off: everything at once."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(slots=True)
class Crew:
    """The launchers of one job. `nodes` by index; 0 hosts."""

    directory: Path
    nnodes: str = "1:1"
    ranks: int = 1
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    launcher: str = "nvrx"
    """`nvrx`, or for comparison `torchrun` or `ft_launcher`, which lies with `python`."""
    port: int = field(default_factory=free_port)
    nodes: dict[int, LaunchedNode] = field(default_factory=dict)

    def start(self, *indexes: int) -> None:
        """Start the launchers of these nodes."""
        for index in indexes:
            self.nodes[index] = self._start(index)

    def _start(self, index: int) -> LaunchedNode:
        log = self.directory / f"launcher.{index}.log"
        argv = [*self._launcher(index), *self.options, *(self.command or (str(RANK), str(self.directory)))]
        environment = {
            **os.environ,
            "SLURM_PROCID": str(index),
            "NODE": str(index),
            "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1",
            "NVRX_CHAIN_LAUNCH_SECRET": "the secret of this test",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **self._peer_environment(index),
            **self.environment,
        }
        environment.pop("SLURM_JOB_ID", None)
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        return LaunchedNode(index=index, process=process, log=log)

    def _launcher(self, index: int) -> tuple[str, ...]:
        """The words of a launcher that all kinds have in common."""
        module = {
            "nvrx": ("nvrx_chain", "launch"),
            "torchrun": ("torch.distributed.run", "--rdzv-backend=c10d"),
            "ft_launcher": ("nvidia_resiliency_ext.fault_tolerance.launcher", "--rdzv-backend=c10d"),
        }
        return (
            *(self.python, "-m", *module[self.launcher]),
            *("--nnodes", self.nnodes, "--nproc-per-node", str(self.ranks)),
            *("--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", self.directory.name),
            *("--rdzv-conf", f"is_host={int(index == 0)}", "--local-addr", "127.0.0.1"),
        )

    def _peer_environment(self, index: int) -> dict[str, str]:
        """What the other launchers need to be at their best, and to live beside each other on one host."""
        if self.launcher == "nvrx":
            return {}
        own = self.directory / f"t{index}"
        own.mkdir(exist_ok=True)
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TMPDIR": str(own)}

    def events(self, what: str | None = None, *, round_number: int | None = None) -> list[dict[str, Any]]:
        """What the ranks told, in the order of their clocks."""
        found: list[dict[str, Any]] = []
        for path in self.directory.glob("events.*"):
            for line in path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # the last line of one that was killed
                    found.append(json.loads(line))
        found.sort(key=lambda event: float(event["at"]))
        return [event for event in found if what in (None, event["what"]) and round_number in (None, event["round"])]

    def until(self, holds: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for a condition. Raises AssertionError with the launchers' logs when it does not come."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds:g} s\n{self.describe()}")
            time.sleep(LOOK_SECONDS)

    def until_stepping(self, round_number: int, ranks: int, at_least: int = 1) -> float:
        """Wait until all ranks of a round have made steps; when the last of them made its first one."""

        def firsts() -> list[dict[str, Any]]:
            steps = self.events("step", round_number=round_number)
            return [event for event in steps if event["number"] == at_least]

        self.until(lambda: len(firsts()) >= ranks, f"{ranks} ranks step in round {round_number}")
        return max(float(event["at"]) for event in firsts())

    def until_parked(self, index: int, count: int | None = None) -> None:
        """Wait until a node has all its workers parked and warm."""
        wanted = self.ranks if count is None else count
        self.until(lambda: self.parked(index) >= wanted, f"node {index} has {wanted} parked workers")

    def parked(self, index: int) -> int:
        """Parked workers of a node that have done their imports, as its log has it since it started ranks last."""
        return self.nodes[index].log.read_text().rpartition("workers started")[2].count("a worker is parked")

    def rank_pid(self, rank: int, round_number: int) -> int:
        """The process of a rank."""
        born = [event for event in self.events("born", round_number=round_number) if event["rank"] == rank]
        return int(born[-1]["pid"])

    def node_of(self, rank: int, round_number: int) -> int:
        """The node on which a rank runs."""
        born = [event for event in self.events("born", round_number=round_number) if event["rank"] == rank]
        return int(born[-1]["node"])

    def order(self, rank: int, **words: object) -> None:
        """Tell a rank what to do at its next step."""
        path = self.directory / f"orders.{rank}"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(words))
        temporary.replace(path)

    def finish(self) -> None:
        """Let all ranks end well at their next step."""
        (self.directory / "finish").touch()

    def wait(self, *indexes: int, seconds: float = PATIENCE_SECONDS) -> list[int]:
        """The exit codes of these launchers, once they have ended."""
        deadline = time.monotonic() + seconds
        for index in indexes or tuple(self.nodes):
            node = self.nodes[index]
            try:
                node.process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise AssertionError(f"node {index} has not ended in {seconds:g} s\n{self.describe()}") from error
            node.ended_at = node.ended_at or time.time()
        return [int(self.nodes[index].process.returncode) for index in indexes or tuple(self.nodes)]

    def describe(self) -> str:
        """All logs, for a failed test."""
        logs = [f"--- {node.log.name}\n{node.log.read_text()[-3000:]}" for node in self.nodes.values()]
        return "\n".join(logs)

    def close(self) -> list[int]:
        """Kill what is left; the processes of ended launchers that were still there."""
        left = []
        for node in self.nodes.values():
            node.kill()
            node.process.wait(10)
        deadline = time.monotonic() + DYING_SECONDS
        for pid in {int(event["pid"]) for event in self.events("born")}:
            # One that was killed takes a moment to give back its memory.
            while is_alive(pid) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
            if is_alive(pid):
                left.append(pid)
                os.kill(pid, signal.SIGKILL)
        return left


def await_end(pid: int, seconds: float) -> float:
    """When a process ended. Raises AssertionError when it did not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return time.time()
    try:
        assert select.select([descriptor], [], [], seconds)[0], f"process {pid} lives on after {seconds:g} s"
        return time.time()
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def crew(directory: Path, **options: Any) -> Iterator[Crew]:
    """A crew that leaves nothing behind, and fails when its launchers did."""
    found = Crew(directory=directory, **options)
    try:
        yield found
    except BaseException:
        found.close()
        raise
    left = found.close()
    assert not left, f"processes were left behind: {left}"
