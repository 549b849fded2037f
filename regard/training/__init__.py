"""Training: the loop, schedules, checkpoints, what is shown of them. `regard.train` is the verb, so the room is not."""

from .checkpoint import load_model, save_model
from .loop import fit
from .protocols import Outcome

__all__ = ["Outcome", "fit", "load_model", "save_model"]
