"""A stand-in for Megatron-LM's pretrain_gpt.py: reads its arguments as strictly, then trains mock-gpt with them.

The names are public ones of NVIDIA/Megatron-LM, main of 2026; no abbreviation is taken and nothing unknown. The checks
are those that Megatron-LM makes before it trains. Its tracker, its signal and its sections are the real ones: with
--enable-ft-package it talks to the rank monitor of ft_launcher as Megatron-LM does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from nvrx_chain.workloads.mock_gpt import main

COUNTS = (
    "num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups seq-length max-position-embeddings"
    " rotary-base vocab-size tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size"
    " micro-batch-size global-batch-size train-iters train-samples lr-warmup-iters lr-warmup-samples save-interval"
    " save-retain-interval exit-duration-in-mins exit-interval distributed-timeout-minutes log-interval eval-iters"
    " eval-interval num-workers manual-gc-interval ft-num-warmup-iters seed fault-injector-num-ranks"
    " fault-injector-delay-start-iteration"
)
NUMBERS = (
    "attention-dropout hidden-dropout init-method-std lr min-lr lr-warmup-fraction weight-decay clip-grad adam-beta1"
    " adam-beta2 fault-injector-fault-delay"
)
SWITCHES = (
    "group-query-attention swiglu squared-relu disable-bias-linear untie-embeddings-and-output-weights mock-data"
    " no-create-attention-mask-in-dataloader bf16 fp16 use-distributed-optimizer overlap-grad-reduce"
    " overlap-param-gather manual-gc log-throughput async-save use-persistent-ckpt-worker ckpt-fully-parallel-load"
    " ckpt-assume-constant-structure exit-signal-handler enable-ft-package sequence-parallel"
    " decrease-batch-size-if-needed"
)
WORDS = (
    "save load tokenizer-type tokenizer-model data-path tensorboard-dir fault-injector-ranks fault-injector-fault-types"
)
CHOICES = {
    "normalization": ("LayerNorm", "RMSNorm"),
    "position-embedding-type": ("learned_absolute", "rope", "none"),
    "lr-decay-style": ("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    "ckpt-format": ("torch", "torch_dist", "zarr", "fsdp_dtensor"),
    "recompute-granularity": ("full", "selective"),
}
FAULTS = (
    "gpu_error gpu_sleep workload_exc async_exc signal_exc os_abort lock_gil segfault sigint sigkill sigterm sigstop"
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for names, kind in ((COUNTS, int), (NUMBERS, float), (WORDS, str)):
        for name in names.split():
            parser.add_argument(f"--{name}", type=kind)
    for name in SWITCHES.split():
        parser.add_argument(f"--{name}", action="store_true")
    for name, choices in CHOICES.items():
        parser.add_argument(f"--{name}", choices=choices)
    parser.add_argument("--exit-signal", type=lambda name: signal.Signals[name], default=signal.SIGTERM)
    return parser


def check(options: argparse.Namespace, world_size: int) -> None:
    """What Megatron-LM asserts before it trains."""
    model = options.tensor_model_parallel_size * options.pipeline_model_parallel_size * options.context_parallel_size
    assert world_size % model == 0, f"world size {world_size} is not divisible by {model}"
    assert options.global_batch_size % (options.micro_batch_size * world_size // model) == 0, "global batch"
    assert (options.train_iters is None) != (options.train_samples is None), "iterations or samples"
    assert options.max_position_embeddings >= options.seq_length, "positions"
    assert options.hidden_size % options.num_attention_heads == 0, "heads"
    assert not (options.swiglu and options.squared_relu), "one activation"
    assert not (options.bf16 and options.fp16), "one precision"
    assert options.mock_data != (options.data_path is not None), "mock data or data"
    assert options.tokenizer_type != "NullTokenizer" or options.vocab_size, "NullTokenizer needs --vocab-size"
    assert options.save_retain_interval % options.save_interval == 0, "retained saves are saves"
    assert not options.async_save or options.ckpt_format == "torch_dist", "async save needs torch_dist"
    assert not options.async_save or options.use_persistent_ckpt_worker, "async save would be switched off"
    for name in (options.fault_injector_fault_types or "sigkill").split(","):
        assert name.lower() in FAULTS.split(), name


def mock_gpt_arguments(options: argparse.Namespace) -> list[str]:
    """The same training in mock-gpt's words. STAND_IN_OPTIONS holds what Megatron-LM has no words for."""
    assert options.save == options.load, "the chain resumes from where it saves"
    assert (options.exit_signal_handler, options.exit_signal) == (True, signal.SIGUSR1)
    iterations = options.train_iters or options.train_samples // options.global_batch_size
    words = [
        f"--checkpoint-dir={options.save}",
        f"--event-file={Path(options.save).parent / 'events' / 'rank{rank}.jsonl'}",
        f"--target-iteration={iterations}",
        f"--save-interval={options.save_interval}",
        f"--batch={options.micro_batch_size}",
        "--log-interval=1",
    ]
    if options.async_save:
        words.append("--async-save")
    if options.fault_injector_ranks is not None:
        words += [
            f"--fault-injector-ranks={options.fault_injector_ranks}",
            f"--fault-injector-fault-delay={options.fault_injector_fault_delay}",
            f"--fault-injector-fault-types={options.fault_injector_fault_types}",
        ]
    return words + os.environ.get("STAND_IN_OPTIONS", "").split()


def train(options: argparse.Namespace) -> int:
    if not options.enable_ft_package:
        return main(mock_gpt_arguments(options))
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert set(client.section_timeouts.section) == {"setup", "step", "checkpointing"}, client.section_timeouts
    client.start_section("setup")
    client.end_section("setup")
    code = main(mock_gpt_arguments(options))
    client.shutdown_workload_monitoring()
    return code


if __name__ == "__main__":
    parsed = build_parser().parse_args()
    check(parsed, int(os.environ["WORLD_SIZE"]))
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    sys.exit(train(parsed))
