"""The training loop with its schedules, optimizer, checkpoints, callbacks and progress output.

The loop knows objectives and steps, not tasks. Creating and resuming a run belongs to `runs`. The package is not called
`train` because `regard.train` is the function.
"""

from .checkpoint import load_model, save_model
from .loop import run_loop
from .protocols import Outcome

__all__ = ["Outcome", "load_model", "run_loop", "save_model"]
