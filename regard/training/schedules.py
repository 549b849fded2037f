"""Learning rate schedules: a linear warm-up to the peak, then the decay of the chosen schedule."""

import math
from collections.abc import Callable

from ..config.schema import Cosine, Linear, Noam, Schedule, WarmupStableDecay
from ..errors import UserError


def learning_rate(schedule: Schedule, lr: float, warmup: int, steps: int) -> Callable[[int], float]:
    """Return the function from step i (the first is 1) to its learning rate. `lr` is the peak, at step `warmup`."""
    if isinstance(schedule, Cosine | Linear | WarmupStableDecay) and not steps:
        raise UserError(
            f"train.schedule.kind={schedule.kind} decays towards the last step and train.steps is 0; "
            "set train.steps (train.epochs and train.minutes may end it sooner), or use noam or constant"
        )
    factor = _decay_factor(schedule, warmup, steps)
    return lambda i: lr * (i / warmup if i < warmup else factor(i))


def _decay_factor(schedule: Schedule, warmup: int, steps: int) -> Callable[[int], float]:
    """Return the fraction of the peak by step, after the warm-up."""
    if isinstance(schedule, Noam):
        return lambda i: math.sqrt(max(warmup, 1) / i)
    if isinstance(schedule, Cosine):
        floor = schedule.floor
        return lambda i: floor + (1 - floor) * (1 + math.cos(math.pi * _progress(i, warmup, steps))) / 2
    if isinstance(schedule, Linear):
        floor = schedule.floor
        return lambda i: floor + (1 - floor) * (1 - _progress(i, warmup, steps))
    if isinstance(schedule, WarmupStableDecay):
        start = max(warmup, round(steps * (1 - schedule.decay)))
        return lambda i: 1 - _progress(i, start, steps)
    return lambda i: 1.0


def _progress(i: int, start: int, end: int) -> float:
    """The position of step i between `start` and `end`, clamped to 0 … 1."""
    return min(max(i - start, 0) / max(end - start, 1), 1.0)
