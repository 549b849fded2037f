"""Training: the loop, schedules, checkpoints, what is shown of them. `regard.train` is the verb, so the room is not."""

from .checkpoint import load_model, save_model
from .kinds import Outcome
from .loop import fit
from .optimise import device

__all__ = ["Outcome", "device", "fit", "load_model", "save_model"]
