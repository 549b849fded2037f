"""Weights that are a mean: over time as training goes (EMA), or over the last checkpoints when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from . import checkpoint


class MovingAverage:
    """A moving average of the weights. It lies in the optimizer's state, so it is saved and resumed with it."""

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self.optimizer, self.decay = optimizer, decay

    def update(self, step: int) -> None:
        """After update `step`; the first ones count for more, or the average would remember the beginning for long."""
        weights = list(self.optimizer.state)
        for each in weights:
            self.optimizer.state[each].setdefault("ema", each.detach().clone())
        means = [self.optimizer.state[each]["ema"] for each in weights]
        torch._foreach_lerp_(means, [each.detach() for each in weights], 1 - min(self.decay, (1 + step) / (10 + step)))

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        held = {each: state["ema"] for each, state in self.optimizer.state.items() if "ema" in state}
        own = {each: each.detach().clone() for each in held}
        try:
            fill(held)
            yield
        finally:
            fill(own)


def fill(values: dict[Tensor, Tensor]) -> None:
    with torch.no_grad():
        for weight, value in values.items():
            weight.copy_(value)


@contextmanager
def mean_of(model: nn.Module, paths: list[Path]) -> Iterator[None]:
    """Inside, the model has the mean of the weights in these checkpoints, of which the newest comes first."""
    own = {tensor: tensor.detach().clone() for tensor in model.state_dict().values()}
    # What is drawn (random features) has no mean: it stays that of the newest.
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    means = [tensor for tensor in own if tensor.is_floating_point() and tensor.data_ptr() in weights]
    sums = {tensor: torch.zeros_like(tensor, dtype=torch.float64) for tensor in means}
    try:
        for path in reversed(paths):
            checkpoint.load_model(model, path / checkpoint.MODEL)
            for tensor, total in sums.items():
                total += tensor
        fill({tensor: total / len(paths) for tensor, total in sums.items()})
        yield
    finally:
        fill(own)
