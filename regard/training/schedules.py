"""The limits of a training, and learning rate schedules: a linear warm-up to the peak, then a decay to the end."""

import math
from collections.abc import Callable
from typing import Protocol

from ..config.train import Cosine, Linear, Noam, Schedule, Train, WarmupStableDecay
from ..errors import UserError


class Rate(Protocol):
    """The learning rate of step i, counted from 1; `end` is the last step, if it differs from the planned one."""

    def __call__(self, i: int, end: float | None = None) -> float: ...


def learning_rate(schedule: Schedule, lr: float, warmup: int, steps: float) -> Rate:
    """The learning rates of a training of `steps` steps. `lr` is the peak, at step `warmup`."""
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


class Limits:
    """The end of a training in steps, as far as it is known; learning rates decay towards it."""

    def __init__(self, train: Train) -> None:
        self.train, self.seconds = train, 60 * train.minutes
        self.steps = float(train.steps or math.inf)  # the planned end, by train.steps and train.epochs
        limited = train.steps or train.epochs or train.minutes
        self.rate = learning_rate(train.schedule, train.lr, train.warmup, self.steps if limited else 0)

    def plan(self, epoch_steps: float) -> None:
        """The steps of all train.epochs are planned: they may end the training before train.steps."""
        self.steps = min(self.steps, epoch_steps)

    def reached(self, step: int, elapsed: float) -> bool:
        """Whether train.steps or train.minutes ends training after `step` steps; at least one step is run."""
        late = self.seconds > 0 and step > 0 and elapsed >= self.seconds
        return late or 0 < self.train.steps <= step

    def learning_rate(self, step: int, elapsed: float, warm: float) -> float:
        """The learning rate of a step that begins after `elapsed` seconds; the warm-up ended after `warm` seconds."""
        return self.rate(step, min(self.steps, self._steps_in_time(step, elapsed, warm)))

    def _steps_in_time(self, step: int, elapsed: float, warm: float) -> float:
        """Estimate the total steps within train.minutes: after the warm-up, steps are proportional to time."""
        share = (elapsed - warm) / max(self.seconds - warm, 1e-9) if self.seconds else 0.0
        after = step - self.train.warmup
        return self.train.warmup + after / min(share, 1.0) if share > 0 and after > 0 else math.inf

    def progress(self, step: int, elapsed: float) -> float:
        """The finished fraction of the training by the nearest limit."""
        return min(max(step / self.steps, elapsed / self.seconds if self.seconds else 0.0), 1.0)

    def foreseen_warning(self) -> list[str]:
        """A sentence if the training will end inside its warm-up."""
        return [f"the training will end {self._inside_warmup(int(self.steps))}"] if self._is_inside(self.steps) else []

    def final_warning(self, step: int) -> list[str]:
        """A sentence if the training has ended inside its warm-up."""
        return [f"the training has ended {self._inside_warmup(step)}"] if self._is_inside(step) else []

    def _is_inside(self, step: float) -> bool:
        return step < self.train.warmup

    def _inside_warmup(self, step: int) -> str:
        warmup = self.train.warmup
        return (
            f"after {step:,} steps, inside the warm-up of {warmup:,}: the learning rate only reaches "
            f"{100 * step / warmup:.0f} % of its peak; set train.warmup={step // 10}, or train longer"
        )
