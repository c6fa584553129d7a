"""The command line of mock_gpt as one value. Without torch, so that `--help` and a bad option answer at once."""

from __future__ import annotations

import argparse
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

import msgspec

from nvrx_chain.errors import UsageError
from nvrx_chain.workloads.faults import KINDS, Fault, parse_fault
from nvrx_chain.workloads.injection import (
    NodeFailure,
    check_mock_gpt_types,
    parse_failures,
    parse_ranks,
    parse_types,
)

T = TypeVar("T")


class OnSigterm(str, enum.Enum):
    """What SIGTERM does: save and leave like SIGUSR1, or the kernel's default, so that a launcher stops ranks fast."""

    SAVE = "save"
    DIE = "die"

    def __str__(self) -> str:
        return self.value


class DeviceChoice(str, enum.Enum):
    """Where to compute. AUTO takes CUDA where torch sees a device."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"

    def __str__(self) -> str:
        return self.value


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The GPT: all that decides which weights there are, and `dropout`, the probability after each sub-layer."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    sequence: int = 32
    vocabulary: int = 128
    tied_head: bool = True
    dropout: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that mock_gpt was asked to do. Durations in seconds, `batch` in sequences per rank."""

    checkpoint_dir: Path = Path("checkpoints")
    target_iteration: int = 200
    done_file: Path | None = None
    save_interval: int = 50
    fresh_start: bool = False
    keep: int = 2
    async_save: bool = False
    save_seconds: float = 0.0
    step_seconds: float = 0.0
    log_interval: int = 10
    event_file: Path | None = None
    on_sigterm: OnSigterm = OnSigterm.DIE
    faults: tuple[Fault, ...] = ()
    fault_injector_ranks: tuple[int, ...] = ()
    fault_injector_fault_delay: float = 60.0
    fault_injector_fault_types: tuple[str, ...] = ()
    inject_gpu_failure: tuple[NodeFailure, ...] = ()
    model: ModelShape = field(default_factory=ModelShape)
    batch: int = 4
    learning_rate: float = 1e-3
    seed: int = 1234
    device: DeviceChoice = DeviceChoice.AUTO
    threads: int = 1
    collective_timeout_seconds: float = 600.0


def parse_options(arguments: Sequence[str] | None) -> Options:
    """The options of a command line (None: of this process). Raises UsageError, or SystemExit as argparse does."""
    values = vars(_build_parser().parse_args(arguments))
    model = ModelShape(**{name: values.pop(name) for name in ModelShape.__struct_fields__})
    if model.width % model.heads:
        raise UsageError(
            f"reading the model's shape: a width of {model.width} cannot be shared by {model.heads} heads",
            part="--heads",
            hint="choose a --width that is a multiple of --heads",
        )
    values["faults"] = tuple(parse_fault(text) for text in values["faults"])
    identities = [fault.fault_id for fault in values["faults"]]
    for identity in identities:
        if identities.count(identity) > 1:
            raise UsageError(
                f"reading the faults: {identity} is asked for twice", part="--fault", hint="ask for it once"
            )
    check_mock_gpt_types(values["fault_injector_fault_types"])
    if bool(values["fault_injector_ranks"]) != bool(values["fault_injector_fault_types"]):
        raise UsageError(
            "reading the faults: --fault-injector-ranks and --fault-injector-fault-types need each other",
            hint="give both or neither",
        )
    return Options(model=model, **values)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nvrx_chain.workloads.mock_gpt",
        description="Train a small real GPT on mock data, with real checkpoints and faults on order.",
        epilog="SIGUSR1 saves on all ranks and exits 0. Exit codes: 0 done or saved, 1 failed, 2 bad usage.",
        allow_abbrev=False,
    )
    _add_run_options(parser)
    _add_fault_options(parser)
    _add_model_options(parser)
    parser.set_defaults(**_defaults())
    return parser


