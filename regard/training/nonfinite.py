"""Detects losses, gradients and weights that are not finite, and reports them."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from ..config.train import Train
from ..errors import UserError
from .protocols import StepStats

MAX_UNCHECKED = 50  # steps between two checks, where a check waits for the device


def nonfinite_message(stats: StepStats, loss: float, norm: float, advice: str) -> str:
    """The message for a step whose loss or gradient is not finite."""
    finite = math.isfinite(loss)
    problem = f"the loss is {loss:.4g} and the gradient norm is {norm}" if finite else f"the loss is {loss}"
    indices = ", ".join(map(str, stats.examples[:5])) + (", …" if len(stats.examples) > 5 else "")
    where = f"epoch {stats.epoch}, examples {stats.start_index + 1} to {stats.index}: data indices {indices}"
    return f"{problem} at step {stats.step} ({where}), and the step was skipped; {advice}"


def remedy(train: Train, folder: Path, saved: int) -> str:
    """A remedy for the message; `saved` is the step of the last checkpoint, if it is above 0."""
    last = folder / "checkpoints" / f"step-{saved}"
    return (
        f"{f'{last} is good' if saved > 0 else 'there is no checkpoint yet'}. "
        f"Try a lower train.lr (now {train.lr:g}), a longer train.warmup (now {train.warmup}) "
        f"or {f'a smaller train.clip (now {train.clip:g})' if train.clip else 'train.clip=1 (now off)'}"
    )


class FiniteCheck:
    """Keeps non-finite gradients from the weights: checks at once, or on a GPU later, without waiting for it."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.optimizer, self.deferred = optimizer, device.type == "cuda"  # a check there would stall the device
        self.unchecked: list[StepStats] = []  # steps whose loss and norm were not checked yet
        self.norm = 0.0  # of the last checked gradients

    def track(self, stats: StepStats) -> bool:
        """Record a step before its update of the weights; True if its check is due."""
        self.unchecked.append(stats)
        if self.deferred:
            # The fused optimizer skips a step with this mark; `fetch` reports it before anything is saved.
            self.optimizer.found_inf = (~torch.isfinite(stats.norm + stats.loss)).float()  # type: ignore[attr-defined]
        return not self.deferred or len(self.unchecked) >= MAX_UNCHECKED

    def fetch(self, remedy: Callable[[], str]) -> Iterator[tuple[float, int]]:
        """Fetch the mean losses of the tracked steps, with their counts; raise an error at the first non-finite one."""
        if not self.unchecked:
            return
        values = torch.stack([torch.stack([stats.loss, stats.norm]).float() for stats in self.unchecked]).tolist()
        unchecked, self.unchecked = self.unchecked, []
        for stats, (loss, norm) in zip(unchecked, values, strict=True):
            if not math.isfinite(loss + norm):
                raise UserError(nonfinite_message(stats, loss, norm, remedy()))
            self.norm = norm
            yield loss, stats.count
