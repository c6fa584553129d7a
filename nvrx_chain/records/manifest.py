"""`chain.json` and `submissions/`: what a chain is and which array jobs belong to it. Written at submit, then fixed.

Pure vocabulary; every default of a threshold stands here once.
"""

from __future__ import annotations

import enum

import msgspec

from nvrx_chain.records.control import Record


class LauncherKind(str, enum.Enum):
    """Who restarts the ranks inside an allocation."""

    NVRX = "nvrx"
    """`nvrx-chain launch`."""
    FT_LAUNCHER = "ft_launcher"
    TORCHRUN = "torchrun"
    COMMAND = "command"

    @property
    def is_fault_tolerant(self) -> bool:
        """Whether it joins spares, writes cycle records, knows segments, checks its nodes and judges progress."""
        return self in (LauncherKind.NVRX, LauncherKind.FT_LAUNCHER)


class OnDrain(str, enum.Enum):
    """What becomes of a task of which Slurm is asked to free a node."""

    REPORT = "report"
    """It is said, and nothing else happens."""
    EXCLUDE = "exclude"
    """At the next restart it takes no part, provided that a spare can take its place."""
    RESTART = "restart"
    """As soon as a spare can take its place its ranks are stopped."""


class CompletionKind(str, enum.Enum):
    """How a chain knows that training is finished."""

    DONE_FILE = "done_file"
    TARGET_ITERATION = "target_iteration"
    EXIT_ZERO = "exit_zero"
    TWO_QUIET_EXITS = "two_quiet_exits"


class ExportMode(str, enum.Enum):
    """What sbatch is told of the environment of the submit: hand all of it on, or nothing."""

    ALL = "ALL"
    NONE = "NONE"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one generation. A task is `nodes_per_task` whole nodes."""

    train_tasks: int
    hot_spares: int
    cold_spares: int
    nodes_per_task: int
    gpus_per_node: int
    procs_per_node: int
    segment: int | None = None

    @property
    def total(self) -> int:
        """Array elements: T + H + C."""
        return self.train_tasks + self.hot_spares + self.cold_spares

    @property
    def throttle(self) -> int:
        """Array elements that may run at once: T + H."""
        return self.train_tasks + self.hot_spares

    @property
    def min_nodes(self) -> int:
        """Nodes that train."""
        return self.train_tasks * self.nodes_per_task

    @property
    def max_nodes(self) -> int:
        """Nodes that may be joined at once; never less than what can be alive, or a spare closes the rendezvous."""
        return self.throttle * self.nodes_per_task

    @property
    def world_size(self) -> int:
        """Ranks that train. Spares never enlarge it."""
        return self.min_nodes * self.procs_per_node


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """The in-job launcher: `command` is a template of arguments for the kind `command`, empty otherwise.

    `arguments` are further options of the launcher's own.
    """

    kind: LauncherKind
    python: str
    max_restarts: int
    no_restart_exit_code: int = 93
    command: tuple[str, ...] = ()
    version: str | None = None
    arguments: tuple[str, ...] = ()


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The criterion of a finished training."""

    kind: CompletionKind
    done_file: str | None = None
    target_iteration: int | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """Where launchers run: an image, and all mounts, SRC:DST[:FLAGS] each."""

    image: str
    mounts: tuple[str, ...]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults on order: in `ranks` (none: in no rank) after `delay_seconds` of each cycle, and in nodes.

    `gpu_failures` are CYCLE:NODE; with `no_restart_demo` the launcher is shown an iteration that never grows.
    """

    ranks: tuple[int, ...] = ()
    delay_seconds: float = 60.0
    types: tuple[str, ...] = ()
    gpu_failures: tuple[str, ...] = ()
    no_restart_demo: bool = False


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Every duration that steers a generation, in seconds."""

    lease_interval: float = 5.0
    lease_timeout: float = 30.0
    self_fence: float = 20.0
    drain: float = 10.0
    control_poll: float = 1.0
    gate_timeout: float = 900.0
    fence_timeout: float = 600.0
    fence_margin: float = 15.0
    assemble_timeout: float = 0.0
    inquiry_turn: float = 3.0
    inquiry_quiet: float = 15.0
    probe: float = 45.0
    held_wait: float = 600.0
    brake: float = 300.0
    stuck: float = 1800.0
    walltime_warning: float = 180.0
    rendezvous_verdict: float = 60.0
    self_check: float = 30.0
    teardown: float = 120.0
    drain_poll: float = 60.0


class ChainManifest(Record, frozen=True, kw_only=True):
    """`chain.json`: the identity and the settings of a chain."""

    chain_id: str
    job_name: str
    user: str
    uid: int
    cluster: str | None
    run_directory: str
    submitted_at: str
    package_version: str
    interpreter: str
    shape: Shape
    chain_depth: int
    time_limit_seconds: int | None
    launcher: Launcher
    workload: tuple[str, ...]
    checkpoint_iteration_file: str
    completion: Completion
    thresholds: Thresholds = Thresholds()
    fence_stuck: bool = False
    prologue: str | None = None
    export: ExportMode = ExportMode.ALL
    exported: tuple[str, ...] = ()
    private_file: str | None = None
    container: Container | None = None
    on_drain: OnDrain = OnDrain.EXCLUDE
    faults: Faults | None = None
    workload_environment: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def excludes_drained(self) -> bool:
        """Whether a task is ever kept out for a drained node."""
        return self.thresholds.drain_poll > 0 and self.on_drain is not OnDrain.REPORT


class PrivateSettings(Record, frozen=True, kw_only=True):
    """`environment.json`, which only its owner can read: values, and command words that look like secrets.

    `workload` and `launcher_command` are the words in full where `chain.json` has some of them masked.
    """

    chain_id: str
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    workload: tuple[str, ...] | None = None
    launcher_command: tuple[str, ...] | None = None
    slurm_directory: str | None = None


class SubmissionIntent(Record, frozen=True, kw_only=True):
    """`submissions/<seq>.json`: written before sbatch runs, so that a lost reply can be resolved by its stamp."""

    chain_id: str
    sequence: int
    stamp: str
    argv: tuple[str, ...]
    intended_at: str


class SubmissionId(Record, frozen=True, kw_only=True):
    """`submissions/<seq>.id.json`: the array job that the intent became. `submitted_at` is Slurm's own time."""

    chain_id: str
    sequence: int
    array_job_id: int
    cluster: str | None
    submitted_at: str | None
    adopted: bool
    recorded_at: str
