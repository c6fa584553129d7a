"""The arguments of public Megatron-LM's pretrain_gpt.py on mock data, as a chain runs it. Pure.

Their names are those of NVIDIA/Megatron-LM's main branch of 2026. What a chain depends on is not the user's to set:
where checkpoints are, how the time limit is announced, who watches the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvrx_chain.workloads.megatron_extra import Group

SCRIPT = "pretrain_gpt.py"
SECTION_TIMEOUTS = "setup:900,step:120,checkpointing:600,out-of-section:300"
"""Seconds without an end of the section after which ft_launcher kills the ranks. Sections are Megatron-LM's."""

PROFILES: Mapping[str, tuple[str, ...]] = {
    "small": (
        "--num-layers=12",
        "--hidden-size=768",
        "--ffn-hidden-size=2048",
        "--num-attention-heads=12",
        "--seq-length=1024",
        "--max-position-embeddings=1024",
        "--vocab-size=32000",
    ),
    "8b": (
        "--num-layers=32",
        "--hidden-size=4096",
        "--ffn-hidden-size=14336",
        "--num-attention-heads=32",
        "--group-query-attention",
        "--num-query-groups=8",
        "--seq-length=8192",
        "--max-position-embeddings=8192",
        "--rotary-base=500000",
        "--vocab-size=128000",
        "--recompute-granularity=selective",
    ),
}
"""Models by name: one that fits any GPU, and one of eight billion weights."""

BATCHES_OF_A_REPLICA = {"small": 1, "8b": 2}
SAMPLES = 10_000_000
SAVE_INTERVAL = {"small": 50, "8b": 200}
RETAINED_SAVES = 10

ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""Megatron-LM refuses to overlap communication without it on most GPUs."""

_ARCHITECTURE = (
    "--swiglu",
    "--normalization=RMSNorm",
    "--position-embedding-type=rope",
    "--disable-bias-linear",
    "--untie-embeddings-and-output-weights",
    "--attention-dropout=0.0",
    "--hidden-dropout=0.0",
    "--init-method-std=0.02",
)
_TRAINING = (
    "--lr=3e-4",
    "--min-lr=3e-5",
    "--lr-decay-style=cosine",
    "--lr-warmup-fraction=0.01",
    "--weight-decay=0.1",
    "--clip-grad=1.0",
    "--adam-beta1=0.9",
    "--adam-beta2=0.95",
    "--bf16",
    "--use-distributed-optimizer",
    "--overlap-grad-reduce",
    "--overlap-param-gather",
    # Ranks that collect garbage at different moments wait for each other.
    "--manual-gc",
    "--manual-gc-interval=100",
    # A peer of a dead rank waits so long in a collective: half an hour by default.
    "--distributed-timeout-minutes=10",
    "--log-interval=10",
    "--log-throughput",
    "--eval-iters=0",
)
_CHECKPOINTS = (
    "--ckpt-format=torch_dist",
    "--async-save",
    # Without it Megatron-LM switches --async-save off and only warns.
    "--use-persistent-ckpt-worker",
    "--ckpt-fully-parallel-load",
    "--ckpt-assume-constant-structure",
)
_DATA = ("--mock-data", "--no-create-attention-mask-in-dataloader", "--num-workers=1")

_DATA_OF_ITS_OWN = ("--data-path", "--train-data-path", "--data-args-path", "--per-split-data-args-path", "--sft")
_GIVES_WAY: Mapping[str, tuple[str, ...]] = {
    "--mock-data": _DATA_OF_ITS_OWN,
    "--no-create-attention-mask-in-dataloader": _DATA_OF_ITS_OWN,
    # A tokenizer of the user's own knows its vocabulary.
    "--vocab-size": ("--tokenizer-type",),
    "--swiglu": ("--squared-relu", "--quick-geglu"),
    "--bf16": ("--fp16",),
    "--lr-warmup-fraction": ("--lr-warmup-iters", "--lr-warmup-samples"),
    # Only torch_dist can be written in the background.
    "--async-save": ("--ckpt-format",),
    "--use-persistent-ckpt-worker": ("--ckpt-format",),
    "--ckpt-fully-parallel-load": ("--ckpt-format",),
    "--ckpt-assume-constant-structure": ("--ckpt-format",),
}
"""What Megatron-LM refuses or ignores beside an argument of the user's, and which those are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRun:
    """One training as a chain asks for it. Exactly one of `train_iterations` and `train_samples` is set.

    `watched`: ft_launcher runs it and learns of its sections. `extra` replaces what is rendered of the same name.
    """

    profile: str
    checkpoint_directory: str
    tensor: int
    pipeline: int
    context: int
    micro_batch: int
    global_batch: int
    train_iterations: int | None
    train_samples: int | None
    save_interval: int
    save_retain_interval: int
    exit_minutes: int | None
    watched: bool
    faults: tuple[str, ...]
    extra: tuple[Group, ...]


def render_arguments(run: MegatronRun) -> tuple[str, ...]:
    """The words after pretrain_gpt.py."""
    typed = {group.flag: group for group in run.extra}
    return (
        *(word for word in _defaults(run, typed) if _stays(word, typed)),
        *_fixed(run),
        *run.faults,
        *(word for group in run.extra for word in group.words),
    )


def _stays(word: str, typed: Mapping[str, Group]) -> bool:
    flag = word.partition("=")[0]
    return flag not in typed and not any(other in typed for other in _GIVES_WAY.get(flag, ()))


def _defaults(run: MegatronRun, typed: Mapping[str, Group]) -> Iterator[str]:
    model = PROFILES[run.profile]
    if "--seq-length" in typed:
        # Megatron-LM wants as many positions as tokens.
        model = tuple(word for word in model if not word.startswith("--max-position-embeddings"))
        model = (*model, f"--max-position-embeddings={' '.join(typed['--seq-length'].values)}")
    yield from (*model, *_ARCHITECTURE, "--tokenizer-type=NullTokenizer", *_DATA, *_TRAINING, *_CHECKPOINTS)


def _fixed(run: MegatronRun) -> Iterator[str]:
    yield f"--tensor-model-parallel-size={run.tensor}"
    yield f"--pipeline-model-parallel-size={run.pipeline}"
    yield f"--context-parallel-size={run.context}"
    yield f"--micro-batch-size={run.micro_batch}"
    yield f"--global-batch-size={run.global_batch}"
    if run.train_iterations is not None:
        yield f"--train-iters={run.train_iterations}"
    else:
        yield f"--train-samples={run.train_samples}"
    yield f"--save={run.checkpoint_directory}"
    yield f"--load={run.checkpoint_directory}"
    yield f"--save-interval={run.save_interval}"
    yield f"--save-retain-interval={run.save_retain_interval}"
    # run-task passes the warning of the time limit on to ranks that handle it: save, then leave with 0.
    yield "--exit-signal-handler"
    yield "--exit-signal=SIGUSR1"
    if run.exit_minutes is not None:
        yield f"--exit-duration-in-mins={run.exit_minutes}"
    if run.watched:
        yield "--enable-ft-package"
