"""Every option of `nvrx-chain submit`, once: flag, environment names, TOML key, default, type, help. Pure.

The click command, the reader of environment and file, `--show-config` and the docs test are all built from OPTIONS.
Longer than other modules because it is one table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from nvrx_chain.records.manifest import LauncherKind, OnDrain, Thresholds
from nvrx_chain.slurm.client_kind import SlurmClientKind

BUILT_IN_WORKLOADS = ("mock-gpt", "megatron-gpt")
DEFAULT_THRESHOLDS = Thresholds()


class Kind(enum.Enum):
    """How a value is written. WORDS and PAIRS may be given several times; in the environment they are shell words."""

    TEXT = "text"
    COUNT = "count"
    SECONDS = "seconds"
    SWITCH = "switch"
    WORDS = "words"
    PAIRS = "pairs"


class Section(enum.Enum):
    """Headings of the help page."""

    SHAPE = "Shape of a generation"
    CHAIN = "Chain"
    SITE = "What the site wants to know"
    PLACE = "Names and places"
    LAUNCH = "Launcher and workload"
    FINISH = "When is training finished"
    MEGATRON = "Megatron-LM (--workload megatron-gpt)"
    FAULTS = "Faults on order"
    CARE = "Care"
    CALL = "This call"


REQUIRED = object()
"""The meaning of an empty value for an option that has no "off"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `off` is what an explicitly empty value means, which is not the default; REQUIRED refuses it."""

    key: str
    kind: Kind
    section: Section
    help: str
    default: Any = None
    off: Any = None
    metavar: str | None = None
    minimum: int = 0
    choices: tuple[str, ...] = ()
    established: tuple[str, ...] = ()
    negatable: bool = False
    in_file: bool = True
    positional: bool = False

    @property
    def parameter(self) -> str:
        """The name under which click hands the value over."""
        return self.key.replace("-", "_")

    @property
    def flag(self) -> str:
        """How people name it in messages."""
        return "the words after --" if self.positional else f"--{self.key}"

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables that set it: NVRX_<OPTION>, then the established names."""
        if self.positional:
            return ()
        return (f"NVRX_{self.parameter.upper()}", *self.established)


def _count(key: str, section: Section, text: str, **more: Any) -> Option:
    return Option(key=key, kind=Kind.COUNT, section=section, help=text, metavar="N", **more)


def _text(key: str, section: Section, text: str, metavar: str, **more: Any) -> Option:
    return Option(key=key, kind=Kind.TEXT, section=section, help=text, metavar=metavar, **more)


def _switch(key: str, section: Section, text: str, **more: Any) -> Option:
    return Option(key=key, kind=Kind.SWITCH, section=section, help=text, **{"default": False, "off": False, **more})