def _defaults() -> dict[str, object]:
    options = Options()
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    model = values.pop("model")
    values["faults"] = []
    return {**values, **msgspec.structs.asdict(model)}


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("--checkpoint-dir", type=Path, metavar="DIR", help="checkpoints, tracker and fault markers (%(default)s)")
    add("--target-iteration", type=_whole(1), metavar="N", help="save and exit 0 there (%(default)s)")
    add("--done-file", type=Path, metavar="FILE", help="written by rank 0 when the target is reached")
    add(
        "--save-interval",
        type=_whole(0),
        metavar="N",
        help="iterations between checkpoints; 0: only at the end (%(default)s)",
    )
    add("--fresh-start", action="store_true", help="train from the beginning, whatever checkpoints are there")
    add("--keep", type=_whole(1), metavar="N", help="checkpoints to keep (%(default)s)")
    add("--async-save", action="store_true", help="write checkpoints in the background, one at a time")
    add("--save-seconds", type=_seconds, metavar="S", help="stretch each save to about this long (%(default)s)")
    add("--step-seconds", type=_seconds, metavar="S", help="least duration of a step (%(default)s)")
    add("--log-interval", type=_whole(1), metavar="N", help="iterations per step event (%(default)s)")
    add("--event-file", type=Path, metavar="FILE", help="append JSON events here; {rank} is replaced")
    add(
        "--on-sigterm",
        type=OnSigterm,
        choices=list(OnSigterm),
        metavar="save|die",
        help="what SIGTERM does (%(default)s)",
    )
    add(
        "--device",
        type=DeviceChoice,
        choices=list(DeviceChoice),
        metavar="auto|cpu|cuda",
        help="where to compute (%(default)s)",
    )
    add("--threads", type=_whole(1), metavar="N", help="CPU threads of a rank (%(default)s)")
    add(
        "--collective-timeout",
        dest="collective_timeout_seconds",
        type=_seconds,
        metavar="S",
        help="fail when a collective takes longer (%(default)s)",
    )


def _add_fault_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("faults").add_argument
    add(
        "--fault",
        dest="faults",
        action="append",
        metavar="SPEC",
        help=f"rank=R,iteration=N|delay=SECONDS,kind={KINDS}[,repeat=once|always]; "
        "fires once in the life of the checkpoint directory unless repeat=always; may be given several times",
    )
    # The words of Megatron-LM, so that a chain orders faults from both in the same way.
    add("--fault-injector-ranks", type=_told(parse_ranks), metavar="R,R", help="these ranks fail in every cycle")
    add("--fault-injector-fault-delay", type=_seconds, metavar="S", help="so long after its start (%(default)s)")
    add("--fault-injector-fault-types", type=_told(parse_types), metavar="TYPE,TYPE", help="in turn by cycle, as kind=")
    add("--inject-gpu-failure", type=_told(parse_failures), metavar="CYCLE:NODE", help="end the launcher of a node")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model and data").add_argument
    for name, text in (
        ("layers", "transformer blocks"),
        ("width", "size of an embedding"),
        ("heads", "attention heads"),
        ("sequence", "tokens in a sequence"),
        ("vocabulary", "different tokens"),
        ("batch", "sequences per rank and step"),
    ):
        add(f"--{name}", type=_whole(2 if name == "vocabulary" else 1), metavar="N", help=f"{text} (%(default)s)")
    add("--untied-head", dest="tied_head", action="store_false", help="give the output its own matrix")
    add("--dropout", type=_probability, metavar="P", help="dropout probability (%(default)s)")
    add("--learning-rate", type=_seconds, metavar="X", help="of AdamW, constant (%(default)s)")
    add("--seed", type=_whole(0), metavar="N", help="of weights, data and dropout (%(default)s)")


def _told(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser whose message argparse passes on."""

    def told(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return told


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    return _number(text, below=float("inf"))


def _probability(text: str) -> float:
    return _number(text, below=1.0)


def _number(text: str, *, below: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < below:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below {below:g}")
    return value
