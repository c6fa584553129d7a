"""AdamW over all weights as one vector, which is also the vector that the ranks sum. Imports torch.

torch.optim.AdamW is the same update (a test compares them), but the first use of torch.optim or of
DistributedDataParallel imports torch._dynamo, which doubles the start-up time of every rank in every restart. And the
buckets of DistributedDataParallel are laid out anew after the first step of each life, so with three ranks or more a
resumed run would add up in another order than one that was never disturbed, and differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
_WEIGHT_DECAY = 0.01


class FlatAdamW:
    """Decoupled weight decay (Loshchilov and Hutter, 2019). The parameters become views of `weights` and `gradient`."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], learning_rate: float) -> None:
        self._learning_rate = learning_rate
        found = list(parameters)
        self.weights = torch.cat([parameter.detach().flatten() for parameter in found])
        self.gradient = torch.zeros_like(self.weights)
        self._first_moment = torch.zeros_like(self.weights)
        self._second_moment = torch.zeros_like(self.weights)
        self._steps = 0
        offset = 0
        for parameter in found:
            end = offset + parameter.numel()
            parameter.data = self.weights[offset:end].view_as(parameter)
            # backward() adds into a gradient that is there already, so it stays a view of the vector.
            parameter.grad = self.gradient[offset:end].view_as(parameter)
            offset = end

    def zero_gradient(self) -> None:
        """Forget the gradient of the last step."""
        self.gradient.zero_()

    def step(self) -> None:
        """Move the weights along the gradient."""
        self._steps += 1
        first_decay, second_decay = _BETAS
        with torch.no_grad():
            self._first_moment.lerp_(self.gradient, 1 - first_decay)
            self._second_moment.mul_(second_decay).addcmul_(self.gradient, self.gradient, value=1 - second_decay)
            self.weights.mul_(1 - self._learning_rate * _WEIGHT_DECAY)
            first_correction = 1 - first_decay**self._steps
            second_correction = 1 - second_decay**self._steps
            spread = (self._second_moment.sqrt() / second_correction**0.5).add_(_EPSILON)
            self.weights.addcdiv_(self._first_moment, spread, value=-self._learning_rate / first_correction)

    def state_dict(self) -> dict[str, Any]:
        """The state as live tensors: copy them before the next step."""
        return {"steps": self._steps, "first_moment": self._first_moment, "second_moment": self._second_moment}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of an optimizer of the same weights."""
        self._steps = int(state["steps"])
        self._first_moment.copy_(state["first_moment"])
        self._second_moment.copy_(state["second_moment"])