OPTIONS: tuple[Option, ...] = (
    _count("train-tasks", Section.SHAPE, "Array tasks that train.", minimum=1, off=REQUIRED),
    _count(
        "hot-spares",
        Section.SHAPE,
        "Array tasks that run and wait, ready to take over from a training task within seconds.",
        default=0,
        off=0,
    ),
    _count(
        "cold-spares",
        Section.SHAPE,
        "Array tasks that stay queued and start when a running one has died.",
        default=0,
        off=0,
    ),
    _count(
        "nodes-per-task",
        Section.SHAPE,
        "Whole nodes of one array task.",
        default=1,
        off=REQUIRED,
        minimum=1,
        established=("NODES_PER_TASK",),
    ),
    _count(
        "gpus-per-node",
        Section.SHAPE,
        "GPUs to ask for on each node; 0 asks for none.",
        default=0,
        off=0,
        established=("GPUS_PER_NODE",),
    ),
    _count(
        "procs-per-node",
        Section.SHAPE,
        "Ranks on each node. Without it one per GPU, or one.",
        minimum=1,
    ),
    _count(
        "segment",
        Section.SHAPE,
        "Nodes of one NVLink domain that the launcher keeps together (--ft-segment of ft_launcher).",
        minimum=1,
    ),
    _switch(
        "exclusive",
        Section.SHAPE,
        "Ask for whole nodes. Two tasks of one array on one node collide.",
        default=True,
        negatable=True,
    ),
    _count(
        "chain-depth",
        Section.CHAIN,
        "Generations queued at once; each takes over where the one before it ended.",
        default=3,
        off=REQUIRED,
        minimum=1,
    ),
    _text(
        "time-limit",
        Section.CHAIN,
        "Time limit of each generation, as sbatch writes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.",
        "TIME",
    ),
    _count(
        "after",
        Section.CHAIN,
        "Let the first generation wait until this job has ended, however it ends.",
        minimum=1,
    ),
    Option(
        key="walltime-warning",
        kind=Kind.SECONDS,
        section=Section.CHAIN,
        help="How long before the time limit the workload is told to save. With a limit shorter than twice this,"
        " a quarter of the limit.",
        default=DEFAULT_THRESHOLDS.walltime_warning,
        off=REQUIRED,
        metavar="SECONDS",
    ),
    _text("partition", Section.SITE, "Partition to submit to; without it the cluster's default.", "NAME"),
    _text("account", Section.SITE, "Account to charge; without it your default.", "NAME"),
    _text("qos", Section.SITE, "Quality of service; without it your default.", "NAME"),
    _text("constraint", Section.SITE, "Features that every node must have, as sbatch writes them: h100&nvme.", "LIST"),
    _text("reservation", Section.SITE, "Run in this reservation.", "NAME"),
    _text("exclude", Section.SITE, "Nodes to keep away from: n[01-04,07].", "NODES"),
    _text("gres", Section.SITE, "Further generic resources of each node: nvme:1. GPUs go by --gpus-per-node.", "LIST"),
    _text("mem", Section.SITE, "Memory of each node, such as 900G; 0 takes all of it.", "SIZE"),
    _count("cpus-per-task", Section.SITE, "Cores for the launcher of each node and its ranks.", minimum=1),
    _text(
        "export",
        Section.SITE,
        "Variables for the job, as sbatch writes them: NONE, ALL, or [ALL,]NAME[=VALUE],... Values are read now, kept"
        " in a file that only you can read, and never stand in sbatch's command line.",
        "LIST",
    ),
    _text("mail-type", Section.SITE, "When Slurm sends mail: END,FAIL and the like, for each generation.", "TYPES"),
    _text("mail-user", Section.SITE, "To whom; without it to you.", "ADDRESS"),
    Option(
        key="sbatch-arg",
        kind=Kind.WORDS,
        section=Section.SITE,
        help="A further option for sbatch, as one word: --sbatch-arg=--nice=100. May be repeated. Options that"
        " would break the chain are refused.",
        default=(),
        off=(),
        metavar="ARG",
    ),
    _text(
        "name",
        Section.PLACE,
        "Job name of the chain. Without it one is made up.",
        "NAME",
        established=("NVRX_JOB_NAME",),
    ),
    _text(
        "run-dir",
        Section.PLACE,
        "Directory of the chain, on a file system that every node sees. Without it ./nvrx-chains/<name>.",
        "DIR",
        established=("NVRX_WORK_DIR",),
    ),
    _switch(
        "allow-local-run-dir",
        Section.PLACE,
        "Accept a run directory, interpreter or workload that looks as if only this machine could see it.",
    ),
    _text(
        "launcher",
        Section.LAUNCH,
        "Who restarts the ranks inside a generation.",
        "|".join(kind.value for kind in LauncherKind),
        default=LauncherKind.TORCHRUN.value,
        off=REQUIRED,
        choices=tuple(kind.value for kind in LauncherKind),
    ),
    _text(
        "launcher-command",
        Section.LAUNCH,
        "With --launcher command: the command of one node as shell words, with {host} {port} {nnodes} {min_nodes}"
        " {max_nodes} {nproc} {node_rank} {job_id} {run_dir} {workload} filled in.",
        "TEMPLATE",
    ),
    _text(
        "python",
        Section.LAUNCH,
        "Interpreter that runs launcher and workload. Without it the one that runs nvrx-chain.",
        "PATH",
    ),
    _text(
        "prologue",
        Section.LAUNCH,
        "Bash script that each node sources before its launcher: modules, a virtual environment, NCCL_*. It is copied"
        " into the run directory, and its last command has to succeed.",
        "FILE",
    ),
    _text(
        "container-image",
        Section.LAUNCH,
        "Run the launchers in this container, by pyxis: an image of a registry, or the path of a file.",
        "IMAGE",
    ),
    _text(
        "container-mounts",
        Section.LAUNCH,
        "What of the nodes the container sees: SRC[:DST[:FLAGS]],... Without it the directories of the workload and its"
        " checkpoints; empty for none of these. The run directory and nvrx-chain itself are always mounted.",
        "LIST",
    ),
    _count(
        "max-restarts",
        Section.LAUNCH,
        "Restarts of the ranks inside one generation before it hands off.",
        default=5,
        off=0,
    ),
    _count(
        "no-restart-exit-code",
        Section.LAUNCH,
        "Exit code by which the launcher says that a restart is useless.",
        default=93,
        off=REQUIRED,
    ),
    _text(
        "workload",
        Section.LAUNCH,
        "A built-in workload; words after -- are then its arguments.",
        "|".join(BUILT_IN_WORKLOADS),
        choices=BUILT_IN_WORKLOADS,
    ),
    Option(
        key="command",
        kind=Kind.WORDS,
        section=Section.LAUNCH,
        help="The workload: a Python script, `python -m MODULE` or any program, and its arguments.",
        default=(),
        off=(),
        metavar="[-- COMMAND...]",
        positional=True,
    ),
    _text(
        "checkpoint-iteration-file",
        Section.LAUNCH,
        "File that holds the iteration of the last checkpoint. Relative to the run directory; without it"
        " checkpoints/latest_checkpointed_iteration.txt.",
        "FILE",
    ),
    _text(
        "done-file",
        Section.FINISH,
        "Finished when this file is there. Relative to the run directory.",
        "FILE",
    ),
    _count("target-iteration", Section.FINISH, "Finished when a checkpoint has this iteration.", minimum=1),
    _switch("complete-on-exit-zero", Section.FINISH, "Finished when the launcher exits 0 and was not told to stop."),
    _text(
        "megatron-path",
        Section.MEGATRON,
        "Checkout of Megatron-LM, the directory of pretrain_gpt.py; inside of the container when there is one.",
        "DIR",
        established=("MEGATRON_PATH",),
    ),
    _text(
        "model-profile",
        Section.MEGATRON,
        "Size of the model: 125 million weights, or eight billion.",
        "small|8b",
        default="small",
        off=REQUIRED,
        choices=("small", "8b"),
    ),
    *(
        _count(key, Section.MEGATRON, text, minimum=1, established=(established,) if established else ())
        for key, text, established in (
            ("micro-batch-size", "Samples of a rank at once; without it 1.", "MICRO_BATCH_SIZE"),
            ("global-batch-size", "Samples of a step; without it what fits the world.", "GLOBAL_BATCH_SIZE"),
            ("tensor-parallel", "Ranks that share each layer; without it 1.", "TENSOR_PARALLEL"),
            ("pipeline-parallel", "Ranks that share the layers; without it 1.", "PIPELINE_PARALLEL"),
            ("context-parallel", "Ranks that share a sequence; without it 1.", None),
            ("train-samples", "Samples to train, where no iteration is the target.", "TRAIN_SAMPLES"),
            ("save-interval", "Iterations between checkpoints; without it 50, or 200 with 8b.", "SAVE_INTERVAL"),
            ("save-retain-interval", "Keep every Nth iteration; without it each 10th save.", "SAVE_RETAIN_INTERVAL"),
            ("exit-duration-in-mins", "Save and leave after so many minutes of a cycle.", "EXIT_DURATION_IN_MINS"),
        )
    ),
    _text(
        "section-timeouts",
        Section.MEGATRON,
        "With ft_launcher: after how many seconds of a section a rank hangs. Without it"
        " setup:900,step:120,checkpointing:600,out-of-section:300.",
        "SECTION:SECONDS,...",
    ),
    _switch(
        "fault-inject", Section.FAULTS, "Let ranks of mock-gpt or megatron-gpt fail in every cycle.", negatable=True
    ),
    _text("fault-ranks", Section.FAULTS, "Which: 0,3. Without it rank 2, or the last one.", "RANKS"),
    Option(
        key="fault-delay",
        kind=Kind.SECONDS,
        section=Section.FAULTS,
        help="How long after the start of training in each cycle.",
        default=60.0,
        off=60.0,
        metavar="SECONDS",
    ),
    _text(
        "fault-types",
        Section.FAULTS,
        "How: types of NVRx's fault injector; of several, one each cycle.",
        "TYPES",
        default="async_exc",
        off="async_exc",
    ),
    _text(
        "inject-gpu-failure",
        Section.FAULTS,
        "Nodes that fail their health check: 1:0,2:0. A node is its array task x nodes per task + its place there.",
        "CYCLE:NODE,...",
    ),
    _switch(
        "no-restart-demo",
        Section.FAULTS,
        "Show ft_launcher an iteration that never grows: after the fault it says that a restart is useless.",
    ),
    _count(
        "max-no-progress-cycles",
        Section.FAULTS,
        "With ft_launcher: cycles without a new checkpoint before it says that a restart is useless; without it"
        " its own 3, or 1 with --no-restart-demo.",
        minimum=1,
    ),
    Option(
        key="threshold",
        kind=Kind.PAIRS,
        section=Section.CARE,
        help="A duration that steers a generation, for example drain=20 or lease_timeout=60. May be repeated.",
        default=(),
        off=(),
        metavar="NAME=SECONDS",
    ),
    Option(
        key="drain-poll",
        kind=Kind.SECONDS,
        section=Section.CARE,
        help="How often Slurm is asked whether nodes of the generation are drained; 0 for never.",
        default=DEFAULT_THRESHOLDS.drain_poll,
        off=0.0,
        metavar="SECONDS",
    ),
    _text(
        "on-drain",
        Section.CARE,
        "A task on a drained node: report it, exclude it at the next restart when a spare can take its place, or"
        " restart for it as soon as one can.",
        "|".join(word.value for word in OnDrain),
        default=OnDrain.EXCLUDE.value,
        off=REQUIRED,
        choices=tuple(word.value for word in OnDrain),
    ),
    _switch("rollback", Section.CARE, "When a generation is rejected, cancel those that this call has queued."),
    _switch("resume", Section.CARE, "Start a new chain in the directory of one that has ended.", in_file=False),
    _text(
        "config",
        Section.CALL,
        "Read settings from this file. Without it nvrx-chain.toml of the current directory, when it is there.",
        "FILE.toml",
        in_file=False,
    ),
    _switch("show-config", Section.CALL, "Print each setting with its origin, and stop.", in_file=False),
    _text(
        "slurm-client",
        Section.CALL,
        "How this call asks Slurm: by its programs, or through PySlurm.",
        "command|pyslurm",
        default=SlurmClientKind.COMMAND.value,
        off=SlurmClientKind.COMMAND.value,
        choices=tuple(kind.value for kind in SlurmClientKind),
        in_file=False,
    ),
    _switch("dry-run", Section.CALL, "Print what would be submitted; queue and write nothing.", in_file=False),
    _switch("json", Section.CALL, "Print data instead of text.", in_file=False),
    _switch("parsable", Section.CALL, "Print a line per generation, JOBID or JOBID;CLUSTER.", in_file=False),
)
