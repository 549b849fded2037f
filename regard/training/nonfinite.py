"""What to tell the user about a loss, a gradient or weights that are not finite."""

import math
from pathlib import Path

from ..config.schema import Train
from .protocols import StepStats


def nonfinite_message(stats: StepStats, loss: float, norm: float, advice: str) -> str:
    finite = math.isfinite(loss)
    problem = f"the loss is {loss:.4g} and the gradient norm is {norm}" if finite else f"the loss is {loss}"
    indices = ", ".join(map(str, stats.examples[:5])) + (", …" if len(stats.examples) > 5 else "")
    where = f"epoch {stats.epoch}, examples {stats.start_index + 1} to {stats.index}: data indices {indices}"
    return f"{problem} at step {stats.step} ({where}), and the step was skipped; {advice}"


def remedy(train: Train, folder: Path, saved: int) -> str:
    """What to try; `saved` is the step of the last checkpoint, if it is above 0."""
    last = folder / "checkpoints" / f"step-{saved}"
    return (
        f"{f'{last} is good' if saved > 0 else 'there is no checkpoint yet'}. "
        f"Try a lower train.lr (now {train.lr:g}), a longer train.warmup (now {train.warmup}) "
        f"or {f'a smaller train.clip (now {train.clip:g})' if train.clip else 'train.clip=1 (now off)'}"
    )
