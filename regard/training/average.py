"""Averaged weights: a moving average during training (EMA), or the mean of the last checkpoints at its end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from . import checkpoint


class MovingAverage:
    """An exponential moving average of the weights. It lives in the optimizer's state and is saved with it."""

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self.optimizer, self.decay = optimizer, decay

    def update(self, step: int) -> None:
        """Update the average after `step`. The decay is smaller in early steps, to forget the initial weights."""
        weights = list(self.optimizer.state)
        for each in weights:
            self.optimizer.state[each].setdefault("ema", each.detach().clone())
        means = [self.optimizer.state[each]["ema"] for each in weights]
        torch._foreach_lerp_(means, [each.detach() for each in weights], 1 - min(self.decay, (1 + step) / (10 + step)))

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside this context the model has the averaged weights."""
        averages = {each: state["ema"] for each, state in self.optimizer.state.items() if "ema" in state}
        originals = {each: each.detach().clone() for each in averages}
        try:
            copy_values(averages)
            yield
        finally:
            copy_values(originals)


def copy_values(values: dict[Tensor, Tensor]) -> None:
    """Copy each value into the weight that is its key."""
    with torch.no_grad():
        for weight, value in values.items():
            weight.copy_(value)


@contextmanager
def averaged_checkpoints(model: nn.Module, paths: list[Path]) -> Iterator[None]:
    """Inside this context the model has the mean of the weights in `paths`, newest first."""
    originals = {tensor: tensor.detach().clone() for tensor in model.state_dict().values()}
    # Sampled buffers (random features) have no mean: the newest ones stay.
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    averaged = [tensor for tensor in originals if tensor.is_floating_point() and tensor.data_ptr() in parameters]
    sums = {tensor: torch.zeros_like(tensor, dtype=torch.float64) for tensor in averaged}
    try:
        for path in reversed(paths):
            checkpoint.load_model(model, path / checkpoint.MODEL)
            for tensor, total in sums.items():
                total += tensor
        copy_values({tensor: total / len(paths) for tensor, total in sums.items()})
        yield
    finally:
        copy_values(originals)
