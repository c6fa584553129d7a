"""What nvrx-chain renders and has never run: whoever submits with it should know. Pure.

One row in RENDERED_ONLY for each such path; it goes away with the first test that runs the real thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nvrx_chain.submit.config import ChainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedOnly:
    """A path that no test runs: what it is called, and whether a chain takes it."""

    name: str
    is_used: Callable[[ChainConfig], bool]


RENDERED_ONLY: tuple[RenderedOnly, ...] = (
    RenderedOnly(name="containers (pyxis)", is_used=lambda config: config.container is not None),
    RenderedOnly(name="Megatron-LM (megatron-gpt)", is_used=lambda config: config.workload.rendered_only),
    RenderedOnly(name="GPUs", is_used=lambda config: config.shape.gpus_per_node > 0),
)


def used_rendered_only(config: ChainConfig) -> tuple[str, ...]:
    """The names of those that this chain takes."""
    return tuple(path.name for path in RENDERED_ONLY if path.is_used(config))
