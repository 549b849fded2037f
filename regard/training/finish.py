"""The end of a training: the last evaluation and checkpoint, averaged weights, the curves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from . import checkpoint, curves
from .protocols import Outcome

if TYPE_CHECKING:
    from .loop import Trainer


def finish(trainer: "Trainer", status: str) -> Outcome:
    """Log, evaluate and save for the last time; draw the curves."""
    state = trainer.state
    trainer.check_finite()
    if status != "stopped":
        if state.count:
            trainer.log()
        trainer.evaluate()
        if trainer.callbacks.stopped_by:
            trainer.note(f"the callback {trainer.callbacks.stopped_by} ended the training after step {state.step}")
    trainer.call_back("end")
    trainer.save()
    trainer.ranks.wait()  # for the files of the first process
    if status != "stopped" and trainer.settings.average > 1:
        try_average(trainer)
    number = trainer.signal if status == "stopped" else 0
    outcome = Outcome(status, state.step, state.best, state.best_step, trainer.seconds(), number)
    best = {} if state.best is None else {state.metric: state.best, "best_step": state.best_step}
    trainer.event_log.write("end", state.step, trainer.progress(), status=status, **best, seconds=outcome.seconds)
    if trainer.ranks.first:
        curves.draw(trainer.folder)
    for warning in trainer.limits.final_warning(state.step) if status != "stopped" else ():
        trainer.note(warning)
    if status == "stopped":
        trainer.note(
            f"everything is saved in {trainer.folder}; `regard train --resume --out {trainer.folder}` continues it"
        )
    trainer.ranks.wait()
    return outcome


def try_average(trainer: "Trainer") -> None:
    """Publish the mean of the last checkpoints if its metric is better, or if there are no validation data."""
    paths, state = checkpoint.latest_checkpoints(trainer.folder, trainer.settings.average), trainer.state
    with averaged_checkpoints(trainer.model, paths):
        metrics, best = trainer.validate(), state.best
        values = {"averaged": len(paths), **metrics, "seconds": trainer.seconds()}
        trainer.event_log.write("valid", state.step, trainer.progress(), **values)
        if metrics:
            trainer.update_best(metrics)
        else:
            trainer.publish()
    if state.best != best:
        trainer.save_state()


class MovingAverage:
    """An exponential moving average of the weights, stored in the optimizer's state and saved with it."""

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self.optimizer, self.decay = optimizer, decay

    def update(self, step: int) -> None:
        """Update the average after `step`. The decay is smaller in early steps, to forget the initial weights."""
        weights = list(self.optimizer.state)
        for weight in weights:
            self.optimizer.state[weight].setdefault("ema", weight.detach().clone())
        means = [self.optimizer.state[weight]["ema"] for weight in weights]
        torch._foreach_lerp_(
            means, [weight.detach() for weight in weights], 1 - min(self.decay, (1 + step) / (10 + step))
        )

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside this context the model has the averaged weights."""
        averages = {weight: state["ema"] for weight, state in self.optimizer.state.items() if "ema" in state}
        originals = {weight: weight.detach().clone() for weight in averages}
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
