"""The whole state of training as tensors, and as the files of a checkpoint. Imports torch; touches nothing else.

`torch.save` makes the files and `torch.load(weights_only=True)` reads them, so a checkpoint can carry no code.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nvrx_chain.errors import RecordError
from nvrx_chain.workloads.checkpoint import Checkpoint, CheckpointMetadata
from nvrx_chain.workloads.model import Gpt, MockText, mix_seed
from nvrx_chain.workloads.optimizer import FlatAdamW
from nvrx_chain.workloads.options import Options
from nvrx_chain.workloads.placement import Placement
from nvrx_chain.workloads.ranks import Ranks

_PARTS = ("model", "optimizer", "rng")


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """All that a resumed run needs to go on as if nothing had happened."""

    model: Gpt
    optimizer: FlatAdamW
    text: MockText
    iteration: int


def build_state(options: Options, placement: Placement, ranks: Ranks) -> TrainingState:
    """A fresh state, the weights the same on every rank, the dropout different on each."""
    torch.manual_seed(options.seed)
    model = Gpt(options.model).to(ranks.device)
    optimizer = FlatAdamW(model.parameters(), options.learning_rate)
    # Two kinds of CPU may draw the last bit of a weight differently from one seed.
    ranks.copy_from_first(optimizer.weights)
    _seed_dropout(options, placement, iteration=0)
    text = MockText(options.model, batch=options.batch, seed=options.seed, rank=placement.rank)
    return TrainingState(model=model, optimizer=optimizer, text=text, iteration=0)


def collect_dropout(ranks: Ranks) -> dict[str, list[torch.Tensor]]:
    """Where the random sequence of every rank stands. Every rank calls this."""
    states = {"cpu": ranks.collect(torch.get_rng_state())}
    if ranks.device.type == "cuda":
        states["cuda"] = ranks.collect(torch.cuda.get_rng_state(ranks.device))
    return states


def capture_state(state: TrainingState, dropout: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
    """A copy of the state on the CPU, which later steps leave alone."""
    return {
        "model": {name: _copy(value) for name, value in state.model.state_dict().items()},
        "optimizer": {name: _copy(value) for name, value in state.optimizer.state_dict().items()},
        "rng": dropout,
    }


def render_files(captured: Mapping[str, Any]) -> dict[str, bytes]:
    """The captured state as file names and contents."""
    return {f"{part}.pt": _render(captured[part]) for part in _PARTS}


def restore_state(
    state: TrainingState, checkpoint: Checkpoint, options: Options, placement: Placement, ranks: Ranks
) -> None:
    """Put a checkpoint into the state. Raises RecordError when it is of another model or another seed.

    With another number of ranks the run goes on, but not bit for bit: ranks that the checkpoint does not know get a
    fresh dropout sequence.
    """
    metadata = checkpoint.metadata
    _check_fits(metadata, options)
    rng: dict[str, list[torch.Tensor]] = _parse(checkpoint, "rng")
    state.model.load_state_dict(_parse(checkpoint, "model"))
    state.optimizer.load_state_dict(_parse(checkpoint, "optimizer"))
    state.text.position = metadata.data_position
    state.iteration = metadata.iteration
    _seed_dropout(options, placement, iteration=metadata.iteration)
    if placement.rank < len(rng["cpu"]):
        torch.set_rng_state(rng["cpu"][placement.rank])
    if ranks.device.type == "cuda" and placement.rank < len(rng.get("cuda", ())):
        torch.cuda.set_rng_state(rng["cuda"][placement.rank], ranks.device)


def _check_fits(metadata: CheckpointMetadata, options: Options) -> None:
    for what, written, asked in (
        ("model", metadata.model, options.model),
        ("seed", metadata.seed, options.seed),
    ):
        if written != asked:
            raise RecordError(
                f"resuming from iteration {metadata.iteration}: the checkpoint has {what} {written}, not {asked}",
                hint="give the options of the first run, or another --checkpoint-dir",
            )


def _seed_dropout(options: Options, placement: Placement, *, iteration: int) -> None:
    torch.manual_seed(mix_seed("dropout", options.seed, iteration, placement.rank))


def _copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _render(part: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(part, stream)
    return stream.getvalue()


def _parse(checkpoint: Checkpoint, part: str) -> Any:
    return torch.load(io.BytesIO(checkpoint.files[f"{part}.pt"]), map_location="cpu", weights_only=True)
