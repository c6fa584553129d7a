"""A small decoder-only GPT and the mock text that it learns. Imports torch; touches nothing outside the process."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from nvrx_chain.workloads.options import ModelShape

_LARGEST_STRIDE = 7


class Gpt(nn.Module):  # type: ignore[misc]
    """Token and position embeddings, pre-norm blocks, a head that shares the token embedding unless told otherwise."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = None if shape.tied_head else nn.Linear(shape.width, shape.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of predicting `targets` from `inputs`, both (batch, sequence) token numbers."""
        places = torch.arange(inputs.shape[1], device=inputs.device)
        hidden = self.dropout(self.tokens(inputs) + self.positions(places))
        for block in self.blocks:
            hidden = block(hidden)
        weight = self.tokens.weight if self.head is None else self.head.weight
        logits = nn.functional.linear(self.norm(hidden), weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class _Block(nn.Module):  # type: ignore[misc]
    """Causal self-attention and a feed-forward layer, each behind a norm and beside the residual stream."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.attention_output = nn.Linear(shape.width, shape.width)
        self.feed_norm = nn.LayerNorm(shape.width)
        self.feed_in = nn.Linear(shape.width, 4 * shape.width)
        self.feed_out = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        future = torch.ones(shape.sequence, shape.sequence, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.dropout(self._attend(self.attention_norm(hidden)))
        feed = self.feed_out(nn.functional.gelu(self.feed_in(self.feed_norm(hidden))))
        return hidden + self.dropout(feed)

    def _attend(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = hidden.shape
        split = self.queries_keys_values(hidden).view(batch, sequence, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        # Written out: the fused attention kernels of CUDA have backward passes that differ from run to run.
        scores = queries @ keys.transpose(-2, -1) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(self.future[:sequence, :sequence], float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ values
        return self.attention_output(mixed.transpose(1, 2).reshape(batch, sequence, width))


class MockText:
    """Endless text for one rank: every sequence counts up by its own stride, so there is something to learn.

    A batch follows from (seed, position, rank) alone; `position`, the number of batches drawn, is all the state.
    """

    def __init__(self, shape: ModelShape, *, batch: int, seed: int, rank: int) -> None:
        self._shape = shape
        self._batch = batch
        self._seed = seed
        self._rank = rank
        self.position = 0

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch: inputs and, one token further, targets, both (batch, sequence) on the CPU."""
        generator = torch.Generator().manual_seed(mix_seed("text", self._seed, self.position, self._rank))
        self.position += 1
        starts = torch.randint(self._shape.vocabulary, (self._batch, 1), generator=generator)
        strides = torch.randint(1, _LARGEST_STRIDE + 1, (self._batch, 1), generator=generator)
        text = (starts + strides * torch.arange(self._shape.sequence + 1)) % self._shape.vocabulary
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def mix_seed(purpose: str, *numbers: int) -> int:
    """A 63-bit seed that has nothing in common with that of a neighbouring rank or iteration."""
    digest = hashlib.sha256(repr((purpose, *numbers)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
