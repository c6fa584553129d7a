"""What a sandbox asks of its own Slurm, by the client programs with an environment made from nothing.

It differs from nvrx_chain.slurm in what it may do: it acts on every job and on nodes, which a chain never does.
Touches: child processes with time limits; the sandbox's slurmctld.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.programs import run

# A client needs 10 s to give up on a controller that is dead or stopped, and scontrol asks twice.
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A sandbox's slurmctld as its clients see it."""

    programs: Mapping[str, str]
    environ: Mapping[str, str]

    def is_up(self) -> bool:
        """Whether slurmctld answers a ping."""
        try:
            return " is UP" in self._ask("asking for the controller", "scontrol", "ping")
        except SandboxError:
            # `scontrol ping` exits 1 for a controller that is down: that is the answer.
            return False

    def node_states(self, *, timeout_seconds: float = ANSWER_SECONDS) -> dict[str, str]:
        """Node name -> state as sinfo prints it (`idle`, `allocated*`). Raises SandboxError without an answer."""
        text = self._ask("asking for nodes", "sinfo", "-h", "-N", "-o", "%N|%T", timeout_seconds=timeout_seconds)
        return dict(line.split("|", 1) for line in text.splitlines() if "|" in line)

    def node_fields(self, node: str) -> dict[str, str]:
        """The words of `scontrol show node` that have the form Key=value."""
        text = self._ask(f"asking for node {node}", "scontrol", "-o", "show", "node", node)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def update_node(self, node: str, **changes: str) -> None:
        """`scontrol update nodename=NODE key=value...`. Raises SandboxError when Slurm refuses."""
        words = [f"{key}={value}" for key, value in changes.items()]
        self._ask(f"updating node {node}", "scontrol", "update", f"nodename={node}", *words)

    def live_jobs(self, *, timeout_seconds: float = ANSWER_SECONDS) -> tuple[str, ...]:
        """Every job or array task that is queued, running or completing, of all users, as squeue's `%i`."""
        text = self._ask("reading the queue", "squeue", "-h", "-a", "-r", "-o", "%i", timeout_seconds=timeout_seconds)
        return tuple(text.split())

    def cancel_everything(self, *, timeout_seconds: float = ANSWER_SECONDS) -> None:
        """scancel every job of everybody: what waits first, or it would start on the nodes that become free."""
        for state in ("PENDING", "RUNNING", "SUSPENDED"):
            self._ask("cancelling all jobs", "scancel", f"--state={state}", timeout_seconds=timeout_seconds)

    def _ask(self, doing: str, program: str, *arguments: str, timeout_seconds: float = ANSWER_SECONDS) -> str:
        argv = (self.programs[program], *arguments)
        return run(argv, environ=self.environ, timeout_seconds=timeout_seconds, doing=doing)
