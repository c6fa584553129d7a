"""Megatron-LM's arguments: every combination is taken by a parser as strict as its own, nothing stands there twice."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import UsageError
from nvrx_chain.workloads.megatron import PROFILES, MegatronRun, render_arguments
from nvrx_chain.workloads.megatron_extra import LOAD_BEARING, group_words, take_count

WORLD = 16


def load_stand_in() -> ModuleType:
    path = Path(__file__).parents[2] / "megatron_stand_in" / "pretrain_gpt.py"
    spec = importlib.util.spec_from_file_location("stand_in", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STAND_IN = load_stand_in()


def training(**changes: Any) -> MegatronRun:
    values: dict[str, Any] = {
        "profile": "small",
        "checkpoint_directory": "/run dir/checkpoints",
        "tensor": 1,
        "pipeline": 1,
        "context": 1,
        "micro_batch": 1,
        "global_batch": WORLD,
        "train_iterations": 100,
        "train_samples": None,
        "save_interval": 10,
        "save_retain_interval": 100,
        "exit_minutes": None,
        "watched": True,
        "faults": (),
        "extra": (),
    }
    return MegatronRun(**{**values, **changes})


def read(run: MegatronRun) -> Any:
    options = STAND_IN.build_parser().parse_args(render_arguments(run))
    STAND_IN.check(options, WORLD)
    return options


EXTRAS = (
    ("--seq-length", "2048"),
    ("--data-path", "/data/my corpus"),
    ("--tokenizer-type=GPT2BPETokenizer",),
    ("--squared-relu",),
    ("--fp16",),
    ("--lr-warmup-iters", "10"),
    ("--ckpt-format", "torch"),
    ("--lr=1e-3",),
    ("--sequence-parallel",),
    ("--recompute-granularity", "full"),
)


@given(
    profile=st.sampled_from(sorted(PROFILES)),
    by_samples=st.booleans(),
    watched=st.booleans(),
    minutes=st.one_of(st.none(), st.integers(1, 1000)),
    extras=st.lists(st.sampled_from(EXTRAS), unique=True),
)
def test_every_combination_is_taken_and_no_argument_stands_there_twice(
    profile: str, by_samples: bool, watched: bool, minutes: int | None, extras: list[tuple[str, ...]]
) -> None:
    run = training(
        profile=profile,
        train_iterations=None if by_samples else 7,
        train_samples=7000 if by_samples else None,
        watched=watched,
        exit_minutes=minutes,
        faults=("--fault-injector-ranks=0", "--fault-injector-fault-types=sigkill"),
        extra=group_words([word for extra in extras for word in extra]),
    )
    options = read(run)
    flags = [word.partition("=")[0] for word in render_arguments(run) if word.startswith("--")]
    assert len(flags) == len(set(flags))
    assert options.enable_ft_package == watched
    assert (options.save, options.load) == ("/run dir/checkpoints", "/run dir/checkpoints")


def test_saves_are_asynchronous_and_the_warning_of_the_time_limit_is_a_signal_to_save() -> None:
    options = read(training())
    assert options.async_save
    assert options.use_persistent_ckpt_worker
    assert options.exit_signal_handler
    assert options.exit_signal.name == "SIGUSR1"


def test_mock_data_gives_way_to_data_and_the_null_tokenizer_to_another() -> None:
    mock = read(training())
    assert (mock.mock_data, mock.tokenizer_type, mock.vocab_size) == (True, "NullTokenizer", 32000)
    real = read(training(extra=group_words(("--data-path", "/x", "--tokenizer-type", "Llama2Tokenizer"))))
    assert (real.mock_data, real.tokenizer_type, real.vocab_size) == (False, "Llama2Tokenizer", None)


def test_a_format_that_cannot_be_written_in_the_background_is_written_at_once() -> None:
    assert not read(training(extra=group_words(("--ckpt-format=torch",)))).async_save


def test_a_longer_sequence_gets_its_positions() -> None:
    options = read(training(extra=group_words(("--seq-length=4096",))))
    assert (options.seq_length, options.max_position_embeddings) == (4096, 4096)


def test_the_profiles_have_the_weights_of_their_names() -> None:
    assert weights(read(training(profile="small"))) == pytest.approx(0.134e9, rel=0.05)
    assert weights(read(training(profile="8b"))) == pytest.approx(8e9, rel=0.05)


def weights(options: Any) -> int:
    width, groups = options.hidden_size, options.num_query_groups or options.num_attention_heads
    head = width // options.num_attention_heads
    attention = 2 * width * width + 2 * width * groups * head
    layer = attention + 3 * width * options.ffn_hidden_size
    count: int = options.num_layers * layer + 2 * options.vocab_size * width
    return count


@pytest.mark.parametrize("flag", sorted(LOAD_BEARING))
@pytest.mark.parametrize("spelling", ["{}", "{}=x"])
def test_what_the_chain_sets_is_refused_with_a_hint(flag: str, spelling: str) -> None:
    with pytest.raises(UsageError) as caught:
        group_words(("--lr", "1", spelling.format(flag)))
    assert caught.value.part == flag
    assert caught.value.hint == LOAD_BEARING[flag]


def test_a_value_without_an_argument_is_refused() -> None:
    with pytest.raises(UsageError, match="begin with a value"):
        group_words(("pretrain_gpt.py", "--lr", "1"))


def test_a_negative_value_belongs_to_its_argument() -> None:
    (group,) = group_words(("--lr", "-1e-4"))
    assert group.values == ("-1e-4",)


def test_a_count_is_taken_out_in_either_form() -> None:
    for words in (("--train-iters", "50"), ("--train-iters=50",)):
        count, rest = take_count(group_words((*words, "--lr=1")), "--train-iters")
        assert count == 50
        assert [group.flag for group in rest] == ["--lr"]


@pytest.mark.parametrize(
    "words", [("--n",), ("--n", "0"), ("--n=-1",), ("--n=1", "--n=2"), ("--n", "1", "2"), ("--n=x",)]
)
def test_a_bad_count_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="one whole number above zero"):
        take_count(group_words(words), "--n")
