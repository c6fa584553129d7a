"""The options of `nvrx-chain submit` that say what trains: launcher, workload, criterion, Megatron-LM, faults. Pure."""

from __future__ import annotations

from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.submit.option import REQUIRED, Kind, Option, Section, count_option, switch_option, text_option

BUILT_IN_WORKLOADS = ("mock-gpt", "megatron-gpt")

TRAINING_OPTIONS: tuple[Option, ...] = (
    text_option(
        "launcher",
        Section.LAUNCH,
        "Who restarts the ranks inside a generation.",
        "|".join(kind.value for kind in LauncherKind),
        default=LauncherKind.TORCHRUN.value,
        off=REQUIRED,
        choices=tuple(kind.value for kind in LauncherKind),
    ),
    text_option(
        "launcher-command",
        Section.LAUNCH,
        "With --launcher command: the command of one node as shell words, with {host} {port} {nnodes} {min_nodes}"
        " {max_nodes} {nproc} {node_rank} {job_id} {run_dir} {workload} filled in.",
        "TEMPLATE",
    ),
    text_option(
        "python",
        Section.LAUNCH,
        "Interpreter that runs launcher and workload. Without it the one that runs nvrx-chain.",
        "PATH",
    ),
    text_option(
        "prologue",
        Section.LAUNCH,
        "Bash script that each node sources before its launcher: modules, a virtual environment, NCCL_*. It is copied"
        " into the run directory, and its last command has to succeed.",
        "FILE",
    ),
    text_option(
        "container-image",
        Section.LAUNCH,
        "Run the launchers in this container, by pyxis: an image of a registry, or the path of a file.",
        "IMAGE",
    ),
    text_option(
        "container-mounts",
        Section.LAUNCH,
        "What of the nodes the container sees: SRC[:DST[:FLAGS]],... Without it the directories of the workload and its"
        " checkpoints; empty for none of these. The run directory and nvrx-chain itself are always mounted.",
        "LIST",
    ),
    count_option(
        "max-restarts",
        Section.LAUNCH,
        "Restarts of the ranks inside one generation before it hands off.",
        default=5,
        off=0,
    ),
    count_option(
        "no-restart-exit-code",
        Section.LAUNCH,
        "Exit code by which the launcher says that a restart is useless.",
        default=93,
        off=REQUIRED,
    ),
    text_option(
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
    text_option(
        "checkpoint-iteration-file",
        Section.LAUNCH,
        "File that holds the iteration of the last checkpoint. Relative to the run directory; without it"
        " checkpoints/latest_checkpointed_iteration.txt.",
        "FILE",
    ),
    text_option(
        "done-file",
        Section.FINISH,
        "Finished when this file is there. Relative to the run directory.",
        "FILE",
    ),
    count_option("target-iteration", Section.FINISH, "Finished when a checkpoint has this iteration.", minimum=1),
    switch_option(
        "complete-on-exit-zero", Section.FINISH, "Finished when the launcher exits 0 and was not told to stop."
    ),
    text_option(
        "megatron-path",
        Section.MEGATRON,
        "Checkout of Megatron-LM, the directory of pretrain_gpt.py; inside of the container when there is one.",
        "DIR",
        established=("MEGATRON_PATH",),
    ),
    text_option(
        "model-profile",
        Section.MEGATRON,
        "Size of the model: 125 million weights, or eight billion.",
        "small|8b",
        default="small",
        off=REQUIRED,
        choices=("small", "8b"),
    ),
    *(
        count_option(key, Section.MEGATRON, text, minimum=1, established=(established,) if established else ())
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
    text_option(
        "section-timeouts",
        Section.MEGATRON,
        "With ft_launcher: after how many seconds of a section a rank hangs. Without it"
        " setup:900,step:120,checkpointing:600,out-of-section:300.",
        "SECTION:SECONDS,...",
    ),
    switch_option(
        "fault-inject", Section.FAULTS, "Let ranks of mock-gpt or megatron-gpt fail in every cycle.", negatable=True
    ),
    text_option("fault-ranks", Section.FAULTS, "Which: 0,3. Without it rank 2, or the last one.", "RANKS"),
    Option(
        key="fault-delay",
        kind=Kind.SECONDS,
        section=Section.FAULTS,
        help="How long after the start of training in each cycle.",
        default=60.0,
        off=60.0,
        metavar="SECONDS",
    ),
    text_option(
        "fault-types",
        Section.FAULTS,
        "How: types of NVRx's fault injector; of several, one each cycle.",
        "TYPES",
        default="async_exc",
        off="async_exc",
    ),
    text_option(
        "inject-gpu-failure",
        Section.FAULTS,
        "Nodes that fail their health check: 1:0,2:0. A node is its array task x nodes per task + its place there.",
        "CYCLE:NODE,...",
    ),
    switch_option(
        "no-restart-demo",
        Section.FAULTS,
        "Show ft_launcher an iteration that never grows: after the fault it says that a restart is useless.",
    ),
    count_option(
        "max-no-progress-cycles",
        Section.FAULTS,
        "With ft_launcher: cycles without a new checkpoint before it says that a restart is useless; without it"
        " its own 3, or 1 with --no-restart-demo.",
        minimum=1,
    ),
)
