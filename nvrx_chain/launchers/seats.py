"""What a launcher needs to know about its place in the generation, and what a chain must know about a launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nvrx_chain.records.manifest import Faults, Launcher, LauncherKind, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One node's place: where to meet, as whom, and where the generation's files are (absolute paths)."""

    array_job_id: int
    array_task_id: int
    node_index: int
    node: str
    rendezvous_host: str
    rendezvous_port: int
    nonce: str
    node_rank: int
    cycle_info_dir: str
    timeline_dir: str
    application_log: str
    run_directory: str
    checkpoint_iteration_file: str
    secret: str = ""
    """Proves a launcher to the others of its generation; from the rendezvous file, which nobody else can read."""
    segment_health_dir: str | None = None
    """Where NVRx's segment health check finds who is to be kept out; None when nobody ever is."""

    @property
    def is_host(self) -> bool:
        """Whether this node hosts the rendezvous store: the first node of array task 0."""
        return self.array_task_id == 0 and self.node_index == 0

    @property
    def run_id(self) -> str:
        """Namespace of the rendezvous store; new for every start, so that two starts can never mix."""
        return f"{self.array_job_id}-{self.nonce}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What to start on one node: the words of the command and what its environment adds."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def with_defaults(plan: LaunchPlan, defaults: Mapping[str, str], environ: Mapping[str, str]) -> LaunchPlan:
    """The plan with what the workload wants in its environment, where the job's own environment does not say it."""
    wanted = {name: value for name, value in defaults.items() if name not in environ}
    return replace(plan, environment={**wanted, **plan.environment})


def takes_hot_spares(kind: LauncherKind) -> bool:
    """Whether spares wait inside the rendezvous. With the others they wait at our gate and take over a free seat."""
    return kind.is_fault_tolerant


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """All that a launcher module turns into a plan."""

    launcher: Launcher
    shape: Shape
    workload: tuple[str, ...]
    seat: Seat
    faults: Faults | None = None
