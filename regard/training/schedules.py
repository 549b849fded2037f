"""Learning rate schedules: a linear warm-up to the peak, then the decay of the chosen schedule."""

import math
from collections.abc import Callable
from typing import Protocol

from ..config.train import Cosine, Linear, Noam, Schedule, WarmupStableDecay
from ..errors import UserError


class Rate(Protocol):
    """The learning rate of step i, the first of which is 1; `end` is the last step where the planned one has moved."""

    def __call__(self, i: int, end: float | None = None) -> float: ...


def learning_rate(schedule: Schedule, lr: float, warmup: int, steps: float) -> Rate:
    """Return the learning rates of a training of so many steps. `lr` is the peak, at step `warmup`."""
    if isinstance(schedule, Cosine | Linear | WarmupStableDecay) and not steps:
        raise UserError(
            f"train.schedule.kind={schedule.kind} decays towards the last step and train.steps is 0; "
            "set train.steps, train.epochs or train.minutes, or use noam or constant"
        )
    factor = _decay_factor(schedule, warmup)
    return lambda i, end=None: lr * (i / warmup if i < warmup else factor(i, steps if end is None else end))


def _decay_factor(schedule: Schedule, warmup: int) -> Callable[[int, float], float]:
    """Return the fraction of the peak by step and last step, after the warm-up."""
    if isinstance(schedule, Noam):
        return lambda i, end: math.sqrt(max(warmup, 1) / i)
    if isinstance(schedule, Cosine):
        floor = schedule.floor
        return lambda i, end: floor + (1 - floor) * (1 + math.cos(math.pi * _progress(i, warmup, end))) / 2
    if isinstance(schedule, Linear):
        floor = schedule.floor
        return lambda i, end: floor + (1 - floor) * (1 - _progress(i, warmup, end))
    if isinstance(schedule, WarmupStableDecay):
        stable = 1 - schedule.decay
        return lambda i, end: 1 - (_progress(i, max(warmup, round(end * stable)), end) if math.isfinite(end) else 0)
    return lambda i, end: 1.0


def _progress(i: int, start: int, end: float) -> float:
    """The position of step i between `start` and `end`, clamped to 0 … 1."""
    return min(max(i - start, 0) / max(end - start, 1), 1.0)
