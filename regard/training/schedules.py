"""Learning rates by update: a linear warm-up to the peak, then what the schedule says."""

import math
from collections.abc import Callable

from ..config.schema import Cosine, Linear, Noam, Schedule, WarmupStableDecay
from ..errors import UserError


def rate(schedule: Schedule, lr: float, warmup: int, steps: int) -> Callable[[int], float]:
    """The learning rate of update i, counted from 1; `lr` is the peak, reached at update `warmup`."""
    if isinstance(schedule, Cosine | Linear | WarmupStableDecay) and not steps:
        raise UserError(
            f"train.schedule.kind={schedule.kind} falls towards the last update and train.steps is 0; "
            "set train.steps (train.epochs and train.minutes may end it sooner), or use noam or constant"
        )
    after = _after(schedule, warmup, steps)
    return lambda i: lr * (i / warmup if i < warmup else after(i))


def _after(schedule: Schedule, warmup: int, steps: int) -> Callable[[int], float]:
    """The share of the peak once the warm-up is over."""
    if isinstance(schedule, Noam):
        return lambda i: math.sqrt(max(warmup, 1) / i)
    if isinstance(schedule, Cosine):
        floor = schedule.floor
        return lambda i: floor + (1 - floor) * (1 + math.cos(math.pi * _passed(i, warmup, steps))) / 2
    if isinstance(schedule, Linear):
        floor = schedule.floor
        return lambda i: floor + (1 - floor) * (1 - _passed(i, warmup, steps))
    if isinstance(schedule, WarmupStableDecay):
        start = max(warmup, round(steps * (1 - schedule.decay)))
        return lambda i: 1 - _passed(i, start, steps)
    return lambda i: 1.0


def _passed(i: int, start: int, end: int) -> float:
    """How much of the way from `start` to `end` is behind update i, between 0 and 1."""
    return min(max(i - start, 0) / max(end - start, 1), 1.0)
