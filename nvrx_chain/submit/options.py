"""Every option of `nvrx-chain submit`, once: flag, environment names, TOML key, default, type, help. Pure.

The click command, the reader of environment and file, `--show-config` and the docs test are all built from OPTIONS.
The options of launcher, workload and faults are in training_options.py.
"""

from __future__ import annotations

from nvrx_chain.records.manifest import OnDrain, Thresholds
from nvrx_chain.slurm.client_kind import SlurmClientKind
from nvrx_chain.submit.option import REQUIRED, Kind, Option, Section, count_option, switch_option, text_option
from nvrx_chain.submit.training_options import TRAINING_OPTIONS

DEFAULT_THRESHOLDS = Thresholds()

OPTIONS: tuple[Option, ...] = (
    count_option("train-tasks", Section.SHAPE, "Array tasks that train.", minimum=1, off=REQUIRED),
    count_option(
        "hot-spares",
        Section.SHAPE,
        "Array tasks that run and wait, ready to take over from a training task within seconds.",
        default=0,
        off=0,
    ),
    count_option(
        "cold-spares",
        Section.SHAPE,
        "Array tasks that stay queued and start when a running one has died.",
        default=0,
        off=0,
    ),
    count_option(
        "nodes-per-task",
        Section.SHAPE,
        "Whole nodes of one array task.",
        default=1,
        off=REQUIRED,
        minimum=1,
        established=("NODES_PER_TASK",),
    ),
    count_option(
        "gpus-per-node",
        Section.SHAPE,
        "GPUs to ask for on each node; 0 asks for none.",
        default=0,
        off=0,
        established=("GPUS_PER_NODE",),
    ),
    count_option(
        "procs-per-node",
        Section.SHAPE,
        "Ranks on each node. Without it one per GPU, or one.",
        minimum=1,
    ),
    count_option(
        "segment",
        Section.SHAPE,
        "Nodes of one NVLink domain that the launcher keeps together (--ft-segment of ft_launcher).",
        minimum=1,
    ),
    switch_option(
        "exclusive",
        Section.SHAPE,
        "Ask for whole nodes. Two tasks of one array on one node collide.",
        default=True,
        negatable=True,
    ),
    count_option(
        "chain-depth",
        Section.CHAIN,
        "Generations queued at once; each takes over where the one before it ended.",
        default=3,
        off=REQUIRED,
        minimum=1,
    ),
    text_option(
        "time-limit",
        Section.CHAIN,
        "Time limit of each generation, as sbatch writes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.",
        "TIME",
    ),
    count_option(
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
    text_option("partition", Section.SITE, "Partition to submit to; without it the cluster's default.", "NAME"),
    text_option("account", Section.SITE, "Account to charge; without it your default.", "NAME"),
    text_option("qos", Section.SITE, "Quality of service; without it your default.", "NAME"),
    text_option(
        "constraint", Section.SITE, "Features that every node must have, as sbatch writes them: h100&nvme.", "LIST"
    ),
    text_option("reservation", Section.SITE, "Run in this reservation.", "NAME"),
    text_option("exclude", Section.SITE, "Nodes to keep away from: n[01-04,07].", "NODES"),
    text_option(
        "gres", Section.SITE, "Further generic resources of each node: nvme:1. GPUs go by --gpus-per-node.", "LIST"
    ),
    text_option("mem", Section.SITE, "Memory of each node, such as 900G; 0 takes all of it.", "SIZE"),
    count_option("cpus-per-task", Section.SITE, "Cores for the launcher of each node and its ranks.", minimum=1),
    text_option(
        "export",
        Section.SITE,
        "Variables for the job, as sbatch writes them: NONE, ALL, or [ALL,]NAME[=VALUE],... Values are read now, kept"
        " in a file that only you can read, and never stand in sbatch's command line.",
        "LIST",
    ),
    text_option(
        "mail-type", Section.SITE, "When Slurm sends mail: END,FAIL and the like, for each generation.", "TYPES"
    ),
    text_option("mail-user", Section.SITE, "To whom; without it to you.", "ADDRESS"),
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
    text_option(
        "name",
        Section.PLACE,
        "Job name of the chain. Without it one is made up.",
        "NAME",
        established=("NVRX_JOB_NAME",),
    ),
    text_option(
        "run-dir",
        Section.PLACE,
        "Directory of the chain, on a file system that every node sees. Without it ./nvrx-chains/<name>.",
        "DIR",
        established=("NVRX_WORK_DIR",),
    ),
    switch_option(
        "allow-local-run-dir",
        Section.PLACE,
        "Accept a run directory, interpreter or workload that looks as if only this machine could see it.",
    ),
    *TRAINING_OPTIONS,
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
    text_option(
        "on-drain",
        Section.CARE,
        "A task on a drained node: report it, exclude it at the next restart when a spare can take its place, or"
        " restart for it as soon as one can.",
        "|".join(word.value for word in OnDrain),
        default=OnDrain.EXCLUDE.value,
        off=REQUIRED,
        choices=tuple(word.value for word in OnDrain),
    ),
    switch_option("rollback", Section.CARE, "When a generation is rejected, cancel those that this call has queued."),
    switch_option("resume", Section.CARE, "Start a new chain in the directory of one that has ended.", in_file=False),
    text_option(
        "config",
        Section.CALL,
        "Read settings from this file. Without it nvrx-chain.toml of the current directory, when it is there.",
        "FILE.toml",
        in_file=False,
    ),
    switch_option("show-config", Section.CALL, "Print each setting with its origin, and stop.", in_file=False),
    text_option(
        "slurm-client",
        Section.CALL,
        "How this call asks Slurm: by its programs, or through PySlurm.",
        "command|pyslurm",
        default=SlurmClientKind.COMMAND.value,
        off=SlurmClientKind.COMMAND.value,
        choices=tuple(kind.value for kind in SlurmClientKind),
        in_file=False,
    ),
    switch_option("dry-run", Section.CALL, "Print what would be submitted; queue and write nothing.", in_file=False),
    switch_option("json", Section.CALL, "Print data instead of text.", in_file=False),
    switch_option("parsable", Section.CALL, "Print a line per generation, JOBID or JOBID;CLUSTER.", in_file=False),
)
